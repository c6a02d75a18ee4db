"""OpenBLAS, loaded before MLX on Linux: float32 matrix products 4 to 60 times faster than without."""

from __future__ import annotations

import ctypes
import logging
import sys

DEBIAN_PACKAGE = "libopenblas0-pthread"
_NAMES = ("libopenblas.so.0", "libopenblasp.so.0")

log = logging.getLogger(__name__)


def preload() -> str | None:
    """Load OpenBLAS with global symbols. Returns its name; None where it is missing or not needed.

    It must come before MLX, whose symbols are bound when it is imported.
    """
    if sys.platform != "linux":
        return None
    if "mlx.core" in sys.modules:
        log.warning("MLX was imported before OpenBLAS could be loaded, so matrix products will be slow")
        return None
    for name in _NAMES:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return name
    return None


def warn_if_missing(loaded: str | None) -> None:
    """One log line that names the package, when a CPU backend has to do without."""
    if sys.platform == "linux" and loaded is None:
        log.warning(
            "OpenBLAS was not found, so MLX uses a reference BLAS that is 4 to 60 times slower; "
            "on Debian or Ubuntu: apt-get install %s",
            DEBIAN_PACKAGE,
        )
