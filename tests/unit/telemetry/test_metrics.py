"""Names, types and labels are a promise to dashboards; counters never fall; docs and dashboards name what exists."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from mlx_server.core.messages import EngineInfo, EngineStats, FinishReason
from mlx_server.telemetry.engine_metrics import EngineFigures
from mlx_server.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).with_name("metrics.golden.txt")
DASHBOARD = ROOT / "docs" / "grafana" / "mlx-serve.json"
ALERTS = ROOT / "docs" / "grafana" / "alerts.yml"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def figures(is_up: bool = True, **changed: Any) -> EngineFigures:
    info = EngineInfo(
        model_id="m", model_path="m", model_type="m", vocab_size=8, max_model_len=64, eos_token_ids=(), num_blocks=8,
        initial_blocks=4, block_size=32, kv_bytes_per_token=10, weight_bytes=5, max_num_seqs=4,
        max_num_batched_tokens=64, load_s=0.0,
    )  # fmt: skip
    zero = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    return EngineFigures(info, EngineStats(**zero | changed), is_up)


def families(metrics: Metrics, engine: EngineFigures) -> dict[str, Any]:
    body, _ = metrics.render(engine, OPENMETRICS)
    return {family.name: family for family in parse_openmetrics(body.decode())}


def samples(metrics: Metrics, engine: EngineFigures) -> dict[str, float]:
    """Of those that have no label beside the model, and for others with the last label's value."""
    found = {}
    for family in families(metrics, engine).values():
        for sample in family.samples:
            other = [value for name, value in sample.labels.items() if name != "model_name"]
            found["|".join([sample.name, *other])] = sample.value
    return found


def exercised() -> Metrics:
    """Every family with at least one sample."""
    metrics = Metrics("m")
    metrics.note_answer("GET", "/metrics", 200)
    return metrics


def promised() -> list[str]:
    lines = []
    for family in families(exercised(), figures()).values():
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        lines.append(f"{family.name} {family.type} {' '.join(labels)}".rstrip())
    return sorted(lines)


def test_names_types_and_labels_are_those_promised() -> None:
    """Write the file anew only for a change that is meant: `python -m tests.unit.telemetry.test_metrics`."""
    assert promised() == GOLDEN.read_text().splitlines()


def test_both_parsers_read_the_same_samples() -> None:
    metrics = exercised()
    plain = metrics.render(figures(), "")[0].decode()
    old = {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse_text(plain) for s in f.samples}
    new = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in families(metrics, figures()).values()
        for s in family.samples
    }
    assert old == new
    assert len(old) > 100


def test_engine_counters_survive_its_restarts() -> None:
    metrics = exercised()
    seen = [
        samples(metrics, figures(generated_tokens=tokens, steps=steps, restarts=restarts, process_number=number))
        for tokens, steps, restarts, number in [
            (10, 4, 0, 0),
            (25, 9, 0, 0),
            (25, 9, 1, 0),  # the new process has not answered yet
            (25, 3, 1, 1),
            (28, 4, 1, 1),
            (0, 0, 3, 3),
            (7, 2, 3, 3),
        ]
    ]
    assert [one["vllm:generation_tokens_total"] for one in seen] == [10, 25, 25, 50, 53, 53, 60]
    assert [one["mlx_serve_engine_steps_total"] for one in seen] == [4, 9, 9, 12, 13, 13, 15]
    assert [one["mlx_serve_engine_restarts_total"] for one in seen] == [0, 0, 1, 1, 1, 3, 3]


def test_what_an_engine_says() -> None:
    engine = figures(
        blocks_used=1, blocks_cached=2, blocks_free=1, running=2, waiting=3, running_by_priority=(1, 1, 0),
        waiting_by_priority=(0, 1, 2), streams=5, paused_streams=2, active_bytes=11, peak_bytes=13,
    )  # fmt: skip
    found = samples(exercised(), engine)
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert found["mlx_serve_kv_pool_bytes"] == 4 * 32 * 10
    assert found["mlx_serve_kv_pool_max_bytes"] == 8 * 32 * 10
    assert [found[f"mlx_serve_kv_blocks|{state}"] for state in ("used", "cached", "free")] == [1, 2, 1]
    assert [found[f"mlx_serve_requests_waiting|{level}"] for level in ("high", "normal", "low")] == [0, 1, 2]
    assert [found[f"mlx_serve_requests_running|{level}"] for level in ("high", "normal", "low")] == [1, 1, 0]
    assert (found["mlx_serve_streams|live"], found["mlx_serve_streams|paused"]) == (3, 2)
    assert (found["mlx_serve_device_memory_bytes|active"], found["mlx_serve_device_memory_bytes|peak"]) == (11, 13)


@pytest.mark.parametrize("is_up", [True, False])
def test_an_engine_that_restarts_is_not_up(is_up: bool) -> None:
    assert samples(exercised(), figures(is_up=is_up))["mlx_serve_engine_up"] == is_up


def test_latencies_of_one_choice() -> None:
    clock = Clock()
    metrics = Metrics("m", clock)
    choice = metrics.choice(arrived_s=99.0, prompt_tokens=40)
    for after_s, generated in [(0.5, 0), (0.5, 1), (0.25, 2), (0.0, 2), (0.5, 6)]:
        clock.now_s += after_s
        choice.note(generated, queue_s=0.125)
    choice.end(FinishReason.LENGTH)
    found = samples(metrics, figures())
    expected = {
        "vllm:time_to_first_token_seconds": (1, 2.0),
        "vllm:inter_token_latency_seconds": (2, 0.75),
        "vllm:e2e_request_latency_seconds": (1, 2.75),
        "vllm:request_queue_time_seconds": (1, 0.125),
        "vllm:request_prompt_tokens": (1, 40),
        "vllm:request_generation_tokens": (1, 6),
    }
    assert {name: (found[f"{name}_count"], found[f"{name}_sum"]) for name in expected} == expected
    assert found["vllm:request_success_total|length"] == 1


# ---- what the documentation refers to ------------------------------------------------------------

_NAME = re.compile(r"(?:vllm:|mlx_serve_)[a-zA-Z0-9_]+|^up(?={)")
OF_PROMETHEUS = {"up"}


def exposed() -> set[str]:
    """Names of series, as PromQL knows them."""
    return {s.name for family in families(exercised(), figures()).values() for s in family.samples}


def expressions(value: Any) -> Iterable[str]:
    """Every `expr`, and the query of every variable."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str):
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def series(expression: str) -> set[str]:
    found = set(_NAME.findall(expression))
    assert found or "$" in expression or expression == "prometheus", f"names no metric: {expression}"
    return found


def test_the_dashboard_names_only_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    used = set().union(*(series(expression) for expression in expressions(dashboard)))
    assert used <= exposed()
    assert len(used) > 25
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Traffic", "Latency", "Prefix cache", "KV pool", "Memory", "Engine"]


def test_the_dashboard_fills_its_grid_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_alerts_name_only_metrics_that_exist() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        assert series(rule["expr"]) <= exposed() | OF_PROMETHEUS
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8


def test_the_page_describes_every_metric() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    missing = [line.split()[0] for line in promised() if f"`{line.split()[0]}" not in page]
    assert missing == []
    assert set(_NAME.findall(page)) <= exposed() | {line.split()[0] for line in promised()}


if __name__ == "__main__":
    GOLDEN.write_text("\n".join(promised()) + "\n")
