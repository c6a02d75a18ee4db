"""Control groups, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_server.services.memory.cgroup import Cgroups, CgroupUsage

GIB = 1 << 30


def group(folder: Path, limit: str, used: int, cache: int, *, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {cache}\nfile 3\n")


def cgroups(tmp_path: Path, lines: str) -> Cgroups:
    proc = tmp_path / "cgroup"
    proc.write_text(lines)
    return Cgroups(proc, tmp_path / "mount")


def test_version_2(tmp_path: Path) -> None:
    group(tmp_path / "mount" / "user" / "serve", str(4 * GIB), 3 * GIB, GIB)
    assert cgroups(tmp_path, "0::/user/serve\n").usage() == CgroupUsage(2 * GIB, 4 * GIB)


def test_the_group_closest_to_its_limit_counts(tmp_path: Path) -> None:
    group(tmp_path / "mount" / "user", str(8 * GIB), 7 * GIB, 0)
    group(tmp_path / "mount" / "user" / "serve", str(4 * GIB), GIB, 0)
    assert cgroups(tmp_path, "0::/user/serve\n").usage() == CgroupUsage(7 * GIB, 8 * GIB)


def test_limits_are_read_anew(tmp_path: Path) -> None:
    folder = tmp_path / "mount" / "serve"
    group(folder, "max", GIB, 0)
    found = cgroups(tmp_path, "0::/serve\n")
    assert found.usage() is None
    group(folder, str(2 * GIB), GIB, 0)
    assert found.usage() == CgroupUsage(GIB, 2 * GIB)


def test_version_1(tmp_path: Path) -> None:
    group(tmp_path / "mount" / "memory" / "box", str(4 * GIB), 3 * GIB, GIB, version=1)
    lines = "5:cpu,cpuacct:/box\n4:memory:/box\n0::/\n"
    assert cgroups(tmp_path, lines).usage() == CgroupUsage(2 * GIB, 4 * GIB)


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    group(tmp_path / "mount" / "memory", "9223372036854771712", GIB, 0, version=1)
    assert cgroups(tmp_path, "4:memory:/\n").usage() is None


def test_in_a_container_the_mount_is_the_group(tmp_path: Path) -> None:
    group(tmp_path / "mount", str(2 * GIB), GIB, 0)
    assert cgroups(tmp_path, "0::/system.slice/docker-0123.scope\n").usage() == CgroupUsage(GIB, 2 * GIB)


def test_a_group_that_is_gone_has_no_limit(tmp_path: Path) -> None:
    folder = tmp_path / "mount" / "serve"
    group(folder, str(GIB), 1, 0)
    found = cgroups(tmp_path, "0::/serve\n")
    (folder / "memory.current").unlink()
    assert found.usage() is None


@pytest.mark.parametrize("lines", ["", "0::/nowhere\n", "3:cpu:/\n"])
def test_without_control_groups_there_is_no_limit(lines: str, tmp_path: Path) -> None:
    assert cgroups(tmp_path, lines).usage() is None
    assert Cgroups(tmp_path / "missing", tmp_path).usage() is None
