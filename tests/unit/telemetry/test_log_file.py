"""The log file holds everything, also of processes that were started, and stays bounded."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_server.core.errors import SettingsError
from mlx_server.telemetry.log_file import KEPT, aged, write_to

WRITES = """
import logging, os, subprocess, sys
from pathlib import Path
from mlx_server.telemetry import log_file, logs

path = Path(sys.argv[1])
log_file.MAX_BYTES = 1000
log_file.write_to(path)
logs.setup_logging("info")
log_file.keep_bounded(path)
child = subprocess.Popen(["sh", "-c", "read line; echo $line >&2"], stdin=subprocess.PIPE, text=True)
print("to stdout", flush=True)
for i in range(100):
    logging.getLogger("mlx_server.test").info("line %03d %s", i, "x" * 50)
child.communicate("from the child")
os.abort()
"""


def test_it_rotates_and_keeps_what_children_write(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "log"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-X", "faulthandler", "-c", WRITES, str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
    assert {file.name for file in path.parent.iterdir()} == {"log"} | {f"log.{age}" for age in range(1, KEPT + 1)}
    texts = [path.read_text(), *(aged(path, age).read_text() for age in range(1, KEPT + 1))]
    assert all(len(text) < 1200 for text in texts[1:])
    assert "from the child\n" in texts[0]
    assert "Fatal Python error: Aborted" in texts[0]
    kept = [number for text in reversed(texts) for number in re.findall(r"mlx_server\.test: line (\d+)", text)]
    assert kept
    assert kept == [f"{i:03d}" for i in range(100 - len(kept), 100)], "lines are lost or out of order"
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"log_file = .*cannot be written"):
        write_to(tmp_path)
