"""A short form of `make chaos`: every kind of fault but those that take a watchdog's quarter of a minute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import schedule
from tests.chaos.campaign import Plan, carry_out
from tests.chaos.catalogue import catalogue

SEED = 7
SECONDS = 20.0
KILLS = 3
ENGINE = {kind: 0.1 for kind in schedule.ENGINE_RATES if kind not in ("stop", "segv")} | {"kill": KILLS * 60 / SECONDS}
CLIENT = {kind: 0.1 for kind in schedule.CLIENT_RATES if kind != "burst"} | {"malformed": 24.0}


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_every_promise_is_kept(tmp_path: Path) -> None:
    cases = catalogue(SEED, size=6, streams=3)
    plan = Plan("chaos", SEED, SECONDS, cases, ENGINE, CLIENT, clients=8, quiet_points=1, latest=5.0)
    result = await carry_out(plan, tmp_path, lambda stage, share, figures: None)
    assert result["violations"] == [], json.dumps(result["violations"], indent=1)
    assert result["kills"] == KILLS
    assert set(result["faults"]) == {*ENGINE, *CLIENT}
    assert result["engine_stats"]["restarts"] >= KILLS + 4  # an abort, a hang, and twice a request that aborts
    assert result["engine_stats"]["resumed"] > 0
    assert result["counts"]["answers"] > len(cases)
