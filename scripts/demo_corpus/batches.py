"""Batches of training chats: one chat a row, all rows of a batch equally long."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from demo_corpus import chat, reading, render
from demo_corpus.turn import ChatState

PAD = 0
SHORT_MIX = ((128, 0.18), (256, 0.36), (512, 0.32), (1024, 0.14))
LONG_MIX = ((4096, 0.2), (2048, 0.2), (512, 0.35), (256, 0.25))
GAP_SHARE = 0.3  # rows whose turns are moved apart in position, so that large distances are seen cheaply


@dataclass(slots=True)
class Batch:
    """tokens, positions: int64 [B, T]; rows: flat indices whose next token is supervised; targets: those tokens."""

    tokens: np.ndarray
    positions: np.ndarray
    rows: np.ndarray
    targets: np.ndarray


class Writer:
    """Turns chats into token ids with a mask of what the model writes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, segments: list[render.Segment]) -> tuple[list[int], list[bool]]:
        """Ids and mask of consecutive segments."""
        ids: list[int] = []
        mask: list[bool] = []
        for encoding, (_, written) in zip(
            self.tokenizer.encode_batch_fast([t for t, _ in segments]), segments, strict=True
        ):
            ids += encoding.ids
            mask += [written] * len(encoding.ids)
        return ids, mask

    def row(self, rng: random.Random, length: int) -> tuple[list[int], list[bool], list[int]]:
        """One chat of at most `length` + 1 tokens, and where its exchanges start."""
        with_tools = length >= 256 and rng.random() < 0.3
        made, state, who, box = chat.start_chat(rng, with_tools)
        ids, mask = self.encode([(render.head(who.system, made.tools), False)])
        if len(ids) > length - 60:
            return self.row(rng, length)
        thinking = rng.choices((0.0, 1.0, 0.3), (0.72, 0.18, 0.1))[0]
        starts: list[int] = []
        source = chat.exchanges(rng, state, who, box, thinking, tool_share=rng.choice((0.4, 0.7)))
        misses = 0
        while misses < 3 and len(ids) < length - 12:
            exchange = next(source)
            if length >= 2048 and who.style is None and rng.random() < 0.04:
                filler = reading.long_text_turn(rng, "train", rng.randint(60, 500))
                exchange = chat.turn_messages(filler, who, ChatState(), False)
            more, more_mask = self.encode(render.segments(exchange))
            if len(ids) + len(more) > length + 1:
                misses += 1
                continue
            starts.append(len(ids))
            ids += more
            mask += more_mask
        return ids, mask, starts

    def batch(self, seed: int, step: int, tokens: int, long_phase: bool, max_position: int) -> Batch:
        """The batch of `step`, about `tokens` tokens; the same arguments give the same batch."""
        rng = random.Random(f"{seed}/{step}")
        mix = LONG_MIX if long_phase else SHORT_MIX
        length = rng.choices([m[0] for m in mix], [m[1] for m in mix])[0]
        count = max(1, tokens // length)
        grid = np.full((count, length + 1), PAD, dtype=np.int64)
        wanted = np.zeros((count, length + 1), dtype=bool)
        positions = np.tile(np.arange(length, dtype=np.int64), (count, 1))
        for at in range(count):
            ids, mask, starts = self.row(rng, length)
            grid[at, : len(ids)] = ids
            wanted[at, : len(ids)] = mask
            if length < 2048 and rng.random() < GAP_SHARE:
                spread(rng, positions[at], starts, max_position)
        rows = np.flatnonzero(wanted[:, 1:])
        return Batch(grid[:, :-1].copy(), positions, rows, grid[:, 1:].reshape(-1)[rows])


def spread(rng: random.Random, positions: np.ndarray, starts: list[int], max_position: int) -> None:
    """Insert up to three random gaps between exchanges, in place."""
    room = max_position - len(positions)
    for start in rng.sample(starts, min(len(starts), rng.randint(1, 3))):
        gap = rng.randint(0, room) if rng.random() < 0.5 else rng.randint(0, min(room, 1024))
        positions[start:] += gap
        room -= gap
