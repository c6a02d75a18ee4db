"""Peak KV memory of 1 x 16k + 15 x 128 tokens, against the K/V that is alive at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx_server.runner  # noqa: F401  (loads OpenBLAS, which must come before MLX)

# isort: split
import mlx.core as mx

from tests.bench.model import bench_model, token_prompt
from tests.step_driver import StepDriver

LONG, SHORT, SHORTS, NEW = 16_000, 128, 15, 64


def run(out: Path, rounds: int = 1) -> dict[str, Any]:
    """K/V held is counted step by step (pool blocks in use, tails, staged and kept K/V); MLX's own peak above
    weights and pool is given beside it, with attention scores and activations in it.
    """
    driver = StepDriver(bench_model(out))
    per_token = sum(spec.bytes_per_token for spec in driver.loaded.servable.layers)
    blocks = -(-(LONG + NEW) // 32) + SHORTS * -(-(SHORT + NEW) // 32) + 16
    driver.fresh(num_blocks=blocks, max_num_batched_tokens=512, max_num_seqs=32)
    mx.clear_cache()
    base = mx.get_active_memory()
    for i in range(SHORTS):
        driver.add(f"short{i}", token_prompt(SHORT, i), NEW)
    driver.add("long", token_prompt(LONG, 99), NEW)
    held = {"prefill": 0, "decode": 0}
    transient = {"prefill": 0, "decode": 0}
    mx.reset_peak_memory()
    live = 0
    while driver.step():
        long_done = bool(driver.outcomes["long"].tokens)
        phase = "decode" if long_done else "prefill"
        live = max(live, driver.runner.live_tokens * per_token)
        used = driver.scheduler.cache.blocks.num_used * 32 * per_token
        held[phase] = max(held[phase], used + driver.runner.tail_bytes + driver.runner.kept_bytes)
        transient[phase] = max(transient[phase], mx.get_peak_memory() - base)
        mx.reset_peak_memory()
    return {
        "live_mb": live / 2**20,
        "held_mb": {k: v / 2**20 for k, v in held.items()},
        "held_over_live": {k: v / live for k, v in held.items()},
        "mlx_peak_above_weights_and_pool_mb": {k: v / 2**20 for k, v in transient.items()},
        "pool_mb": blocks * 32 * per_token / 2**20,
        "decode_pool_plus_mlx_peak_over_live": (blocks * 32 * per_token + transient["decode"]) / live,
    }
