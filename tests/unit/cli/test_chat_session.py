from pathlib import Path

import pytest

from mlx_server.cli.chat_client import ChatError
from mlx_server.cli.chat_session import OPTIONS, ChatSession, Message


def session_with(*exchanges: tuple[str, str]) -> ChatSession:
    session = ChatSession(model="m")
    for prompt, answer in exchanges:
        session.record(prompt, answer)
    return session


def test_request_carries_everything_said() -> None:
    session = session_with(("a", "b"))
    session.system = "be brief"
    session.set_option("temperature", "0.2")
    session.thinking = False
    assert session.request("c") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "temperature": 0.2,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_a_turn_without_an_answer_leaves_no_trace_but_can_be_retried() -> None:
    session = session_with(("a", "b"), ("c", ""))
    assert session.messages == [Message("user", "a"), Message("assistant", "b")]
    assert session.take_retry() == "c"
    assert len(session.messages) == 2


def test_retry_forgets_the_answer_it_replaces() -> None:
    session = session_with(("a", "b"), ("c", "d"))
    assert session.take_retry() == "c"
    assert [message.content for message in session.messages] == ["a", "b"]


def test_undo() -> None:
    session = session_with(("a", "b"))
    assert session.undo() == "a"
    assert session.undo() is None
    assert session.request("x")["messages"] == [{"role": "user", "content": "x"}]


def test_clear_keeps_system_and_options() -> None:
    session = session_with(("a", "b"))
    session.system = "s"
    session.set_option("seed", "1")
    session.clear()
    assert (session.messages, session.system, session.options) == ([], "s", {"seed": 1})
    assert session.take_retry() is None


@pytest.mark.parametrize("name", OPTIONS)
def test_options_keep_to_their_range(name: str) -> None:
    option = OPTIONS[name]
    session = ChatSession(model="m")
    for text in ("nan", "one", str(option.high + 1)):
        with pytest.raises(ChatError, match=name):
            session.set_option(name, text)
    session.set_option(name, str(option.kind(option.high)))
    assert name in session.request("x")
    session.set_option(name, "default")
    assert name not in session.request("x")


def test_unknown_option_lists_the_known() -> None:
    with pytest.raises(ChatError, match="temperature"):
        ChatSession(model="m").set_option("heat", "1")


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    session = session_with(("a", "bß"))
    session.system = "s"
    session.set_option("top_k", "3")
    session.save(path)
    assert path.stat().st_mode & 0o077 == 0
    other = ChatSession(model="another")
    other.load(path)
    assert (other.messages, other.system, other.options) == (session.messages, "s", {"top_k": 3})
    assert other.model == "another"
    assert other.take_retry() == "a"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"messages": [{"role": "user", "content": "a"}]}', '{"messages": [{"role": "x"}]}']
)
def test_load_refuses_what_is_not_a_chat(tmp_path: Path, content: str) -> None:
    path = tmp_path / "chat.json"
    path.write_text(content)
    session = session_with(("a", "b"))
    with pytest.raises(ChatError, match="not a saved chat"):
        session.load(path)
    assert len(session.messages) == 2


def test_file_errors_are_chat_errors(tmp_path: Path) -> None:
    session = ChatSession(model="m")
    with pytest.raises(ChatError, match="cannot be read: No such file"):
        session.load(tmp_path / "missing.json")
    with pytest.raises(ChatError, match="cannot be written: No such file"):
        session.save(tmp_path / "missing" / "chat.json")
