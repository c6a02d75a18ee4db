"""Run benchmarks one after the other; write a JSON file each, a plot and a summary.

python -m tests.bench                 all of them, about 25 minutes on two cores
python -m tests.bench decode stall    some of them
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.bench import (
    boundary,
    claims,
    decode,
    host,
    idle,
    isolation,
    memory,
    plot,
    pressure,
    restart,
    stall,
    startup,
    throughput,
    ttft,
)

BENCHES: dict[str, Callable[..., dict[str, Any]]] = {
    "host": host.run,
    "decode": decode.run,
    "throughput": throughput.run,
    "ttft": ttft.run,
    "stall": stall.run,
    "memory": memory.run,
    "claims": claims.run,
    "boundary": boundary.run,
    "isolation": isolation.run,
    "restart": restart.run,
    "startup": startup.run,
    "idle": idle.run,
    "pressure": pressure.run,
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for results")
    parser.add_argument("--rounds", type=int, help="rounds of each, instead of its own default")
    args = parser.parse_args()
    unknown = set(args.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.names or list(BENCHES)
    console = Console()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in names:
            task = progress.add_task(name, total=None)
            result = BENCHES[name](args.out, **({"rounds": args.rounds} if args.rounds else {}))
            result = {"benchmark": name, "when": time.strftime("%Y-%m-%d"), "machine": machine(), **result}
            (args.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            progress.update(task, total=1, completed=1)
            console.print_json(json.dumps({k: v for k, v in result.items() if k not in ("rounds", "machine")}))
    drawn = plot.draw(args.out)
    console.print(f"results in {args.out}/, plot in {drawn}")


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
