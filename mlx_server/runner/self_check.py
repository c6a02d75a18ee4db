"""`python -m mlx_server.runner.self_check`: what MLX is here, as JSON; a process of its own, since MLX may crash it."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from mlx_server.runner import OPENBLAS

# isort: split
import mlx.core as mx

from mlx_server.runner.device import compute_device

_SIZE = 1024


def self_check() -> dict[str, object]:
    """matmul_gflops: of a float32 product of 1024 x 1024 matrices, the best of three."""
    device = compute_device()
    a = mx.random.normal((_SIZE, _SIZE))
    b = mx.random.normal((_SIZE, _SIZE))
    mx.eval(a, b)
    best_s = min(_product_s(a, b) for _ in range(3))
    return {
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "device": device.name,
        "is_cpu": device.is_cpu,
        "memory_bytes": device.memory_bytes,
        "openblas": OPENBLAS,
        "matmul_gflops": 2 * _SIZE**3 / best_s / 1e9,
    }


def _product_s(a: mx.array, b: mx.array) -> float:
    start = time.perf_counter()
    mx.eval(a @ b)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.stdout.write(json.dumps(self_check()) + "\n")
