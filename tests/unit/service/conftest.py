"""A service to install, and managers with a stand-in for the system's program."""

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_server.services.service.definition import Invocation, ServiceSpec
from tests.fakes import service_manager

ODD = "a \"quoted\" <b>&amp; $HOME ${x} %h \\ 'end' ü"
"""What XML, a shell and systemd each read in their own way."""


@pytest.fixture
def spec(tmp_path: Path) -> ServiceSpec:
    """Of a daemon whose paths and settings are as awkward as they may be."""
    home = tmp_path / "home of A & B <%i>"
    home.mkdir()
    return ServiceSpec(
        Invocation(
            (str(home / "my env" / "bin" / "mlx-serve"), "serve", "--port=9000", f"--served-model-name={ODD}"),
            {"HOME": str(home), "MLX_SERVE_MODEL": ODD},
        ),
        version="1.0",
        home=home,
        stop_s=30,
        open_files=4096,
        log_file=home / "logs" / "mlx-serve.log",
    )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> service_manager.State:
    """`launchctl` and `systemctl` on PATH, and what they are told."""
    for name in ("launchctl", "systemctl"):
        folder = service_manager.install(tmp_path, name)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("FAKE_STATE", str(tmp_path))
    return service_manager.State(tmp_path)


@pytest.fixture
def tcp_neighbour() -> Iterator[int]:
    """The port of a program that is no mlx-serve: it answers whatever it is asked with one line."""

    class Neighbour(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"220 hello\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Neighbour) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
