"""Run the daemon under load and faults, and hold every answer against its truth.

python -m tests.chaos chaos    kills, stalls, failing steps, bad clients; ten minutes by default
python -m tests.chaos soak     the same load with clients that leave, for long runs
python -m tests.chaos pause    16 streams, the engine killed in the middle, five times

Writes JSON, and a plot of chaos and soak, to --out. Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos import pause, schedule
from tests.chaos.campaign import Plan, carry_out
from tests.chaos.catalogue import catalogue


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=("chaos", "soak", "pause"))
    parser.add_argument("--minutes", type=float, default=10.0, help="of load (default: 10)")
    parser.add_argument("--out", type=Path, default=Path("chaos-results"), help="folder for results")
    parser.add_argument("--seed", type=int, default=1, help="of the requests and of the faults (default: 1)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=1.0, figures="")

        def progress(stage: str, share: float, figures: str) -> None:
            bar.update(task, description=stage, completed=share, figures=figures)

        result = asyncio.run(_run(given, progress))
    (given.out / f"{given.run}.json").write_text(json.dumps(result, indent=1) + "\n")
    _show(given, result, console)
    return 0 if result["passed"] else 1


async def _run(given: argparse.Namespace, progress: Any) -> dict[str, Any]:
    if given.run == "pause":
        return await pause.measure(given.out, given.seed, progress)
    chaos = given.run == "chaos"
    plan = Plan(
        name=given.run,
        seed=given.seed,
        seconds=given.minutes * 60,
        cases=catalogue(given.seed),
        engine=schedule.ENGINE_RATES if chaos else {},
        client=schedule.CLIENT_RATES if chaos else schedule.SOAK_RATES,
    )
    return await carry_out(plan, given.out, progress)


def _show(given: argparse.Namespace, result: dict[str, Any], console: Console) -> None:
    if given.run == "pause":
        console.print_json(json.dumps(result))
        return
    from tests.chaos import plot, report

    plot.draw(result, given.out / f"{given.run}.png")
    report.show(result, console)
    console.print(f"results in {given.out}/{given.run}.json, plot in {given.out}/{given.run}.png")


if __name__ == "__main__":
    sys.exit(main())
