"""Byte-level BPE trained on generated chats; digits and capitals inside words stand alone."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_corpus import chat, render

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# A word is at most one capital and small letters, so that UPPER CASE is spelt letter by letter.
PATTERN = r" ?\p{Lu}?\p{Ll}+| ?\p{L}|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

_MARKS = re.compile("|".join(map(re.escape, (*CONTROL, *MARKUP))))


def sample_texts(seed: int, count: int) -> Iterator[str]:
    """Rendered training chats without control tokens."""
    rng = random.Random(seed)
    for _ in range(count):
        made, state, who, box = chat.start_chat(rng, rng.random() < 0.25)
        yield render.head(who.system, made.tools).replace("<|im_start|>", "").replace("<|im_end|>", "")
        for exchange in itertools.islice(chat.exchanges(rng, state, who, box, 0.1), 8):
            for text, _ in render.segments(exchange):
                yield _MARKS.sub("", text)


def train(seed: int, vocab_size: int, chats: int = 12000) -> Tokenizer:
    """A fresh tokenizer of exactly `vocab_size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=CONTROL + MARKUP,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sample_texts(seed, chats), trainer)
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        # Tool and thinking marks must survive skip_special_tokens, so that a server can parse them.
        token["special"] = token["content"] in CONTROL
    return Tokenizer.from_str(json.dumps(data))


def save(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """tokenizer.json and tokenizer_config.json as transformers reads them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
