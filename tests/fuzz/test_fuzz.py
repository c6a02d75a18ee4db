"""A short, repeatable run; `make fuzz` is the long one."""

import json
from collections.abc import Iterator

import pytest

from tests.fuzz.daemon import Daemon, running
from tests.fuzz.fuzzer import Fuzzer

CHATS = 25
OTHERS = 5
EVERY = 6
"""Of the boundaries of the chat endpoint's document, which are six hundred."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running() as daemon:
        yield daemon


def test_what_the_document_allows_and_forbids(daemon: Daemon) -> None:
    """No server error, no hang, answers as documented, and the next good request unchanged."""
    fuzzer = Fuzzer(daemon.url)
    for operation in fuzzer.operations:
        is_chat = operation.label == "POST /v1/chat/completions"
        fuzzer.boundaries(operation)
        fuzzer.random(operation, CHATS if is_chat else OTHERS, seed=1)
    fuzzer.check_idle()
    report = fuzzer.report.as_json()
    assert not report["failures"], json.dumps(report["failures"], indent=1)
    assert daemon.alive
    assert daemon.written() == "", "a warning or an error in the daemon's log"
    chats = report["statuses"]["POST /v1/chat/completions positive"]
    assert chats[200] > 3 * chats.get(400, 0), "hardly any legal request came through, so little was tried"
    assert report["statuses"]["POST /v1/chat/completions negative"][400] > 60
