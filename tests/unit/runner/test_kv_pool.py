"""The pool, rows and tails, and what the runner refuses before it touches the device."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_server.core.errors import RowError
from mlx_server.core.messages import SamplingParams
from mlx_server.core.step import BLOCK_SIZE, Commit, Join, Segment, StepPlan
from mlx_server.runner import rows
from mlx_server.runner.kv_pool import KVPool, LayerSpec
from mlx_server.runner.model_runner import ModelRunner
from mlx_server.runner.rows import Row
from mlx_server.runner.sampler import Sampler
from mlx_server.runner.servable import ServableModel
from tests import tiny_models

LAYERS = (
    LayerSpec(kv_heads=2, k_dim=8, v_dim=4, dtype=mx.float32),
    LayerSpec(kv_heads=3, k_dim=4, v_dim=4, dtype=mx.float16, window=48),
)
BLOCKS = 7
SAMPLING = SamplingParams(max_tokens=8, temperature=0.0)


def values(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def block_values(seed: int, layer: int, n: int) -> tuple[mx.array, mx.array]:
    spec = LAYERS[layer]
    k, v = (values(seed + i, n, spec.kv_heads, BLOCK_SIZE, d) for i, d in enumerate((spec.k_dim, spec.v_dim)))
    return k.astype(spec.dtype), v.astype(spec.dtype)


def filled() -> tuple[KVPool, list[tuple[mx.array, mx.array]]]:
    """A pool whose every block has values of its own."""
    pool = KVPool(LAYERS, BLOCKS)
    content = [block_values(10 * layer, layer, BLOCKS) for layer in range(len(LAYERS))]
    for layer, (k, v) in enumerate(content):
        pool.write(layer, mx.arange(BLOCKS, dtype=mx.int32), k, v)
    return pool, content


def same(a: mx.array, b: mx.array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(mx.all(a == b).item())


# ---- the pool ---------------------------------------------------------------------------------


def test_nbytes_is_the_size_of_the_arrays() -> None:
    pool = KVPool(LAYERS, BLOCKS)
    assert pool.nbytes == sum(a.nbytes for a in (*pool._k, *pool._v))
    assert pool.nbytes == BLOCKS * BLOCK_SIZE * sum(s.bytes_per_token for s in LAYERS)


@pytest.mark.parametrize(("size", "moves"), [(12, ()), (5, ((6, 1), (5, 3))), (7, ()), (1, ((4, 0),))])
def test_a_resize_keeps_what_stays_and_what_moves(size: int, moves: tuple[tuple[int, int], ...]) -> None:
    pool, content = filled()
    pool.resize(size, moves)
    assert pool.num_blocks == size
    assert pool.nbytes == sum(a.nbytes for a in (*pool._k, *pool._v))
    origin = list(range(min(size, BLOCKS)))
    for source, target in moves:
        origin[target] = source
    index = mx.array([list(range(len(origin)))], dtype=mx.int32)
    for layer, spec in enumerate(LAYERS):
        k, v = pool.gather(layer, index)
        for got, kept, dim in ((k, content[layer][0], spec.k_dim), (v, content[layer][1], spec.v_dim)):
            blocks = got.reshape(spec.kv_heads, len(origin), BLOCK_SIZE, dim).transpose(1, 0, 2, 3)
            assert same(blocks, kept[mx.array(origin)])


def test_a_resize_gives_the_memory_back_one_array_at_a_time() -> None:
    big = (LayerSpec(kv_heads=8, k_dim=64, v_dim=64, dtype=mx.float32),) * 4
    before = mx.get_active_memory()
    pool = KVPool(big, 64)
    array, all_of_it = pool._k[0].nbytes, pool.nbytes
    mx.reset_peak_memory()
    pool.resize(128, ())
    assert mx.get_active_memory() - before == pytest.approx(2 * all_of_it, rel=0.01)
    assert mx.get_peak_memory() - before <= 2 * all_of_it + 2.1 * array
    mx.reset_peak_memory()
    pool.resize(16, ())
    assert mx.get_active_memory() - before == pytest.approx(all_of_it / 4, rel=0.01)
    assert mx.get_peak_memory() - before <= 2 * all_of_it + 0.6 * array
    assert mx.get_cache_memory() == 0


@pytest.mark.parametrize("layer", range(len(LAYERS)))
@pytest.mark.parametrize("index", [[[0]], [[3, 1, 6]], [[6, 5], [0, 6], [2, 2]]])
def test_gather_returns_what_was_written(layer: int, index: list[list[int]]) -> None:
    pool, content = filled()
    for got, written in zip(pool.gather(layer, mx.array(index, dtype=mx.int32)), content[layer], strict=True):
        expected = np.array(written)[np.array(index)]  # [rows, blocks, heads, BLOCK_SIZE, dim]
        n, blocks, heads, _, dim = expected.shape
        expected = expected.transpose(0, 2, 1, 3, 4).reshape(n, heads, blocks * BLOCK_SIZE, dim)
        assert np.array_equal(np.array(got), expected)


def test_a_write_changes_its_blocks_alone() -> None:
    pool, content = filled()
    k, v = block_values(77, 0, 2)
    pool.write(0, mx.array([5, 1], dtype=mx.int32), k, v)
    for block in range(BLOCKS):
        got, _ = pool.gather(0, mx.array([[block]], dtype=mx.int32))
        expected = {5: k[0], 1: k[1]}.get(block, content[0][0][block])
        assert same(got[0], expected)
    assert same(pool._k[1], content[1][0])


def test_a_commit_does_not_copy_the_pool() -> None:
    """Nothing else holds the arrays, so a write is in place: the peak stays far below a second pool."""
    spec = LayerSpec(kv_heads=4, k_dim=64, v_dim=64, dtype=mx.float32)
    pool = KVPool([spec], 1024)
    k = v = values(1, 1, 4, BLOCK_SIZE, 64)
    mx.eval(k, v)
    held = pool.gather(0, mx.array([[3, 4]], dtype=mx.int32))
    mx.eval(held)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for block in range(8):
        pool.write(0, mx.array([block], dtype=mx.int32), k, v)
    assert mx.get_peak_memory() - before < pool.nbytes / 20
    assert mx.get_active_memory() - before < pool.nbytes / 20
    assert not mx.any(held[0]).item(), "what was gathered before stays as it was"


@pytest.mark.parametrize("ids", [[-1], [BLOCKS], [0, 1, BLOCKS + 5], [2**31], [-(2**40), 0]])
def test_an_id_outside_the_pool_raises_on_the_host(ids: list[int]) -> None:
    with pytest.raises(IndexError, match=f"outside 0..{BLOCKS - 1}"):
        KVPool(LAYERS, BLOCKS).check(ids)


def test_ids_of_the_pool_pass() -> None:
    pool = KVPool(LAYERS, BLOCKS)
    pool.check([])
    pool.check([0, BLOCKS - 1])


# ---- rows -------------------------------------------------------------------------------------


def row(request_id: str, tail_len: int, blocks: list[int] | None = None) -> tuple[Row, list[rows.KV]]:
    """A row with a tail of random values, and the values."""
    made = Row(request_id, SAMPLING, blocks or [], tail_len)
    seed = sum(request_id.encode()) * 100
    tail = [
        (
            values(seed + 2 * i, 1, s.kv_heads, tail_len, s.k_dim),
            values(seed + 2 * i + 1, 1, s.kv_heads, tail_len, s.v_dim),
        )
        for i, s in enumerate(LAYERS)
    ]
    made.tail = list(tail) if tail_len else None
    return made, tail


def test_width_classes_bound_the_padding() -> None:
    classes = [rows.width_class(n) for n in range(1025)]
    assert classes == sorted(classes)
    assert len(set(classes[:9])) == 1
    for n in range(9, 1025):
        widest = max(m for m in range(1025) if classes[m] == classes[n])
        assert widest <= 2 * (n - 1), f"{n} blocks padded to {widest}"
    assert classes[8] != classes[9] == classes[16] != classes[17] == classes[32] != classes[33]


def test_a_group_gives_every_row_its_tail_back() -> None:
    lengths = [5, 0, 63, 1, 63]
    made, tails = zip(*(row(f"r{i}", n) for i, n in enumerate(lengths)), strict=True)
    group = rows.form_group(list(made), LAYERS)
    assert group.columns == 63
    assert all(r.group is group and r.tail is None for r in made)
    rows.dissolve(group)
    for r, tail, n in zip(made, tails, lengths, strict=True):
        assert r.group is None
        assert r.tail is not None
        for (k, v), (own_k, own_v) in zip(r.tail, tail, strict=True):
            assert k.shape[2] == n
            assert same(k, own_k)
            assert same(v, own_v)


def test_a_group_of_rows_without_tails() -> None:
    made = [row("a", 0)[0], row("b", 0)[0]]
    group = rows.form_group(made, LAYERS)
    assert group.columns == 0
    assert [k.shape[2] for k, _ in group.tails] == [0, 0]


@pytest.mark.parametrize("num_tokens", [32, 64, 1, 31, 33, 70])
def test_a_committed_tail_comes_back_from_the_pool(num_tokens: int) -> None:
    pool = KVPool(LAYERS, BLOCKS)
    r, tail = row("r", 70)
    n = -(-num_tokens // BLOCK_SIZE)
    block_ids = [4, 0, 6][:n]
    for layer, (k, v) in enumerate(tail):
        written = rows.as_blocks(k, num_tokens), rows.as_blocks(v, num_tokens)
        assert written[0].shape[0] == n
        pool.write(layer, mx.array(block_ids, dtype=mx.int32), *(w.astype(LAYERS[layer].dtype) for w in written))
        got_k, got_v = pool.gather(layer, mx.array([block_ids], dtype=mx.int32))
        assert same(got_k[:, :, :num_tokens], k[:, :, :num_tokens].astype(got_k.dtype))
        assert same(got_v[:, :, :num_tokens], v[:, :, :num_tokens].astype(got_v.dtype))
        assert not mx.any(got_k[:, :, num_tokens:]).item(), "the rest of the last block is zero"
    rows.drop_committed(r, num_tokens)
    assert r.tail_len == 70 - num_tokens
    assert r.tail is not None
    assert same(r.tail[0][0], tail[0][0][:, :, num_tokens:])


@pytest.mark.parametrize("num_tokens", [1, 17, 31, 32])
def test_a_tail_starts_with_a_copy_of_a_cached_block(num_tokens: int) -> None:
    pool, content = filled()
    r = Row("r", SAMPLING, [2])
    rows.copy_tail(r, pool, 5, num_tokens)
    assert (r.tail_len, r.num_computed) == (num_tokens, BLOCK_SIZE + num_tokens)
    assert r.tail is not None
    for (k, v), (all_k, all_v) in zip(r.tail, content, strict=True):
        assert same(k[0], all_k[5, :, :num_tokens])
        assert same(v[0], all_v[5, :, :num_tokens])


@pytest.mark.parametrize(("block", "num_tokens"), [(-1, 5), (BLOCKS, 5), (0, 0), (0, BLOCK_SIZE + 1), (0, -1)])
def test_a_tail_source_that_is_none_raises_on_the_host(block: int, num_tokens: int) -> None:
    pool = KVPool(LAYERS, BLOCKS)
    with pytest.raises((IndexError, ValueError)):
        rows.copy_tail(Row("r", SAMPLING, []), pool, block, num_tokens)


@pytest.mark.parametrize("window", [None, 1, 31, 32, 33, 48, 64, 100, 10_000])
def test_a_block_window_shows_what_any_query_from_here_on_can_see(window: int | None) -> None:
    made = [
        Row("a", SAMPLING, list(range(10, 16)), 3),
        Row("b", SAMPLING, [3], 0),
        Row("c", SAMPLING, [], 5),
        Row("d", SAMPLING, list(range(20, 28)), 40),
    ]
    shown = rows.block_window(made, window)
    index, first = np.array(shown.index), np.array(shown.first)
    assert index.shape == (4, shown.num_blocks)
    used = []
    for i, r in enumerate(made):
        lowest = 0 if window is None else max(0, r.num_computed - window + 1)  # of the next query
        needed = [j for j in range(len(r.blocks)) if (j + 1) * BLOCK_SIZE > lowest]
        start = int(first[i, 0]) // BLOCK_SIZE
        assert index[i, : len(r.blocks) - start].tolist() == r.blocks[start:], "the row's own blocks, in order"
        assert needed == list(range(min(start, len(r.blocks)), len(r.blocks))), "no more and no less"
        used.append(len(needed))
    assert shown.num_blocks == max(used)
    assert shown.ragged == (min(used) < max(used))


# ---- what the runner refuses on the host ------------------------------------------------------


@pytest.fixture(scope="module")
def servable() -> ServableModel:
    return ServableModel(tiny_models.build({**tiny_models.family_config("qwen3"), "num_hidden_layers": 2}))


@pytest.fixture
def runner(servable: ServableModel) -> ModelRunner:
    pool = KVPool(servable.layers, BLOCKS)
    return ModelRunner(servable, pool, Sampler(servable.vocab_size, ()), kept_bytes_limit=0)


def plan(step_id: int = 1, **fields: object) -> StepPlan:
    empty: dict[str, object] = {"commits": (), "leaves": (), "joins": (), "segments": (), "num_tokens": 0}
    return StepPlan(step_id, **(empty | fields))  # type: ignore[arg-type]


def join(request_id: str = "r", block_ids: tuple[int, ...] = (), tail: tuple[int, int] | None = None) -> Join:
    return Join(request_id, SAMPLING, block_ids, tail, (), 0)


def prefill(runner: ModelRunner, n: int) -> None:
    tokens = tuple(range(1, n + 1))
    runner.finish(runner.launch(plan(joins=(join(),), segments=(Segment("r", 0, tokens, True, 0),))))


@pytest.mark.parametrize(
    "bad", [join(block_ids=(BLOCKS,)), join(block_ids=(0, -1)), join(tail=(BLOCKS, 3)), join(tail=(0, 33))], ids=str
)
def test_a_join_that_reads_outside_the_pool_raises(runner: ModelRunner, bad: Join) -> None:
    with pytest.raises(RowError) as error:
        runner.launch(plan(joins=(bad,)))
    assert error.value.request_id == "r"


@pytest.mark.parametrize(
    ("block_ids", "num_tokens"),
    [
        ((BLOCKS,), 32),
        ((-1,), 32),
        ((0, 1), 32),  # one block of tokens for two blocks: a broadcast would fill both
        ((0,), 64),
        ((0, 1, 2), 96),  # more than the tail has
        ((), 0),
        ((0, 0), 64),
    ],
    ids=str,
)
def test_a_wrong_commit_raises_and_writes_nothing(
    runner: ModelRunner, block_ids: tuple[int, ...], num_tokens: int
) -> None:
    prefill(runner, 70)
    with pytest.raises((IndexError, ValueError, RowError)):
        runner.launch(plan(2, commits=(Commit("r", block_ids, num_tokens),)))
    for layer in range(2):
        assert not mx.any(runner._pool._k[layer]).item()
        assert not mx.any(runner._pool._v[layer]).item()


def test_two_commits_into_the_same_block_raise(runner: ModelRunner) -> None:
    tokens = tuple(range(1, 41))
    segments = tuple(Segment(i, 0, tokens, True, 0) for i in ("a", "b"))
    runner.finish(runner.launch(plan(joins=(join("a"), join("b")), segments=segments)))
    with pytest.raises(ValueError, match="twice"):
        runner.launch(plan(2, commits=(Commit("a", (3,), 32), Commit("b", (3,), 32))))


def test_a_segment_at_another_position_raises(runner: ModelRunner) -> None:
    prefill(runner, 10)
    with pytest.raises(RowError, match="is at 10, the plan says 11"):
        runner.launch(plan(2, segments=(Segment("r", 11, (5,), True, 1),)))


@pytest.mark.parametrize("token_id", [-1, 256, 2**31 - 1])
def test_a_token_outside_the_vocabulary_raises(runner: ModelRunner, token_id: int) -> None:
    """Only the request that brought it is to blame."""
    segments = (Segment("good", 0, (1, 2), True, 0), Segment("bad", 0, (1, token_id, 2), True, 0))
    with pytest.raises(RowError, match="outside the vocabulary") as error:
        runner.launch(plan(joins=(join("good"), join("bad")), segments=segments))
    assert error.value.request_id == "bad"


def test_after_a_reset_rows_start_again_from_what_was_committed(runner: ModelRunner) -> None:
    prefill(runner, 70)
    runner.finish(
        runner.launch(plan(2, commits=(Commit("r", (4, 2), 64),), segments=(Segment("r", 70, (9,), True, 1),)))
    )
    expected = runner.logits([Segment("r", 71, (8,), True, 2)])
    runner.reset()
    tokens = (*range(65, 71), 9, 8)
    runner.launch(plan(3, joins=(join(block_ids=(4, 2)),)))
    again = runner.logits([Segment("r", 64, tokens, True, 2)])
    assert mx.allclose(again, expected, atol=1e-4).item()


def test_idle_rows_leave_nothing_behind(runner: ModelRunner) -> None:
    """After the last row left, at most the results of the last step are held."""
    mx.clear_cache()
    mx.synchronize()
    before = mx.get_active_memory()
    prefill(runner, 200)
    runner.finish(runner.launch(plan(2, leaves=("r",))))
    mx.synchronize()
    assert (runner._rows, runner._groups) == ({}, [])
    assert mx.get_active_memory() - before < 4096
