"""Memory, disk and open files of this machine."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from mlx_server.cli.checks.finding import Finding
from mlx_server.cli.serve import gigabytes
from mlx_server.core.settings import Settings
from mlx_server.services.memory.reading import MemoryReading
from mlx_server.services.memory.source import system_source

_GIB = 1 << 30
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 10 * _GIB
_NO_DISK = _GIB
_FULL_PERCENT = 85.0
_FILES_BESIDE_CONNECTIONS = 128


def check_memory(reading: MemoryReading | None = None) -> Finding:
    """reading: for tests; by default that of now."""
    if reading is None:
        try:
            reading = system_source().read({})
        except OSError as error:
            return Finding("memory", "warn", f"the system does not tell: {error}")
    left, whose = reading.available_bytes, f"of {gigabytes(reading.total_bytes)} are available"
    if reading.cgroup_limit_bytes is not None and reading.cgroup_used_bytes is not None:
        group_left = max(reading.cgroup_limit_bytes - reading.cgroup_used_bytes, 0)
        if group_left < left:
            left, whose = group_left, f"are left of the control group's {gigabytes(reading.cgroup_limit_bytes)}"
    text = f"{gigabytes(left)} {whose}, {reading.used_percent:.0f} % used"
    fix = "close other programs, or take a smaller model; 'mlx-serve plan --model NAME' says what one needs"
    if left < _LITTLE_MEMORY or reading.used_percent >= _FULL_PERCENT:
        return Finding("memory", "warn", text, fix)
    return Finding("memory", "ok", text)


def check_disk(folder: Path | None = None) -> Finding:
    """Of the folder that models are downloaded to. folder: by default the Hugging Face cache."""
    if folder is None:
        from huggingface_hub.constants import HF_HUB_CACHE

        folder = Path(HF_HUB_CACHE)
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("model cache", "fail", f"{there} cannot be written", "change its owner, or set HF_HOME")
    free = shutil.disk_usage(there).free
    text = f"{gigabytes(free)} are free for models in {folder}"
    fix = "'mlx-serve models list' and 'models rm' make room; HF_HOME moves the cache"
    if free < _NO_DISK:
        return Finding("model cache", "fail", text, fix)
    return Finding("model cache", "warn", text, fix) if free < _LITTLE_DISK else Finding("model cache", "ok", text)


def check_open_files(settings: Settings) -> Finding:
    """Each connection is a file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + _FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        text = f"{soft} may be open, and {settings.max_connections} connections want {needed}"
        fix = f"'ulimit -n {needed}' in the shell that starts the daemon, or a smaller --max-connections"
        return Finding("open files", "warn", text, fix)
    limit = "without limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    return Finding("open files", "ok", f"{limit} may be open, {needed:,} are needed")
