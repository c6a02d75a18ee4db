"""Frames of `mlx-serve top` from given facts."""

import io

import pytest
from rich.console import Console

from mlx_server.api.live.facts import (
    Facts,
    KvFacts,
    MemoryFacts,
    ModelFacts,
    Point,
    QueueFacts,
    RateFacts,
    RequestFacts,
)
from mlx_server.api.live.histogram import HistogramFacts
from mlx_server.api.live.recent_errors import RecentError
from mlx_server.cli.top_frame import frame, sparkline

URL = "http://127.0.0.1:8642"
GB = 1 << 30
ESCAPE = "\x1b[2J\x07"
NONE_YET = HistogramFacts(bounds_s=(0.1, 1.0), counts=(0, 0, 0), sum_s=0.0)


def point(generated: float | None) -> Point:
    return Point(
        time_s=0,
        level="normal",
        machine_bytes=0,
        engine_bytes=0,
        weight_bytes=0,
        kv_used_bytes=0,
        kv_cached_bytes=0,
        kv_free_bytes=0,
        running=0,
        waiting=0,
        generated=generated,
        prompt=None,
        hit_rate=None,
    )


def request(number: int) -> RequestFacts:
    return RequestFacts(
        id=f"chatcmpl-{number:032}",
        key_id="0123abcd",
        priority="normal",
        model="demo",
        state="decoding",
        prompt_tokens=123_456,
        cached_tokens=100_000,
        generated_tokens=12_345,
        tokens_per_s=1234.5,
        age_s=3599.9,
    )


def error(path: str) -> RecentError:
    return RecentError(
        time_s=0, status=500, code="server_error", method="POST", path=path, request_id="r" * 40, key_id=""
    )


def facts(
    requests: int = 0, errors: int = 0, name: str = "demo", level: str = "normal", path: str = "/v1/chat/completions"
) -> Facts:
    return Facts(
        time_s=0,
        version="1.2.3",
        status="ok",
        reason="",
        uptime_s=7265,
        point=point(10),
        rates=RateFacts(generated=123.4, prompt=5.25, hit_rate=0.876, total_hit_rate=None),
        queues=tuple(QueueFacts(priority=name, starting=1, decoding=2) for name in ("high", "normal", "low")),
        ttft=HistogramFacts(bounds_s=(0.1, 1.0), counts=(3, 0, 1), sum_s=7.15),
        itl=NONE_YET,
        memory=MemoryFacts(level=level, total_bytes=16 * GB, used_bytes=12 * GB, swap_bytes=GB, engine_bytes=4 * GB),
        model=ModelFacts(
            name=name,
            id=name,
            type="qwen3",
            max_model_len=8192,
            max_num_seqs=64,
            weight_bytes=GB,
            kv_bytes_per_token=1,
            num_blocks=4,
            block_size=32,
        ),
        kv=KvFacts(used_bytes=GB, cached_bytes=2 * GB, free_bytes=GB),
        requests=tuple(request(i) for i in range(requests)),
        hidden_requests=3,
        errors=tuple(error(path) for _ in range(errors)),
    )


def shown(facts: Facts, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(frame(facts, [point(None), point(0), point(5), point(10)], URL, console.size))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 18), (200, 60)])
@pytest.mark.parametrize("requests", [0, 1, 200])
@pytest.mark.parametrize("errors", [0, 1, 50])
def test_it_fits_with_a_line_to_spare(width: int, height: int, requests: int, errors: int) -> None:
    lines = shown(facts(requests, errors, name="an/" + "exceedingly-" * 20 + "long-name"), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_what_it_says_at_80_columns() -> None:
    text = "\n".join(shown(facts(requests=2, errors=1)))
    for words in (
        "mlx-serve 1.2.3  demo  ok  up 2 h 1 min  http://127.0.0.1:8642",
        "memory   ████████████···· 12.0/16.0 GB normal  engine 4.00 GB  swap 1.00 GB",
        "KV pool  ████▒▒▒▒▒▒▒▒···· █ used 1.00 GB  ▒ cached 2.00 GB  · free 1.00 GB",
        "▁▅█ 123 generated  5.2 prompt",
        "88% of prompt tokens in the last minute, - in all",
        "high 1+2  normal 1+2  low 1+2",
        "TTFT p50 < 100 ms  p99 > 1 s    ITL p50 -  p99 -",
        "2 live requests, 3 of other API keys",
        "000000000001 0123abcd normal   decoding 123,456 100,000 12,345 1,234 3,600 s",
        "500 server_error  POST /v1/chat/completions",
    ):
        assert words in text, text


def test_no_text_of_others_steers_the_terminal() -> None:
    hostile = facts(errors=1, name="a" + ESCAPE, path=ESCAPE)
    assert not any(mark in line for line in shown(hostile) for mark in "\x1b\x07")


@pytest.mark.parametrize("level", ["normal", "warn", "critical"])
def test_the_level_is_a_word_too(level: str) -> None:
    assert f" {level} " in shown(facts(level=level))[1]


def test_before_the_model_has_loaded() -> None:
    bare = Facts(
        time_s=0,
        version="1",
        status="loading",
        reason="the model is still loading",
        uptime_s=1,
        point=point(None),
        rates=RateFacts(),
        queues=(),
        ttft=NONE_YET,
        itl=NONE_YET,
    )
    text = "\n".join(shown(bare))
    assert "no model yet  loading (the model is still loading)" in text
    assert "no live requests" in text


@pytest.mark.parametrize(
    ("values", "line"),
    [([], ""), ([None, 0.0], " ▁"), ([1.0, 4.0, 8.0], "▂▅█"), ([3.0], "█"), ([0.0, 0.0], "▁▁")],
)
def test_sparkline(values: list[float | None], line: str) -> None:
    assert sparkline(values) == line
