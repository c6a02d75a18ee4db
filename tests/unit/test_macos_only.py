"""What only a Mac can show, and clean exits, which any machine can."""

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_server.core.messages import SamplingParams
from mlx_server.core.step import BLOCK_SIZE, Commit, Join, Segment, StepPlan
from mlx_server.runner import loader, memory
from mlx_server.runner.kv_pool import KVPool
from mlx_server.runner.model_runner import ModelRunner
from mlx_server.runner.probe import WEIGHTS_TOLERANCE, _difference, probe
from mlx_server.runner.sampler import Sampler, SampleSpec
from mlx_server.runner.servable import ServableModel
from tests import tiny_models
from tests.step_driver import StepDriver
from tests.unit.runner.sampling_reference import join

EXITS = 20 if sys.platform == "darwin" else 3
WAIT_S = 100

# Loads, answers and closes as the daemon does; mx.compile on the thread is what made processes abort.
USES_THE_THREAD = """
import asyncio
from mlx_server.core.messages import GenerateRequest, SamplingParams
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.engine.inproc import InProcessEngine

async def main():
    engine = InProcessEngine(Settings(kv_blocks=16, max_num_seqs=2), DEMO_FOLDER, "demo")
    await engine.start()
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    request = GenerateRequest(request_id="r", prompt_token_ids=(5, 6, 7), sampling=sampling)
    tokens = [t async for delta in engine.generate(request) for t in delta.token_ids]
    await engine.close()
    print(len(tokens))

asyncio.run(main())
"""


def test_a_process_that_used_the_generation_thread_exits_cleanly() -> None:
    """Two at a time; every one must end by itself, with nothing on stderr about an abort."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-X", "faulthandler", "-c", USES_THE_THREAD]
    left = EXITS
    while left:
        running = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(min(2, left))
        ]
        left -= len(running)
        for process in running:
            out, err = process.communicate(timeout=WAIT_S)
            assert (process.returncode, out.strip()) == (0, "4"), err
            assert "terminate called" not in err


def big_pool_runner(blocks: int) -> ModelRunner:
    model = tiny_models.build({**tiny_models.family_config("llama"), "num_hidden_layers": 1})
    servable = ServableModel(model)
    return ModelRunner(servable, KVPool(servable.layers, blocks), Sampler(servable.vocab_size, ()), 0)


def test_a_commit_is_in_place_with_a_step_in_flight() -> None:
    """The commit drains first, so that nothing holds the pool: no copy of it, also not for a moment."""
    runner = big_pool_runner(8192)
    pool_bytes = runner._pool.nbytes
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    tokens = tuple(range(1, 65))
    joins = (Join("r", sampling, (), None, (), 0),)
    runner.finish(runner.launch(StepPlan(1, (), (), joins, (Segment("r", 0, tokens, True, 0),), 64)))
    commit = Commit("r", (5, 900), 64)
    runner.finish(runner.launch(StepPlan(2, (commit,), (), (), (Segment("r", 64, None, True, 1),), 1)))
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    position, in_flight = 65, None
    for step in range(3, 3 + 2 * BLOCK_SIZE):  # decodes that gather from the pool, each launched over the last
        commits = (Commit("r", (step,), BLOCK_SIZE),) if (position - 64) % BLOCK_SIZE == 0 else ()
        launched = runner.launch(StepPlan(step, commits, (), (), (Segment("r", position, None, True, 1),), 1))
        if in_flight is not None:
            runner.finish(in_flight)
        in_flight, position = launched, position + 1
    assert in_flight is not None
    runner.finish(in_flight)
    assert runner._rows["r"].blocks[:2] == [5, 900]
    assert len(runner._rows["r"].blocks) > 2
    assert mx.get_peak_memory() - before < pool_bytes / 10


def test_memory_does_not_grow_over_steps(tmp_path: Path) -> None:
    """Nothing of a step outlives it: graphs and buffers do not pile up (Metal limits the number of live buffers)."""
    driver = StepDriver(tiny_models.save(tiny_models.family_config("llama"), tmp_path))
    driver.fresh(num_blocks=64, kept_bytes=0)
    for i in range(4):
        driver.add(str(i), range(1, 20), 400, temperature=1.0, frequency_penalty=0.1, top_logprobs=2)
    sizes = []
    for step in range(1, 64 * 6):
        driver.step()
        if step % 64 == 0:  # the tails are as long as 64 steps before
            mx.synchronize()
            sizes.append(mx.get_active_memory())
    assert max(sizes[1:]) - min(sizes[1:]) < 16_384, sizes


# ---- Metal ------------------------------------------------------------------------------------


@pytest.mark.macos
def test_metal_is_the_backend() -> None:
    assert mx.metal.is_available()
    assert mx.default_device() == mx.gpu
    assert big_pool_runner(8).overlaps
    assert memory._default_budget(0) == int(0.8 * mx.device_info()["max_recommended_working_set_size"])


@pytest.mark.macos
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt_oss"])
def test_paged_logits_on_metal_equal_the_plain_ones(family: str, dtype: mx.Dtype, tmp_path: Path) -> None:
    """Head dimension 64, so that Metal's own attention kernels are the ones compared."""
    config = tiny_models.family_config(family) | {"head_dim": 64, "hidden_size": 256}
    folder = tiny_models.save(config, tmp_path)
    weights = {k: v.astype(dtype) for k, v in dict(mx.load(str(folder / "model.safetensors"))).items()}  # type: ignore[arg-type]
    mx.eval(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    model = loader.load(folder, lambda stage, fraction: None)
    assert model.servable.layers[0].dtype == dtype
    probe(model.config, model.servable)
    assert _difference(model.servable) <= WEIGHTS_TOLERANCE[dtype]


@pytest.mark.macos
def test_greedy_text_on_metal_is_mlx_lms(tmp_path: Path) -> None:
    driver = StepDriver(tiny_models.save(tiny_models.family_config("qwen3"), tmp_path))
    prompts = [tuple((11 * i + 3 * j) % 255 + 1 for j in range(10 + 25 * i)) for i in range(6)]
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt, 40)
    outcomes = driver.run()
    for i, prompt in enumerate(prompts):
        assert outcomes[str(i)].tokens == driver.solo(prompt, 40)


@pytest.mark.macos
def test_no_draw_on_metal_leaves_the_filter() -> None:
    """Metal sums in blocks, so a flat stretch of the cumulative distribution might not be flat."""
    vocab, rows = 151_936, 64
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(rows, vocab)).astype(np.float32)
    allowed = np.argsort(-logits, axis=-1)[:, :50]
    sampler = Sampler(vocab, ())
    for i in range(rows):
        join(sampler, str(i), temperature=1.5, top_k=50, seed=i)
    for position in range(100):
        output = sampler.sample(mx.array(logits), [SampleSpec(str(i), position, 0) for i in range(rows)])
        for i, token in enumerate(output.tokens.tolist()):  # type: ignore[arg-type]
            assert token in allowed[i]
