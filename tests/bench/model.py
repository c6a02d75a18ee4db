"""The model of the benchmarks: 33.6 M random float32 parameters behind the demo model's tokenizer."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests import tiny_models

DEMO = Path(__file__).parents[2] / "mlx_server" / "demo_model"


def bench_model(out: Path) -> Path:
    """Create the folder once under `out`; later calls return it."""
    folder = out / "model"
    if (folder / "done").exists():
        return folder
    config = tiny_models.BENCH_CONFIG
    tiny_models.save(config, folder, spread=1.0)
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    missing = config["vocab_size"] - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"w{i:05d}" for i in range(missing)])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / name, folder / name)
    (folder / "done").touch()
    return folder


def load(folder: Path) -> Any:
    """The plain mlx-lm model, float32, for loops without this project."""
    from mlx_server.runner.loader import load as load_servable

    return load_servable(folder, lambda stage, fraction: None).servable._model


def token_prompt(length: int, seed: int) -> tuple[int, ...]:
    """Random token ids."""
    rng = random.Random(seed)
    return tuple(rng.randrange(10, 8000) for _ in range(length))


class Words:
    """Prompts as text of a known number of tokens."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def prompt(self, length: int, seed: int) -> str:
        """Random text of about `length` tokens (the chat template adds its own)."""
        rng = random.Random(seed)
        words = [f"w{rng.randrange(3000):05d}" for _ in range(length)]
        return "".join(words)[: length * 6]
