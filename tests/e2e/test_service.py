"""`mlx-serve service` as processes: the command, the system's program, and the daemon that the definition names."""

import os
import plistlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

from mlx_server.core.settings import load_settings
from mlx_server.services.service import launchd
from mlx_server.services.service.definition import Invocation, find_program, make_spec
from mlx_server.services.service.launchd import LaunchAgent
from mlx_server.services.service.systemd import UserUnit
from tests.fakes import service_manager

ROOT = Path(__file__).resolve().parents[2]
MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
WAIT_S = 60
KEPT_VARIABLES = ("OPENBLAS_NUM_THREADS", "MLX_SERVE_KEYS_FILE")

linux_only = pytest.mark.skipif(sys.platform == "darwin", reason="drives systemd's verbs")


class Service:
    """A home of its own, with a stand-in for systemctl."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "a home"
        self.home.mkdir()
        self.fake = service_manager.State(folder)
        path = f"{service_manager.install(folder, 'systemctl')}:{os.environ['PATH']}"
        kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self.env = {"HOME": str(self.home), "PATH": path, "FAKE_STATE": str(folder), "PYTHONPATH": str(ROOT), **kept}
        self.unit = UserUnit(self.home / ".config")

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [*MLX_SERVE, "service", *arguments]
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=WAIT_S)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


@contextmanager
def started(invocation: Invocation) -> Iterator[subprocess.Popen[str]]:
    """The daemon as the service manager starts it: this command, this environment, another folder, no more."""
    env = dict(invocation.environment)
    with subprocess.Popen(invocation.command, env=env, cwd="/", stdout=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for child in reversed([process, *psutil.Process(process.pid).children(recursive=True)]):
                    child.kill()


def until_ready(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    with httpx2.Client(base_url=url, trust_env=False) as client:
        while True:
            try:
                if client.get("/ready").status_code == 200:
                    return
            except httpx2.ConnectError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)


@linux_only
@pytest.mark.slow
def test_what_is_installed_serves_and_is_watched(service: Service, unused_tcp_port: int) -> None:
    config = service.home / "my config.toml"
    config.write_text(f"port = {unused_tcp_port}\n")
    log = service.home / "logs" / "a log"
    install = ("install", "--config", str(config), "--kv-memory", "32MB", "--log-file", str(log))
    installed = service.run(*install, MLX_SERVE_MAX_QUEUE="9")
    assert installed.returncode == 0, installed.stderr
    assert service.fake.calls()[-1] == ["--user", "start", "mlx-serve.service"]
    invocation = service.unit.installed()
    assert invocation is not None
    assert invocation.command[1:] == ("serve", f"--config={config}", "--kv-memory=32MB", f"--log-file={log}")
    assert invocation.environment["MLX_SERVE_MAX_QUEUE"] == "9"

    service.fake.change(pid=0)
    stopped = service.run("status", MLX_SERVE_PORT="1")
    assert stopped.returncode == 3
    assert f"nothing answers at http://127.0.0.1:{unused_tcp_port}" in stopped.stdout

    with started(invocation) as daemon:
        until_ready(f"http://127.0.0.1:{unused_tcp_port}")
        service.fake.change(pid=daemon.pid)
        running = service.run("status")
        assert running.returncode == 0, running.stderr
        assert re.search(rf"process +{daemon.pid}, up \d+ s", running.stdout)
        assert f"ok (http://127.0.0.1:{unused_tcp_port}, model demo)" in running.stdout

        # Its own port is not taken by somebody else; nothing has changed, so nothing is restarted.
        service.fake.calls()
        again = service.run(*install, MLX_SERVE_MAX_QUEUE="9")
        assert again.returncode == 0, again.stderr
        assert "unchanged" in again.stderr
        assert service.fake.calls() == [["--user", "enable", "mlx-serve.service"]]

        # Another daemon has the port: neither install nor start touches the service.
        service.fake.change(pid=0)
        for words in (("start",), ("install", "--config", str(config))):
            refused = service.run(*words)
            assert refused.returncode == 1
            assert f"is taken by another mlx-serve (process {daemon.pid})" in refused.stderr
        assert service.fake.calls() == []

        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(WAIT_S) == 0
    logged = service.run("logs", "-n", "1000").stdout
    assert f"listening on http://127.0.0.1:{unused_tcp_port}" in logged
    assert "demo is ready" in logged

    assert service.run("uninstall").returncode == 0
    assert list(service.unit.definition.parent.iterdir()) == []
    assert service.run("status").returncode == 4


@linux_only
def test_settings_that_cannot_serve_are_not_installed(service: Service) -> None:
    for flags, reason in (
        (("--port", "0"), "a service needs a port"),
        (("--host", "0.0.0.0"), "mlx-serve keys add"),
        (("--max-queue", "0"), "max_queue"),
    ):
        refused = service.run("install", *flags)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert reason in refused.stderr
    assert not service.unit.definition.exists()


@linux_only
def test_without_a_service_manager_the_error_says_what_to_do(service: Service) -> None:
    refused = service.run("install", PATH="/nowhere")
    assert refused.returncode == 1
    assert "have 'mlx-serve serve' started by what supervises services" in refused.stderr


# ---- the real ones ------------------------------------------------------------------------------


@linux_only
def test_the_real_systemd(unused_tcp_port: int) -> None:
    """Installs, is brought back after a crash, and is removed."""
    if shutil.which("systemctl") is None:
        pytest.skip("there is no systemctl here")
    asked = subprocess.run(["systemctl", "--user", "show-environment"], capture_output=True, text=True)
    if asked.returncode != 0:
        pytest.skip(f"systemd does not run for this user: {asked.stderr.strip()}")
    unit = UserUnit(Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"))
    if unit.definition.exists():
        pytest.skip("this user has the service, which the test would replace")
    is_brought_back(unit, unused_tcp_port, None)


@pytest.mark.macos
def test_the_real_launchd(tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, under a label of its own."""
    monkeypatch.setattr(launchd, "LABEL", "local.mlx-serve.test")
    agent = LaunchAgent(tmp_path, os.getuid())
    is_brought_back(agent, unused_tcp_port, agent.default_log)
    assert not agent.definition.exists()


def is_brought_back(manager: LaunchAgent | UserUnit, port: int, log: Path | None) -> None:
    flags: dict[str, str | bool] = {"port": str(port), "kv_memory": "32MB"}
    spec = make_spec(find_program(), load_settings(**flags), flags, None, os.environ, log)
    try:
        manager.install(spec)
        until_ready(f"http://127.0.0.1:{port}")
        first = manager.state().pid
        assert first is not None
        assert manager.install(spec) == "unchanged"
        assert manager.state().pid == first
        os.kill(first, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [], timeout=WAIT_S)
        deadline = time.monotonic() + 2 * launchd.THROTTLE_S
        while manager.state().pid in (None, first):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        until_ready(f"http://127.0.0.1:{port}")
        if isinstance(manager, LaunchAgent):
            assert plistlib.loads(manager.definition.read_bytes())["Label"] == launchd.LABEL
        manager.stop()
        assert manager.state().pid is None
    finally:
        manager.uninstall()
    assert not manager.state().is_loaded
