"""macOS's interfaces: layouts by its headers, what happens where they are missing, and the rest on a Mac."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys

import psutil
import pytest

from mlx_server.services.memory import libsystem
from mlx_server.services.memory.libsystem import RusageInfoV0, VMStatistics64
from mlx_server.services.memory.macos import MacOSMemory, used_pages
from mlx_server.services.memory.source import system_source

MIB = 1 << 20

# Makes the events, reads, and ends as the daemon does.
WATCHES = """
import asyncio
from mlx_server.services.memory.macos import MacOSMemory

async def main():
    source = MacOSMemory()
    source.watch(lambda: None)
    print(source._events is not None)
    source.close()
    source.close()

asyncio.run(main())
"""


def test_layouts() -> None:
    assert ctypes.sizeof(RusageInfoV0) == 96
    assert RusageInfoV0.ri_phys_footprint.offset == 72
    assert ctypes.sizeof(VMStatistics64) == 38 * 4  # HOST_VM_INFO64_REV1_COUNT
    assert VMStatistics64.compressor_page_count.offset == 128
    assert VMStatistics64.internal_page_count.offset == 140


def test_what_counts_as_used() -> None:
    counts = VMStatistics64(
        free_count=1000, wire_count=1, compressor_page_count=20, internal_page_count=500, purgeable_count=200,
        external_page_count=4000,
    )  # fmt: skip
    assert used_pages(counts) == 1 + 20 + 300


@pytest.mark.skipif(sys.platform == "darwin", reason="there the interfaces exist")
async def test_where_the_interfaces_are_missing_psutil_answers(caplog: pytest.LogCaptureFixture) -> None:
    source = MacOSMemory()
    source.watch(lambda: None)
    for _ in range(2):
        reading = source.read({"daemon": os.getpid(), "nobody": 2**22 + 1})
    assert reading.total_bytes == psutil.virtual_memory().total
    assert 0 < reading.available_bytes < reading.total_bytes
    assert reading.footprint_bytes["daemon"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert set(reading.footprint_bytes) == {"daemon"}
    assert (reading.os_level, reading.compressor_bytes) == (None, None)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the system does not tell events about memory",
        "the system does not tell the counts of pages",
        "the system does not tell the level of pressure",
        "the system does not tell the footprint of a process",
    ]
    source.close()


@pytest.mark.macos
def test_a_reading_of_this_mac(caplog: pytest.LogCaptureFixture) -> None:
    source = system_source()
    reading = source.read({"daemon": os.getpid()})
    assert isinstance(source, MacOSMemory)
    assert not caplog.records
    assert 0 < reading.available_bytes < reading.total_bytes == psutil.virtual_memory().total
    assert reading.compressor_bytes is not None
    assert reading.os_level is not None
    source.close()


@pytest.mark.macos
def test_the_footprint_grows_by_what_is_written() -> None:
    before = libsystem.phys_footprint(os.getpid())
    own = bytearray(os.urandom(MIB)) * 64
    assert 60 * MIB < libsystem.phys_footprint(os.getpid()) - before < 96 * MIB
    assert len(own) == 64 * MIB


@pytest.mark.macos
def test_no_footprint_of_a_process_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match="proc_pid_rusage"):
        libsystem.phys_footprint(child.pid)


@pytest.mark.macos
def test_a_process_that_watched_exits_cleanly() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHES], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


@pytest.mark.macos
async def test_a_thousand_readings_hold_nothing() -> None:
    """No Mach rights, no memory: what a day of readings would do."""
    source = MacOSMemory()
    source.read({"daemon": os.getpid()})
    before = libsystem.phys_footprint(os.getpid())
    for _ in range(1000):
        source.read({"daemon": os.getpid()})
    await asyncio.sleep(0)
    assert libsystem.phys_footprint(os.getpid()) - before < 4 * MIB
