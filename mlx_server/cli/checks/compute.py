"""MLX and the BLAS beneath it, looked at in a process of their own: a crash is a finding."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from mlx_server.cli.checks.finding import Finding

SELF_CHECK = (sys.executable, "-m", "mlx_server.runner.self_check")
_TIMEOUT_S = 120.0
_APT = "apt-get install libopenblas0-pthread (Debian, Ubuntu), or the package of your distribution"


def check_mlx(command: Sequence[str] = SELF_CHECK) -> list[Finding]:
    """command: prints what `self_check` says."""
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [_broken(f"a small product was not done after {_TIMEOUT_S:.0f} s")]
    except OSError as error:
        return [_broken(f"no process can be started: {error.strerror or error}")]
    if done.returncode < 0:
        return [_broken(f"it crashes with {signal.Signals(-done.returncode).name}")]
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return [_broken(lines[-1] if lines else f"it ends with exit code {done.returncode}")]
    about = json.loads(done.stdout)
    text = f"MLX {about['mlx']}, mlx-lm {about['mlx_lm']}, on {about['device']}; {about['matmul_gflops']:,.0f} GFLOP/s"
    return [Finding("MLX", "ok", text), *_check_blas(about)]


def _check_blas(about: dict[str, Any]) -> list[Finding]:
    if sys.platform != "linux" or not about["is_cpu"]:
        return []
    if about["openblas"] is None:
        text = "OpenBLAS is missing, so MLX uses a reference BLAS that is 4 to 60 times slower"
        return [Finding("BLAS", "warn", text, _APT)]
    return [Finding("BLAS", "ok", f"OpenBLAS ({about['openblas']})")]


def _broken(reason: str) -> Finding:
    return Finding("MLX", "fail", reason, "install mlx-serve anew; on a Mac, macOS 14 on Apple Silicon is the least")
