"""DNS rebinding: under which names the daemon answers."""

import socket
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx
import pytest

from mlx_server.api.host_guard import CONTAINER_NAMES, HostGuard, is_loopback, own_names
from mlx_server.api.serving import ServingState
from mlx_server.core.errors import SettingsError
from mlx_server.core.settings import Settings, load_settings
from mlx_server.daemon.app import create_app
from tests.fakes.scripted_engine import ScriptedEngine
from tests.integration.api.helpers import URL, chat
from tests.integration.api.live import running

OURS = [
    "localhost", "localhost:8642", "LocalHost:8642", "localhost.", "localhost.:8642", "app.localhost", "127.0.0.1",
    "127.0.0.1:8642", "127.8.9.1", "[::1]", "[::1]:8642", "[::1]:", "[0:0:0:0:0:0:0:1]:80", "host.docker.internal:8642",
    "host.containers.internal",
]  # fmt: skip
NEVER = [
    "evil.example", "evil.example:8642", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example",
    "127.0.0.1.nip.io:8642", "notlocalhost", "evil-localhost", "printer.local", "db.internal", "site.test", "intranet",
    "localhost@evil.example", "evil.example@localhost", "localhost:80@evil.example", "localhost:x", "localhost:80:80",
    "localhost:123456", "localhost,evil.example", "localhost evil.example", "localhost/", "http://localhost",
    "[::1", "::1", "[::1]evil.example", "[localhost]", "[127.0.0.1].evil.example", "localhost..", "", " ", ".", ":8642",
    "2130706433", "0x7f000001", "127.1", "[fe80::1%25en0]", "\xe9vil.example", "localhost\x00",
]  # fmt: skip
OTHER_ADDRESSES = ["8.8.8.8", "192.168.1.20:8642", "10.0.0.1", "[2001:db8::1]:8642", "0.0.0.0:8642", "[::]:8642"]


def guard(**settings: object) -> Callable[[str], bool]:
    async def nothing(scope: object, receive: object, send: object) -> None: ...

    return HostGuard(nothing, Settings(**settings)).allows  # type: ignore[arg-type]


def test_loopback_binds_answer_to_names_of_this_machine_only() -> None:
    allows = guard()
    own = [*own_names(), *(f"{name.upper()}:8642" for name in own_names())]
    assert socket.gethostname().lower().rstrip(".") in own
    assert [host for host in [*OURS, *own, *CONTAINER_NAMES] if not allows(host)] == []
    assert [host for host in [*NEVER, *OTHER_ADDRESSES] if allows(host)] == []


def test_other_binds_answer_to_addresses_too() -> None:
    """An address cannot be rebound, and nobody knows which of its addresses a machine is asked by."""
    allows = guard(host="0.0.0.0")
    assert [host for host in [*OURS, *own_names(), *OTHER_ADDRESSES] if not allows(host)] == []
    assert [host for host in NEVER if allows(host)] == []


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_the_settings_can_add_names(bind: str) -> None:
    allows = guard(host=bind, allowed_hosts="llm.example.org, Studio.lan,192.168.1.20")
    for host in ("llm.example.org", "LLM.example.org:443", "studio.lan.", "192.168.1.20:8642"):
        assert allows(host)
    for host in ("example.org", "x.llm.example.org", "studio.lan.evil.example"):
        assert not allows(host)


@pytest.mark.parametrize("name", ["*", "*.example.org", "http://x", "x:80", "x/y", "x y", "example.org."])
def test_a_name_to_add_that_is_none_stops_the_start(name: str) -> None:
    with pytest.raises(SettingsError, match=r"allowed_hosts .*must be a host name or an address"):
        load_settings(allowed_hosts=name)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("", False), ("0", False), ("192.168.1.2", False), ("studio.local", False),
        ("localhost.evil.example", False),
    ],
)  # fmt: skip
def test_what_counts_as_listening_to_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/nothing"])
async def test_a_foreign_host_is_refused_everywhere(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str
) -> None:
    for host in ("evil.example", "localhost.evil.example:8642", "8.8.8.8"):
        for response in (
            await client.get(path, headers={"host": host}),
            await client.post(URL, json=chat(), headers={"host": host}),
            await client.options(URL, headers={"host": host}),
        ):
            assert response.status_code == 403
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "foreign_host")
            assert "--allowed-hosts" in error["message"]
    assert not engine.requests


async def test_two_hosts_are_none(client: httpx.AsyncClient) -> None:
    headers = [("host", "localhost"), ("host", "localhost")]
    assert (await client.get("/v1/models", headers=headers)).status_code == 403


async def test_a_foreign_host_is_refused_on_other_binds_too(serving: ServingState) -> None:
    serving.settings = Settings(model="org/small", host="0.0.0.0")
    transport = httpx.ASGITransport(create_app(serving))
    async with httpx.AsyncClient(transport=transport, base_url="http://192.168.1.20:8642") as client:
        assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 403
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /v1/models HTTP/1.1\r\nhost: localhost", 200),
        ("GET /v1/models HTTP/1.1", 400),
        ("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example", 400),
        ("GET /v1/models HTTP/1.1\r\nhost: localhost\r\nHOST: localhost", 400),
        ("GET /v1/models HTTP/1.1\r\nhost:", 403),
        ("GET /v1/models HTTP/1.1\r\nhost: evil.example", 403),
        ("GET /v1/models HTTP/1.1\r\nhost: user@localhost", 403),
        ("GET /v1/models HTTP/1.0", 200),
        ("GET /v1/models HTTP/1.0\r\nhost: evil.example", 403),
        ("GET /v1/models HTTP/1.0\r\nhost: localhost\r\nhost: evil.example", 400),
        ("GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost", 404),
        ("GET http://localhost/v1/models HTTP/1.1\r\nhost: evil.example", 403),
        ("GET //evil.example/v1/models HTTP/1.1\r\nhost: localhost", 404),
        ("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nx-forwarded-host: localhost", 403),
        ("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nforwarded: host=localhost", 403),
    ],
)  # fmt: skip
async def test_what_a_socket_may_say(folder: Path, head: str, status: int) -> None:
    async with running(folder, ScriptedEngine()) as server:
        answer = await server.ask(f"{head}\r\nconnection: close\r\n\r\n".encode())
        assert answer.status == status
