"""Sampling defaults that a model's authors ship in `generation_config.json`."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import msgspec

logger = logging.getLogger(__name__)


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values for what a request leaves out. The defaults here are those of the OpenAI API."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


_LEGAL: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 1 << 20),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}


def load_defaults(folder: Path) -> SamplingDefaults:
    """Read `generation_config.json`. A missing file gives the plain defaults; an illegal value is skipped.

    An explicit `"do_sample": false` without a temperature means greedy.
    """
    path = folder / "generation_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SamplingDefaults()
    except (OSError, ValueError) as error:
        logger.warning("%s is not readable (%s): its sampling defaults are not used", path, error)
        return SamplingDefaults()
    return _pick(config if isinstance(config, dict) else {})


def _pick(config: dict[str, Any]) -> SamplingDefaults:
    values: dict[str, Any] = {"temperature": 0.0} if config.get("do_sample") is False else {}
    for name, (low, high) in _LEGAL.items():
        value = config.get(name)
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if number and low <= value <= high:
            values[name] = int(value) if name == "top_k" else float(value)
        else:
            logger.warning("generation_config.json: %s = %r is not from %s to %s; not used", name, value, low, high)
    return SamplingDefaults(**values)
