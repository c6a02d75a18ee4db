"""Measure the embedded demo model on held-out phrasings, greedily, through mlx-lm.

    python scripts/eval_demo_model.py --model mlx_server/demo_model --per-category 60 --json eval.json

Prints a table for the model card. An answer counts only if it equals the expected one and ended by itself.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import random
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from demo_corpus import cases
from demo_corpus.cases import Case
from demo_corpus.turn import Message

try:
    # Must come before mlx.core: its CPU build otherwise uses a reference BLAS.
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
except OSError:
    print("no OpenBLAS found; going on with what MLX ships", file=sys.stderr)

import mlx.core as mx
from mlx_lm import load, stream_generate
from mlx_lm.models.cache import make_prompt_cache

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


class Judge:
    """The model under test."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.model, self.tokenizer = load(str(path))
        if dtype == "float32":
            self.model.set_dtype(mx.float32)

    def prompt(self, messages: list[Message], tools: list[dict[str, Any]], thinking: bool) -> list[int]:
        """Token ids of a chat up to the assistant's turn."""
        ids: list[int] = self.tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, enable_thinking=thinking
        )
        return ids

    def answer(self, prompt: list[int], cache: list[Any] | None = None) -> tuple[str, bool]:
        """The generated text and whether it ended by itself."""
        parts = []
        reason = None
        for part in stream_generate(self.model, self.tokenizer, prompt, max_tokens=420, prompt_cache=cache):
            parts.append(part.text)
            reason = part.finish_reason
        return "".join(parts), reason == "stop"

    def right(self, case: Case, text: str) -> bool:
        """Whether `text` is the expected answer of `case`."""
        if case.thinking:
            head, mark, text = text.partition("</think>\n\n")
            if not mark or not head.startswith("<think>\n"):
                return False
        if not case.calls:
            return text == case.expected
        try:
            return [json.loads(call) for call in _CALL.findall(text)] == case.calls and not _CALL.sub("", text).strip()
        except json.JSONDecodeError:
            return False


class Score:
    """Right and asked per category, with a few failures to look at."""

    def __init__(self) -> None:
        self.right: dict[str, int] = defaultdict(int)
        self.asked: dict[str, int] = defaultdict(int)
        self.unended = 0
        self.failures: list[dict[str, str]] = []

    def add(self, case: Case, text: str, right: bool, ended: bool) -> None:
        """Count one answer."""
        self.asked[case.category] += 1
        self.unended += not ended
        if right and ended:
            self.right[case.category] += 1
        else:
            self.failures.append(
                {
                    "category": case.category,
                    "question": str(case.messages[-1]["content"]),
                    "answer": text,
                    "expected": case.expected or json.dumps(case.calls),
                }
            )

    def report(self) -> dict[str, Any]:
        """Figures for the JSON file."""
        total, good = sum(self.asked.values()), sum(self.right.values())
        table = {
            name: {"right": self.right[name], "n": n, "accuracy": round(self.right[name] / n, 4)}
            for name, n in self.asked.items()
        }
        return {
            "overall": {"right": good, "n": total, "accuracy": round(good / max(1, total), 4)},
            "not_ended": self.unended,
            "categories": table,
        }


def markdown(report: dict[str, Any]) -> str:
    """The table of the model card."""
    lines = ["| category | n | right | accuracy |", "| --- | ---: | ---: | ---: |"]
    for name, row in [*report["categories"].items(), ("**overall**", report["overall"])]:
        lines.append(f"| {name} | {row['n']} | {row['right']} | {100 * row['accuracy']:.1f} % |")
    return "\n".join(lines)


def run_short(judge: Judge, seed: int, per_category: int) -> Score:
    """All categories at the start of a chat."""
    score = Score()
    for case in cases.all_cases(seed, per_category):
        text, ended = judge.answer(judge.prompt(case.messages, case.tools, case.thinking))
        score.add(case, text, judge.right(case, text), ended)
    return score


def run_long(judge: Judge, seed: int, histories: int, questions: int, least: int) -> tuple[Score, list[int]]:
    """Questions after at least `least` tokens of earlier turns; returns the lengths of the histories too."""
    score = Score()
    lengths = []
    for at in range(histories):
        count = 40
        while True:
            messages, box, state = cases.long_history(seed + at, at % 2 == 1, count)
            tools = box.schemas if box else []
            history = judge.tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=False)
            if len(history) >= least:
                break
            count += 20
        lengths.append(len(history))
        cache = make_prompt_cache(judge.model)
        for start in range(0, len(history), 512):
            judge.model(mx.array(history[start : start + 512])[None], cache=cache)
            mx.eval([c.state for c in cache])
        rng = random.Random(f"after/{seed + at}")
        for _ in range(questions):
            case = cases.after_history(rng, box, state)
            full = judge.prompt([*messages, *case.messages], tools, False)
            if full[: len(history)] != history:
                raise ValueError("the rendered history is not a prefix of the next prompt")
            text, ended = judge.answer(full[len(history) :], copy.deepcopy(cache))
            score.add(case, text, judge.right(case, text), ended)
    return score, lengths


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=60)
    parser.add_argument("--histories", type=int, default=6)
    parser.add_argument("--questions", type=int, default=50, help="questions after each long history")
    parser.add_argument("--least", type=int, default=4096, help="tokens of a long history")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "stored"), default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.monotonic()
    judge = Judge(options.model, options.dtype)
    short = run_short(judge, options.seed, options.per_category)
    print(markdown(short.report()), flush=True)
    result: dict[str, Any] = {"seed": options.seed, "dtype": options.dtype, "short": short.report()}
    failures = short.failures
    if options.histories:
        long, lengths = run_long(judge, options.seed, options.histories, options.questions, options.least)
        print(f"\nafter {min(lengths)} to {max(lengths)} tokens of earlier turns:\n\n{markdown(long.report())}")
        result["long"] = {**long.report(), "history_tokens": lengths}
        failures = failures + long.failures
    print(f"\nnot ended by themselves: {short.unended}; {time.monotonic() - begun:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({**result, "failures": failures}, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
