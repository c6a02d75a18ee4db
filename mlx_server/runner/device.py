"""What MLX computes on here, and the memory that it may take."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mlx_server.runner.attend import without_kernels

FUSED_HEAD_DIMS = frozenset({64, 80, 128})
"""Sizes of a head for which MLX's fused attention takes a prefill chunk; for others it keeps the scores."""

_MEMORY_KEYS = ("max_recommended_working_set_size", "total_memory", "memory_size")


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """name: for a person. is_cpu: floating-point numbers are held as float32, and no attention is fused.

    memory_bytes: what the device says it can take; None for the CPU, which takes the machine's.
    """

    name: str
    is_cpu: bool
    memory_bytes: int | None


def compute_device() -> ComputeDevice:
    """The default device of MLX."""
    about = mx.device_info()
    memory = next((int(about[key]) for key in _MEMORY_KEYS if key in about), None)
    if without_kernels():
        return ComputeDevice("CPU", True, None)
    return ComputeDevice(str(about.get("device_name", "GPU")), False, memory)
