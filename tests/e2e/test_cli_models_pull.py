"""`mlx-serve models pull` from a hub on loopback that speaks as much of the protocol as a download needs."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlx_server.daemon.model_source import DEMO_FOLDER
from tests.e2e.screen import WAIT_S

MLX_SERVE = [sys.executable, "-c", "from mlx_server.cli.main import main; main()"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {name: (DEMO_FOLDER / name).read_bytes() for name in ("config.json", "tokenizer.json", "chat_template.jinja")}
FILES["model.safetensors"] = os.urandom(1 << 20)
FILES["modeling_evil.py"] = b"raise SystemExit"

Pull = Callable[..., subprocess.CompletedProcess[str]]


class Hub(ThreadingHTTPServer):
    """Serves org/name. broken: files whose body ends in the middle."""

    daemon_threads = True
    broken: frozenset[str] = frozenset()
    fetched: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/models/org/name/revision/main":
            self._json({"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]})
        elif path == f"/api/models/org/name/tree/{COMMIT}":
            self._json([{"type": "file", "path": n, "size": len(d), "oid": _oid(d)} for n, d in FILES.items()])
        elif path.startswith(f"/org/name/resolve/{COMMIT}/") and (name := path.rpartition("/")[2]) in FILES:
            self._file(name)
        elif "gated" in path:
            self._json({}, 403, {"X-Error-Code": "GatedRepo"})
        else:
            self._json({}, 404, {"X-Error-Code": "RepoNotFound"})

    def _json(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})})
        if self.command == "GET":
            self.wfile.write(data)

    def _file(self, name: str) -> None:
        data, etag = FILES[name], _oid(FILES[name])
        status, headers = 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            status, headers["Content-Range"] = 206, f"bytes {start}-{len(data) - 1}/{len(data)}"
            data = data[start:]
        self._head(status, {**headers, "Content-Length": str(len(data))})
        if self.command == "GET":
            self.server.fetched.append(name)
            self.wfile.write(data[: len(data) // 2] if name in self.server.broken else data)
            self.close_connection = True

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as hub:
        hub.fetched = []
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


@pytest.fixture
def pull(hub: Hub, tmp_path: Path) -> Pull:
    def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "HF_HUB_DOWNLOAD_TIMEOUT": "2",
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            **environment,
        }
        env.pop("HF_HUB_OFFLINE", None)
        return subprocess.run(
            [*MLX_SERVE, "models", "pull", name], env=env, capture_output=True, text=True, timeout=WAIT_S
        )

    return run


def test_a_model_is_downloaded_without_its_code(pull: Pull, hub: Hub, tmp_path: Path) -> None:
    done = pull("org/name")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(tmp_path / "hf") and folder.name == COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: data for name, data in FILES.items() if not name.endswith(".py")
    }
    first = len(hub.fetched)
    assert pull("org/name").stdout == done.stdout
    assert len(hub.fetched) == first, "what is there was downloaded again"


def test_a_download_that_breaks_off_is_one_line_and_goes_on_later(pull: Pull, hub: Hub) -> None:
    hub.broken = frozenset({"model.safetensors"})
    done = pull("org/name")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("mlx-serve: the repository org/name cannot be downloaded"), (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    hub.broken = frozenset()
    done = pull("org/name")
    assert done.returncode == 0
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == FILES["model.safetensors"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("org/missing", "does not exist"), ("org/gated", "accept its terms"), ("org/name", "cannot be reached")],
)
def test_why_there_is_no_download(pull: Pull, name: str, words: str) -> None:
    done = pull(name, **({"HF_ENDPOINT": "http://127.0.0.1:1"} if name == "org/name" else {}))
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
