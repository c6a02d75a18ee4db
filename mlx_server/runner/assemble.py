"""From a model folder to a runner that can execute plans: load, prove, size, allocate, warm up."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from mlx_server.core.errors import ModelLoadError
from mlx_server.core.messages import EngineInfo
from mlx_server.core.settings import Settings
from mlx_server.core.step import BLOCK_SIZE
from mlx_server.runner import loader
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.memory import initial_blocks, kept_limit, limit_buffer_cache, pool_blocks
from mlx_server.runner.model_runner import ModelRunner
from mlx_server.runner.probe import probe
from mlx_server.runner.sampler import Sampler

log = logging.getLogger(__name__)


def assemble(
    settings: Settings, path: Path, model_id: str, progress: loader.Progress, is_proven: bool = False
) -> tuple[ModelRunner, EngineInfo]:
    """Runs on the generation thread, which owns everything that comes out. Raises `ModelLoadError`.

    is_proven: this folder's parity has been probed before; it is not probed again.
    """
    started_s = time.perf_counter()
    model = loader.load(path, progress)
    if not is_proven:
        progress("checking parity with the model's own forward pass", 0.0)
        probe(model.config, model.servable)
    progress("allocating the KV pool", 0.0)
    bytes_per_token = sum(spec.bytes_per_token for spec in model.servable.layers)
    blocks = pool_blocks(settings, bytes_per_token, model.weight_bytes, model.context_length)
    initial = initial_blocks(settings, blocks)
    limits = [model.context_length, blocks * BLOCK_SIZE]
    if settings.max_model_len is not None:
        limits.append(settings.max_model_len)
    try:
        pool = KVPool(model.servable.layers, initial)
    except (RuntimeError, MemoryError) as error:
        size = initial * BLOCK_SIZE * bytes_per_token
        raise ModelLoadError(f"the KV pool of {size / 2**30:.1f} GB cannot be allocated: {error}") from error
    most_bytes = blocks * BLOCK_SIZE * bytes_per_token
    limit_buffer_cache(most_bytes)
    sampler = Sampler(model.servable.vocab_size, model.eos_token_ids)
    info = EngineInfo(
        model_id=model_id,
        model_path=str(path),
        model_type=str(model.config["model_type"]),
        vocab_size=model.servable.vocab_size,
        max_model_len=min(limits),
        eos_token_ids=model.eos_token_ids,
        num_blocks=blocks,
        initial_blocks=initial,
        block_size=BLOCK_SIZE,
        kv_bytes_per_token=bytes_per_token,
        weight_bytes=model.weight_bytes,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        load_s=time.perf_counter() - started_s,
    )
    progress("ready", 1.0)
    return ModelRunner(model.servable, pool, sampler, kept_limit(most_bytes)), info
