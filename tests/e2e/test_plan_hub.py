"""`mlx-serve plan` of a model on the hub: a loopback hub, of whose weights only the headers are read."""

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlx_server.daemon.model_source import DEMO_FOLDER

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LAYERS, KV_ROWS, HIDDEN = 32, 1024, 4096
WEIGHTS_BYTES = 6 << 30
"""Of a file whose header alone exists here."""


def header() -> bytes:
    """Of a safetensors file with the attention of a large model and one other tensor."""
    tensors: dict[str, Any] = {}
    offset = 0
    shapes = {
        f"model.layers.{i}.self_attn.{kind}_proj.weight": (KV_ROWS, HIDDEN) for i in range(LAYERS) for kind in "kv"
    }
    rest = (WEIGHTS_BYTES - sum(2 * a * b for a, b in shapes.values())) // 2
    for name, shape in {**shapes, "model.rest": (rest,)}.items():
        size = 2
        for part in shape:
            size *= part
        tensors[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "hidden_size": HIDDEN,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
}


class Handler(BaseHTTPRequestHandler):
    sent = 0

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": header()}
        owner, _, name = self.path.rpartition("/")
        if not owner.startswith("/org/name/resolve/") or name not in files:
            code = "EntryNotFound" if owner.startswith("/org/name/") else "RepoNotFound"
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = files[name]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", f'"{len(data):040d}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            Handler.sent += len(data)
            self.wfile.write(data)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        yield {
            **os.environ,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
            "XDG_CONFIG_HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
            "PYTHONPATH": str(DEMO_FOLDER.parents[1]),
        }
        hub.shutdown()
        thread.join()


def plan(environment: dict[str, str], name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from mlx_server.cli.main import main; main()", "plan", "--model", name, "--json"]
    return subprocess.run(
        [*command, "--context", "32k"], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_model_is_planned_before_it_is_downloaded(environment: dict[str, str]) -> None:
    done = plan(environment, "org/name")
    shape = json.loads(done.stdout)["shape"]
    assert shape["weight_bytes"] in (WEIGHTS_BYTES, 2 * WEIGHTS_BYTES)  # as stored, or as float32
    assert shape["kv_elements"] == LAYERS * 2 * KV_ROWS
    assert Handler.sent < 100_000


def test_a_repository_that_is_not_there(environment: dict[str, str]) -> None:
    done = plan(environment, "org/other")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the repository org/other does not exist on huggingface.co" in done.stderr
    assert "Traceback" not in done.stderr
