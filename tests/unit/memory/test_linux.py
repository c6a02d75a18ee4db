"""The real /proc, and events of a real epoll."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mlx_server.services.memory.cgroup import Cgroups
from mlx_server.services.memory.linux import LinuxMemory, footprint_of
from mlx_server.services.memory.psi import PSI_FILE, PsiTrigger, UrgentEvents, read_psi
from mlx_server.services.memory.source import system_source

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's interfaces")

MIB = 1 << 20
WAIT_S = 10


def test_a_reading_of_this_machine() -> None:
    source = system_source()
    reading = source.read({"daemon": os.getpid(), "nobody": 2**22 + 1})
    assert isinstance(source, LinuxMemory)
    assert reading.total_bytes == psutil.virtual_memory().total
    assert 0 < reading.available_bytes < reading.total_bytes
    assert 0 < reading.used_percent < 100
    assert set(reading.footprint_bytes) == {"daemon"}
    assert reading.os_level is None
    assert (reading.psi_full_avg10 is not None) == PSI_FILE.exists()
    source.close()


def test_a_footprint_is_what_a_process_has_for_itself(tmp_path: Path) -> None:
    """Not the files that it has mapped, as engines map weights."""
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * 64 * MIB)
    before = footprint_of(os.getpid())
    own = bytearray(os.urandom(MIB)) * 32
    assert before is not None
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:: mmap.PAGESIZE].count(b"w") == 64 * MIB // mmap.PAGESIZE
        after = footprint_of(os.getpid())
        assert after is not None
        assert 30 * MIB < after - before < 48 * MIB
    assert len(own) == 32 * MIB


def test_a_process_that_is_gone_has_no_footprint() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert footprint_of(child.pid) is None


def test_a_limit_of_the_control_group_is_in_the_reading(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("990\n")
    (tmp_path / "memory.stat").write_text("inactive_file 10\n")
    reading = LinuxMemory(Cgroups(tmp_path / "cgroup", tmp_path)).read({})
    assert (reading.cgroup_used_bytes, reading.cgroup_limit_bytes, reading.used_percent) == (980, 1000, 98.0)


def test_pressure_stall_information(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_text("some avg10=12.34 avg60=1.00 avg300=0.10 total=1\nfull avg10=5.60 avg60=0.00 avg300=0.00 total=2\n")
    assert read_psi(path) == (12.34, 5.6)
    assert read_psi(tmp_path / "missing") == (None, None)


async def test_urgent_data_is_an_event_and_ordinary_data_is_not() -> None:
    """TCP's urgent byte is POLLPRI, as the kernel's trigger is."""
    events: asyncio.Queue[None] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        served, _ = server.accept()
        with served:
            urgent = UrgentEvents(served.fileno(), lambda: events.put_nowait(None))
            client.send(b"ordinary")
            client.send(b"!", socket.MSG_OOB)
            async with asyncio.timeout(WAIT_S):
                await events.get()
            assert served.recv(8) == b"ordinary"
            urgent.close()
            urgent.close()
            seen = events.qsize()
            client.send(b"!", socket.MSG_OOB)
            await asyncio.sleep(0.02)
            assert events.qsize() == seen


async def test_an_event_that_the_event_loop_has_seen_counts_although_it_is_gone() -> None:
    """A trigger's event is cleared by looking, and the event loop's own epoll looks first."""
    events = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        urgent = UrgentEvents(server.fileno(), lambda: events.append("seen"))
        urgent._readable()
        urgent.close()
    assert events == ["seen"]


async def test_the_kernel_takes_our_trigger() -> None:
    try:
        trigger = PsiTrigger(lambda: None)
    except OSError as error:
        assert error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)
        pytest.skip(f"refused here: {error}")
    trigger.close()
    trigger.close()


async def test_where_triggers_are_refused_readings_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PsiTrigger.__init__, "__defaults__", (tmp_path / "missing",))
    source = LinuxMemory()
    with caplog.at_level("INFO"):
        source.watch(lambda: None)
    assert "read at intervals only" in caplog.text
    assert source.read({}).total_bytes > 0
    source.close()
