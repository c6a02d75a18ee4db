"""`mlx-serve doctor`: what it finds, what it advises, its exit code."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mlx_server.cli.checks.compute import check_mlx
from mlx_server.cli.checks.machine import check_disk, check_memory, check_open_files
from mlx_server.cli.checks.setup import check_config_file, check_exposure, check_port, check_variables
from mlx_server.cli.main import main
from mlx_server.core.settings import Settings
from mlx_server.services.keys import add_key
from mlx_server.services.memory.reading import MemoryReading

GIB = 1 << 30


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_info:
        main(["doctor", *arguments])
    out, err = capsys.readouterr()
    return int(exit_info.value.code or 0), out, err


@pytest.fixture
def port(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("MLX_SERVE_PORT", str(unused_tcp_port))
    return unused_tcp_port


def test_a_sound_machine(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json")
    findings = {finding["subject"]: finding for finding in json.loads(out)}
    assert (code, err) == (0, ""), out
    assert set(findings) >= {"MLX", "memory", "model cache", "settings", "access", "port", "open files", "service"}
    assert "GFLOP/s" in findings["MLX"]["text"]
    assert findings["port"]["text"] == f"{port} is free; no daemon runs there"


def test_a_failure_is_exit_code_1_with_its_fix(
    port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("prot = 1\n")
    monkeypatch.setenv("MLX_SERVE_CONFIG", str(tmp_path / "config.toml"))
    code, out, _ = run(capsys)
    assert code == 1
    assert "prot = 1" in out and "did you mean port?" in out and "-> correct the file" in out


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os.abort()", "it crashes with SIGABRT"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_a_crash_of_mlx_is_a_finding(program: str, words: str) -> None:
    (finding,) = check_mlx((sys.executable, "-c", program))
    assert finding.level == "fail"
    assert words in finding.text and finding.fix


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has a BLAS of its own")
def test_the_slow_blas_is_named() -> None:
    about = {"mlx": "1", "mlx_lm": "1", "device": "CPU", "is_cpu": True, "openblas": None, "matmul_gflops": 1.0}
    found = check_mlx((sys.executable, "-c", f"print({json.dumps(json.dumps(about))})"))
    assert [finding.level for finding in found] == ["ok", "warn"]
    assert "libopenblas0-pthread" in found[1].fix


@pytest.mark.parametrize(
    ("reading", "level", "words"),
    [
        (MemoryReading(total_bytes=32 * GIB, available_bytes=20 * GIB), "ok", "20.00 GB of 32.00 GB"),
        (MemoryReading(total_bytes=32 * GIB, available_bytes=3 * GIB), "warn", "91 % used"),
        (MemoryReading(total_bytes=4 * GIB, available_bytes=GIB), "warn", "1.00 GB of 4.00 GB"),
        (
            MemoryReading(
                total_bytes=64 * GIB, available_bytes=60 * GIB, cgroup_used_bytes=3 * GIB, cgroup_limit_bytes=4 * GIB
            ),
            "warn",
            "1.00 GB are left of the control group's 4.00 GB",
        ),
    ],
)
def test_memory(reading: MemoryReading, level: str, words: str) -> None:
    finding = check_memory(reading)
    assert finding.level == level
    assert words in finding.text


def test_disk(tmp_path: Path) -> None:
    assert str(tmp_path / "a" / "b") in check_disk(tmp_path / "a" / "b").text
    if os.getuid():
        tmp_path.chmod(0o500)
        finding = check_disk(tmp_path / "a")
        tmp_path.chmod(0o700)
        assert (finding.level, finding.subject) == ("fail", "model cache")


def test_open_files() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from mlx_server.cli.checks.machine import check_open_files\n"
        "from mlx_server.core.settings import Settings\n"
        "print(check_open_files(Settings(max_connections=512)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "level='warn'" in done.stdout and "ulimit -n 640" in done.stdout
    assert check_open_files(Settings(max_connections=1)).level == "ok"


def test_a_file_that_others_may_change(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.touch(mode=0o600)
    assert check_config_file(path).level == "ok"
    path.chmod(0o666)
    finding = check_config_file(path)
    assert (finding.level, finding.fix) == ("warn", f"chmod go-w '{path}'")


def test_a_variable_that_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_variables() == []
    monkeypatch.setenv("MLX_SERVE_PROT", "1")
    (finding,) = check_variables()
    assert (finding.level, finding.fix) == ("warn", "did you mean MLX_SERVE_PORT?")


def test_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add_key(path, "laptop")
    assert "one of 1 keys" in check_exposure(Settings(keys_file=path, host="0.0.0.0")).text
    path.chmod(0o644)
    finding = check_exposure(Settings(keys_file=path))
    assert finding.level == "fail" and "chmod 600" in finding.text


def test_a_host_that_needs_a_key() -> None:
    finding = check_exposure(Settings(host="0.0.0.0"))
    assert finding.level == "fail" and "mlx-serve keys add" in finding.text


class _Answers(BaseHTTPRequestHandler):
    """/health as a daemon answers it; b"" for a program that is none."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_daemon_that_runs_already(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Answers, "body", b'{"status": "ok", "model": "demo", "pid": 77}')
    finding = check_port(Settings(port=server.server_port))
    assert finding.level == "ok"
    assert "an mlx-serve answers" in finding.text and "process 77" in finding.text and "serves demo" in finding.text


def test_a_port_taken_by_another_program(server: HTTPServer) -> None:
    finding = check_port(Settings(port=server.server_port))
    assert finding.level == "fail"
    assert f"port {server.server_port} of 127.0.0.1 is taken by" in finding.text
    if sys.platform == "linux":
        assert f"(process {os.getpid()})" in finding.text


def test_a_program_that_takes_connections_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_server.cli.checks.setup._CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        finding = check_port(Settings(port=silent.getsockname()[1]))
    assert finding.level == "fail" and "is taken by" in finding.text


def test_an_address_that_is_not_of_this_machine() -> None:
    finding = check_port(Settings(host="192.0.2.1", port=8642))
    assert finding.level == "fail"
