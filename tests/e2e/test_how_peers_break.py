"""What has broken other local servers, against the whole daemon with the real engine and the embedded model.

After everything bad, the same good request gets the same good answer. The cases are those of peers' bug trackers
and of published incidents.
"""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from mlx_server.chat.tokenizer import ChatTokenizer, load_tokenizer
from mlx_server.core.settings import Settings
from mlx_server.daemon.model_source import DEMO_FOLDER
from mlx_server.daemon.server_thread import ServerThread
from tests.e2e.gated_executor import Gate, gated_engine

WAIT_S = 60
URL = "/v1/chat/completions"
MAX_BODY = 64 * 1024
QUESTION = "What is the capital of France?"
LONG = "Please say hello. " * 150
"""More than a thousand tokens or so: many chunks where a step holds 64."""


class Daemon:
    """A running daemon and a client. `good` asks the question whose answer must never change."""

    def __init__(self, server: ServerThread, gate: Gate) -> None:
        self.url = server.url
        self.address = (str(urlsplit(server.url).hostname), int(urlsplit(server.url).port or 0))
        self.gate = gate
        self.http = httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False)
        self.failures = 0  # steps that were told to fail
        self.baseline = self.good()

    def post(self, **fields: Any) -> httpx.Response:
        return self.http.post(URL, json=chat(**fields))

    def choice(self, **fields: Any) -> dict[str, Any]:
        """The only choice of a request that must succeed."""
        answer = self.ok(**fields)
        assert len(answer["choices"]) == 1
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def ok(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def text(self, **fields: Any) -> str:
        return str(self.choice(**fields)["message"]["content"])

    def good(self) -> str:
        text = self.text()
        assert text
        return text

    def still_good(self) -> None:
        assert self.good() == self.baseline
        stats = self.until(lambda stats: stats["blocks_used"] == 0)
        assert (stats["running"], stats["waiting"], stats["failed_steps"]) == (0, 0, self.failures)

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.http.get("/health").json()["stats"]
        return stats

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first snapshot of the counters for which the condition holds."""
        deadline = monotonic() + WAIT_S
        while not condition(stats := self.stats()):
            assert monotonic() < deadline, stats
        return stats

    def open_request(self, **fields: Any) -> http.client.HTTPConnection:
        """Sent, and not waited for. The caller closes it."""
        connection = http.client.HTTPConnection(*self.address, timeout=WAIT_S)
        connection.request("POST", URL, json.dumps(chat(**fields)), {"content-type": "application/json"})
        return connection

    def raw(self, data: bytes) -> bytes:
        """Bytes as they are; what comes back until the server has nothing more to say."""
        with socket.create_connection(self.address, timeout=WAIT_S) as connection:
            connection.sendall(data)
            received = b""
            while b"\r\n\r\n" not in received and (part := connection.recv(65536)):
                received += part
            return received


def chat(content: Any = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": content}], "temperature": 0} | fields


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(DEMO_FOLDER)


def start(**settings: Any) -> Iterator[Daemon]:
    gate = Gate()
    fields: dict[str, Any] = {"model": "demo", "kv_memory": "32MB", "max_body_bytes": MAX_BODY} | settings
    with ServerThread(Settings(**fields), gated_engine(gate)) as server:
        daemon = Daemon(server, gate)
        yield daemon
        gate.open()
        daemon.http.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from start(max_num_seqs=8)


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    """Whatever a test did: afterwards the good answer is what it was."""
    yield shared
    shared.gate.open()
    shared.still_good()


@pytest.fixture(scope="module")
def small_shared() -> Iterator[Daemon]:
    yield from start(max_num_seqs=1, max_queue=1, max_num_batched_tokens=64)


@pytest.fixture
def small(small_shared: Daemon) -> Iterator[Daemon]:
    """One row, one place in the queue, 64 tokens a step."""
    yield small_shared
    small_shared.gate.open()
    small_shared.still_good()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


# ---- one bad request must not end the service ---------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a list of prompts": ({"messages": ["a", "b"]}, "messages[0]"),
    "a list of prompts in a message": (
        {"messages": [{"role": "user", "content": ["a", "b"]}]},
        "messages[0].content[0]",
    ),
    "a list of token ids": ({"messages": [{"role": "user", "content": [5, 10**9]}]}, "messages[0].content[0]"),
    "a message without content": ({"messages": [{"role": "user"}]}, "messages[0].content"),
    "an empty list": ({"messages": []}, "messages"),
    "a prompt instead of messages": ({"messages": None, "prompt": ["a", "b"]}, "messages"),
    "stop is a number": ({"stop": 5}, "stop"),
    "stop holds a number": ({"stop": [5]}, "stop[0]"),
    "stop is empty": ({"stop": ""}, "stop"),
    "a bias on a token that does not exist": ({"logit_bias": {"999999": 5}}, "logit_bias"),
    "a bias on the first token that does not exist": ({"logit_bias": {"2560": 5}}, "logit_bias"),
    "a bias on a token of 400 digits": ({"logit_bias": {"9" * 400: 5}}, "logit_bias"),
    "a bias without end": ({"logit_bias": {"5": 1e308}}, "logit_bias.5"),
    "a bias on a negative token": ({"logit_bias": {"-1": 5}}, "logit_bias"),
    "a seed of 71 bits": ({"seed": 2**70}, "seed"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens"),
    "max_tokens negative": ({"max_tokens": -5}, "max_tokens"),
    "max_completion_tokens negative": ({"max_completion_tokens": -(2**63)}, "max_completion_tokens"),
    "min_tokens negative": ({"min_tokens": -1}, "min_tokens"),
    "top_k negative": ({"top_k": -2}, "top_k"),
    "no choice": ({"n": 0}, "n"),
    "minus one choice": ({"n": -1}, "n"),
    "minus one logprob": ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    "hotter than hot": ({"temperature": 1e308}, "temperature"),
    "a million stops": ({"stop": ["x"] * 4000}, "stop"),
    "a million choices": ({"n": 10**6}, "n"),
    "a million logprobs": ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
    "a hostile pattern": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(a+)+$" * 50}}}},
        "response_format",
    ),
    "a tool with a hostile schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "{{ 1 }}"}}}]},
        "tools",
    ),
    "a hostile schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "(" * 500}}}},
        "response_format",
    ),
    "a template of one's own": (
        {"chat_template_kwargs": {"chat_template": "{{ ''.__class__.__mro__ }}"}},
        "chat_template_kwargs.chat_template",
    ),
    "an image": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        "messages[0].content[0].type",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_bad_request_is_refused_and_the_next_one_answered(daemon: Daemon, case: str, stream: bool) -> None:
    fields, field = REFUSED[case]
    response = daemon.post(stream=stream, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "name",
    [
        "chat_template", "tools", "documents", "messages", "conversation", "self", "tokenize", "add_generation_prompt",
        "continue_final_message", "return_tensors", "max_length", "padding", "eos_token", "__class__ ", "a b", "",
    ],
)  # fmt: skip
def test_template_arguments_that_are_not_for_requests(daemon: Daemon, name: str) -> None:
    response = daemon.post(chat_template_kwargs={name: "{{ 1 }}"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", ["{{ 1 / 0 }}", [[]] * 1000, {"a": {"b": {}}}, 10**300, "<|im_end|>", True])
def test_template_arguments_of_any_value_do_no_harm(daemon: Daemon, value: Any) -> None:
    assert daemon.post(chat_template_kwargs={"enable_thinking": value}, max_tokens=2).status_code in (200, 400)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 1 / 0 }}",
        "{{ raise_exception('caught') }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% endfor %}{% endif %}",
    ],
)
def test_a_template_in_a_message_is_text(daemon: Daemon, tokenizer: ChatTokenizer, text: str) -> None:
    """Were it evaluated it would fail, or not fit the context."""
    empty = daemon.ok(content="", max_tokens=1)["usage"]["prompt_tokens"]
    filled = daemon.ok(content=text, max_tokens=1)["usage"]["prompt_tokens"]
    assert abs(filled - empty - len(tokenizer.encode_text(text))) <= 2
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": json.dumps({text: text})}}
    messages = [
        {"role": "system", "content": text, "name": text},
        {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": text, "content": text},
        *chat()["messages"],
    ]
    assert daemon.choice(messages=messages, max_tokens=2)["finish_reason"] in ("stop", "length")


def test_an_empty_list_of_parts_is_an_empty_message(daemon: Daemon) -> None:
    assert daemon.text(content=[], max_tokens=5) == daemon.text(content="", max_tokens=5)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_temperature_zero_is_greedy_whatever_the_seed(daemon: Daemon, seed: int) -> None:
    assert daemon.text(seed=seed) == daemon.baseline
    assert daemon.text(seed=seed, temperature=1e-300) == daemon.baseline


@pytest.mark.parametrize("body", [{"prompt": ["a", "b"]}, {"prompt": ""}, {"prompt": "x", "max_tokens": 0}], ids=str)
def test_an_endpoint_that_does_not_exist_says_so(daemon: Daemon, body: dict[str, Any]) -> None:
    assert daemon.http.post("/v1/completions", json=body).status_code == 404


def test_an_empty_message_is_answered(daemon: Daemon) -> None:
    assert daemon.choice(content="", max_tokens=5)["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("top_k", [2559, 2560, 2561, 10**6, 2**31, 2**40, -1, 0])
def test_top_k_about_and_above_the_vocabulary(daemon: Daemon, top_k: int) -> None:
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 12}
    assert daemon.text(top_k=top_k, **fields) == daemon.text(**fields)


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 - 1, -(2**63)])
def test_odd_seeds_are_honoured(daemon: Daemon, seed: int) -> None:
    fields = {"temperature": 2.0, "max_tokens": 16, "ignore_eos": True}
    text = daemon.text(seed=seed, **fields)
    assert daemon.text(seed=seed, **fields) == text
    assert daemon.text(seed=(seed + 1) % 2**63, **fields) != text


# ---- the prefix cache ---------------------------------------------------------------------------


def test_an_exact_repeat_gives_the_same_text(daemon: Daemon) -> None:
    content = LONG[:700]
    first = daemon.ok(content=content, max_tokens=40, ignore_eos=True)
    for _ in range(3):
        again = daemon.ok(content=content, max_tokens=40, ignore_eos=True)
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1


def test_resending_a_prompt_with_its_own_answer(daemon: Daemon) -> None:
    """The exact hit that stops mlx_lm.server, twice, and against an engine that has cached nothing of it."""
    history = [*chat()["messages"], {"role": "assistant", "content": daemon.baseline}]
    for messages in (history, [*history, {"role": "user", "content": "And of Italy?"}]):
        first = daemon.ok(messages=messages, max_tokens=20)
        again = daemon.ok(messages=messages, max_tokens=20)
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1


def test_a_block_at_another_offset_does_not_hit(daemon: Daemon) -> None:
    """The same 32 tokens behind another beginning: a block's hash must hold its parents."""
    tail = "tell me a story about a small fox " * 8
    one, two = daemon.text(content="A" + tail, max_tokens=24), daemon.text(content="BB" + tail, max_tokens=24)
    for content, text in (("BB" + tail, two), ("A" + tail, one)):
        assert daemon.text(content=content, max_tokens=24) == text
    alone = next(cold := start(max_num_seqs=8, prefix_cache=False))
    try:
        assert alone.text(content="BB" + tail, max_tokens=24) == two
        assert alone.baseline == daemon.baseline
        assert alone.ok()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    finally:
        next(cold, None)


# ---- batching -----------------------------------------------------------------------------------


def test_a_greedy_request_among_hot_ones_stays_greedy(daemon: Daemon, threads: ThreadPoolExecutor) -> None:
    hot = [
        threads.submit(daemon.text, content=f"Story {i}", temperature=1.9, seed=i, max_tokens=60, ignore_eos=True)
        for i in range(5)
    ]
    daemon.until(lambda stats: stats["running"] > 0)
    for _ in range(3):
        assert daemon.good() == daemon.baseline
    assert len({future.result(WAIT_S) for future in hot}) == 5


def test_a_seeded_request_is_the_same_in_a_crowd(daemon: Daemon, threads: ThreadPoolExecutor) -> None:
    fields = {"temperature": 1.5, "seed": 42, "max_tokens": 30, "ignore_eos": True}
    alone = daemon.text(**fields)
    crowd = [threads.submit(daemon.text, content=f"Count to {i}", **(fields | {"seed": i})) for i in range(6)]
    assert daemon.text(**fields) == alone
    for future in crowd:
        future.result(WAIT_S)


def test_bad_requests_beside_a_stream_leave_it_alone(daemon: Daemon, threads: ThreadPoolExecutor) -> None:
    fields = {"content": "Tell me a story.", "max_tokens": 80, "ignore_eos": True}
    alone = daemon.text(**fields)
    running: Future[str] = threads.submit(daemon.text, **fields)
    for bad, _ in REFUSED.values():
        assert daemon.post(**bad).status_code == 400
    assert running.result(WAIT_S) == alone


# ---- fields that others accept and ignore -------------------------------------------------------


def test_stop_strings_do_not_care_about_token_boundaries(daemon: Daemon, tokenizer: ChatTokenizer) -> None:
    text = daemon.baseline
    pieces = [tokenizer.token_bytes(i).decode() for i in tokenizer.encode_text(text)]
    starts = [sum(map(len, pieces[:i])) for i in range(1, len(pieces))]
    across = [text[at - 1 : at + 1] for at in starts if 0 < at < len(text)]
    assert across, "the answer is a single token"
    for stop in {*across[:6], text[1:], text[-2:]}:
        choice = daemon.choice(stop=stop)
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert choice["finish_reason"] == "stop"
    assert daemon.choice(stop=["never there", text + "!"])["message"]["content"] == text


def test_the_finish_reason_is_true(daemon: Daemon) -> None:
    whole = daemon.ok()
    assert whole["choices"][0]["finish_reason"] == "stop"
    tokens = whole["usage"]["completion_tokens"]
    assert tokens > 1
    for max_tokens, reason in ((1, "length"), (tokens - 1, "length"), (tokens, "length"), (tokens + 1, "stop")):
        answer = daemon.ok(max_tokens=max_tokens)
        assert answer["choices"][0]["finish_reason"] == reason, max_tokens
        assert answer["usage"]["completion_tokens"] == min(max_tokens, tokens)
        assert daemon.baseline.startswith(answer["choices"][0]["message"]["content"])


def test_min_tokens_and_ignore_eos(daemon: Daemon) -> None:
    tokens = daemon.ok()["usage"]["completion_tokens"]
    forced = daemon.ok(ignore_eos=True, max_tokens=tokens + 20)
    assert forced["usage"]["completion_tokens"] == tokens + 20
    assert forced["choices"][0]["finish_reason"] == "length"
    longer = daemon.ok(min_tokens=tokens + 10, max_tokens=tokens + 40)
    assert longer["usage"]["completion_tokens"] >= tokens + 10


def test_several_choices_are_different_and_repeatable(daemon: Daemon) -> None:
    fields = {"n": 4, "temperature": 2.0, "seed": 9, "max_tokens": 16, "ignore_eos": True}
    first, again = daemon.ok(**fields), daemon.ok(**fields)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert len(set(texts)) == 4
    assert again["choices"] == first["choices"]
    assert daemon.text(**(fields | {"n": 1})) == texts[0]
    assert first["usage"]["completion_tokens"] == 64


def test_logprobs_are_of_the_tokens_that_were_sampled(daemon: Daemon) -> None:
    fields = {"logprobs": True, "top_logprobs": 5, "temperature": 1.5, "seed": 5, "max_tokens": 20, "ignore_eos": True}
    answer = daemon.ok(**fields)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    for entry in entries:
        top = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(top) == 5
        assert top == sorted(top, reverse=True)
        assert sum(2.718281828**p for p in top) <= 1.001
        assert entry["logprob"] <= top[0] + 1e-4
        named = [other for other in entry["top_logprobs"] if other["bytes"] == entry["bytes"]]
        assert all(abs(other["logprob"] - entry["logprob"]) < 1e-3 for other in named[:1])


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"repetition_penalty": 1.8},
        {"temperature": 1.9},
        {"top_p": 0.3},
        {"top_k": 1},
        {"min_p": 0.9},
        {"seed": 8},
        {"logit_bias": {str(i): -100 for i in range(3, 2000)}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_parameter_changes_the_text(daemon: Daemon, fields: dict[str, Any]) -> None:
    """Accepted and ignored would be a lie."""
    common = {"content": "Tell me a story.", "temperature": 1.5, "seed": 7, "max_tokens": 60, "ignore_eos": True}
    assert daemon.text(**(common | fields)) != daemon.text(**common)


# ---- clients that go away -----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_disconnect_in_prefill_frees_the_row(small: Daemon, stream: bool) -> None:
    before = small.stats()
    small.gate.hold_after(2)
    connection = small.open_request(content=LONG + f" {stream}", stream=stream)
    small.gate.wait_held()
    in_prefill = small.stats()
    assert in_prefill["running"] == 1
    assert in_prefill["generated_tokens"] == before["generated_tokens"]
    connection.close()
    small.until(lambda stats: stats["running"] == 0)
    launched = small.gate.launched
    small.gate.open()
    after = small.until(lambda stats: stats["blocks_used"] == 0)
    assert after["generated_tokens"] == before["generated_tokens"]
    assert after["requests_finished"] == before["requests_finished"] + 1
    assert small.gate.launched - launched <= 3, "the prefill went on for nobody"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_disconnect_while_decoding_frees_the_row(small: Daemon, stream: bool) -> None:
    before = small.stats()["generated_tokens"]
    connection = small.open_request(stream=stream, ignore_eos=True, max_tokens=6000)
    small.until(lambda stats: stats["generated_tokens"] > before + 3)
    connection.close()
    after = small.until(lambda stats: stats["running"] == 0 and stats["blocks_used"] == 0)
    assert after["generated_tokens"] < before + 5000


def test_a_disconnect_in_the_queue_frees_the_place(small: Daemon, threads: ThreadPoolExecutor) -> None:
    small.gate.hold_after(0)
    running = threads.submit(small.text)
    small.gate.wait_held()
    waiting = small.open_request(content="I wait", max_tokens=5)
    small.until(lambda stats: stats["waiting"] == 1)
    waiting.close()
    small.until(lambda stats: stats["waiting"] == 0)
    next_one = threads.submit(small.text)
    small.until(lambda stats: stats["waiting"] == 1)
    small.gate.open()
    assert running.result(WAIT_S) == next_one.result(WAIT_S) == small.baseline


def test_a_full_queue_is_a_429_and_the_others_are_answered(small: Daemon, threads: ThreadPoolExecutor) -> None:
    small.gate.hold_after(0)
    running = threads.submit(small.text)
    small.gate.wait_held()
    waiting = threads.submit(small.text)
    small.until(lambda stats: stats["waiting"] == 1)
    for stream in (False, True):
        refused = small.post(stream=stream)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
    small.gate.open()
    assert running.result(WAIT_S) == waiting.result(WAIT_S) == small.baseline


def test_a_step_that_fails_once_costs_nobody_the_answer(shared: Daemon, threads: ThreadPoolExecutor) -> None:
    """A failed step has changed nothing: everybody in it starts again and gets the usual text."""
    shared.failures += 1
    shared.gate.hold_after(0)
    crowd = [threads.submit(shared.text) for _ in range(4)]
    shared.gate.wait_held()
    shared.until(lambda stats: stats["running"] + stats["waiting"] == 4)
    shared.gate.fail_next()
    shared.gate.open()
    assert {future.result(WAIT_S) for future in crowd} == {shared.baseline}
    shared.still_good()


def test_a_request_whose_steps_fail_again_is_failed_alone(shared: Daemon, threads: ThreadPoolExecutor) -> None:
    shared.failures += 2
    shared.gate.fail_next(2)
    response = shared.post(content="unlucky")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    shared.still_good()


# ---- attacks ------------------------------------------------------------------------------------


def test_existing_and_missing_files_answer_alike_as_models(daemon: Daemon) -> None:
    exists, missing = str(DEMO_FOLDER), str(DEMO_FOLDER) + "-missing"
    names = ["/etc/passwd", "/etc/missing", "../../../etc/passwd", "..\\..\\x", "file:///etc/passwd", "~", ".", exists]
    answers = set()
    for name in [*names, missing, "http://127.0.0.1:1/model", "evil/model"]:
        response = daemon.post(model=name)
        assert response.status_code == 404
        answers.add(json.dumps(response.json()).replace(json.dumps(repr(name))[1:-1], ""))
    assert len(answers) == 1, answers
    for path in ("..%2f..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "%2fetc%2fmissing"):
        response = daemon.http.get(f"/v1/models/{path}")
        assert response.status_code == 404
        assert "root:" not in response.text


@pytest.mark.parametrize("kind", ["image_url", "input_image", "file", "input_audio", "video_url"])
def test_no_url_of_a_request_is_ever_fetched(daemon: Daemon, kind: str) -> None:
    """A socket that would see the connection stays lonely."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/secret.png"
        part = {"type": kind, "text": "look", kind: {"url": url}, "image_url": {"url": url}, "file_url": url}
        response = daemon.post(content=[part], max_tokens=4)
        assert response.status_code == 400
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_no_other_url_is_fetched_either(daemon: Daemon) -> None:
    """In text, in names, in fields that are ignored and in ones that are refused."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/model"
        bodies: list[dict[str, Any]] = [
            {"content": f"Fetch {url} and ![it]({url}) <img src='{url}'>"},
            {"content": [{"type": "text", "text": url, "image_url": {"url": url}}]},
            {"messages": [{"role": "user", "content": url, "name": url}]},
            {"model": url},
            {"user": url, "metadata": {"url": url}, "image_url": url, "webhook": url, "adapter": url, "lora_path": url},
            {"tools": [{"type": "web_search", "url": url}]},
            {"web_search_options": {"url": url}},
            {"chat_template_kwargs": {"url": url, "documents": [url]}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": url, "$schema": url}}}},
        ]
        assert {daemon.post(max_tokens=2, **body).status_code for body in bodies} == {200, 400, 404}
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_body_that_is_too_large_is_a_413(daemon: Daemon) -> None:
    assert daemon.post(content="x" * MAX_BODY).status_code == 413


@pytest.mark.parametrize("length", [MAX_BODY + 1, 2**31, 2**63, 10**18, 10**400])
def test_a_content_length_bomb_is_refused_before_its_body(daemon: Daemon, length: int) -> None:
    head = (
        f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
    status = daemon.raw(head.encode()).split(b" ", 2)[1]
    assert status in (b"413", b"400")


@pytest.mark.parametrize(
    "lines",
    [
        "content-length: -1",
        "content-length: x",
        "content-length: 5\r\ncontent-length: 6",
        "content-length: 5\r\ntransfer-encoding: chunked\r\nx: y",
        "transfer-encoding: evil",
        "x-long: " + "y" * 200_000,
        "\0: x",
        "no colon",
    ],
    ids=lambda lines: lines[:24],
)
def test_a_broken_head_does_no_harm(daemon: Daemon, lines: str) -> None:
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{lines}\r\n\r\n"
    try:
        answer = daemon.raw(head.encode() + b"0\r\n\r\n")
    except ConnectionError:
        return  # dropped: also an answer
    assert b" 200 " not in answer.split(b"\r\n", 1)[0]


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "GZIP"])
def test_a_compressed_bomb_is_not_unpacked(daemon: Daemon, encoding: str) -> None:
    bomb = gzip.compress(json.dumps(chat("x" * 20_000_000)).encode())
    assert len(bomb) < MAX_BODY
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert daemon.http.post(URL, content=bomb, headers=headers).status_code == 415
    del headers["content-encoding"]
    assert daemon.http.post(URL, content=bomb, headers=headers).status_code == 400


def test_a_body_longer_than_it_said_is_no_second_request(daemon: Daemon) -> None:
    """What follows the declared length is no part of the body, and what it smuggles in is not answered as good."""
    smuggled = "GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n"
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 4\r\n\r\n"
    with socket.create_connection(daemon.address, timeout=WAIT_S) as connection:
        connection.sendall((head + '{"a"' + smuggled).encode())
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b" 200 " not in received


def test_a_body_shorter_than_it_said_is_never_answered(daemon: Daemon) -> None:
    body = json.dumps(chat()).encode()
    head = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    before = daemon.stats()["requests_finished"]
    with socket.create_connection(daemon.address, timeout=WAIT_S) as connection:
        connection.sendall(f"{head}content-length: {len(body) + 1}\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 200 " not in received
    assert daemon.stats()["requests_finished"] == before


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000"])
def test_no_origin_gets_a_cors_grant(daemon: Daemon, origin: str) -> None:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    answers = [
        daemon.http.options(URL, headers=asked),
        daemon.http.get("/v1/models", headers={"origin": origin}),
        daemon.http.post(URL, json=chat(max_tokens=1), headers={"origin": origin}),
    ]
    for answer in answers:
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


def test_a_page_of_another_site_cannot_post_without_asking(daemon: Daemon) -> None:
    headers = {"content-type": "text/plain"}
    assert daemon.http.post(URL, content=json.dumps(chat()), headers=headers).status_code == 415
    headers["origin"] = "http://evil.example"
    assert daemon.http.post(URL, content=json.dumps(chat()), headers=headers).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8642", "8.8.8.8"])
def test_dns_rebinding_is_refused(daemon: Daemon, host: str) -> None:
    for path in ("/v1/models", "/health"):
        assert daemon.http.get(path, headers={"host": host}).status_code == 403
    assert daemon.http.post(URL, json=chat(), headers={"host": host}).status_code == 403


def test_prompts_and_answers_are_not_in_the_logs(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    """At no level, not those of libraries either, and not when the request is refused or fails."""
    secret = "zebra-quartz-1789"
    caplog.set_level(logging.DEBUG)
    answer = daemon.text(content=f"Repeat this: {secret}", max_tokens=40, ignore_eos=True)
    daemon.post(content=secret, stop=5)
    daemon.post(content=secret, model=None, user=secret, stream=True, max_tokens=3)
    daemon.post(messages=[{"role": secret, "content": secret}])
    logged = "\n".join(str(record.__dict__) + record.getMessage() for record in caplog.records)
    assert "request=req-" in logged, "nothing was captured at all"
    assert secret not in logged
    assert answer[:20] not in logged
