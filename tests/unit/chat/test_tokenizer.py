"""Tokenizers and chat templates of model folders."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mlx_server.chat.defaults import SamplingDefaults, load_defaults
from mlx_server.chat.tokenizer import ChatTokenizer, load_tokenizer
from mlx_server.core.errors import ModelLoadError, RequestError
from mlx_server.daemon.model_source import DEMO_FOLDER
from tests.fakes import small_tokenizer

CHAT = [{"role": "user", "content": "hello 😀"}, {"role": "assistant", "content": "fine"}]


def test_ids_equal_those_of_transformers(tmp_path: Path) -> None:
    folder = small_tokenizer.save_folder(small_tokenizer.byte_level(), tmp_path)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        CHAT, add_generation_prompt=True, return_dict=False
    )
    assert list(load_tokenizer(folder).chat_ids(CHAT)) == theirs


def test_the_demo_model_thinks_only_when_asked() -> None:
    tokenizer = load_tokenizer(DEMO_FOLDER)
    plain = tokenizer.chat_ids(CHAT[:1])
    thinking = tokenizer.chat_ids(CHAT[:1], {"enable_thinking": True})
    assert b"".join(map(tokenizer.token_bytes, thinking)).endswith(b"<|im_start|>assistant\n")
    assert plain[: len(thinking)] == thinking
    assert b"".join(map(tokenizer.token_bytes, plain)).endswith(b"<think>\n\n</think>\n\n")


def test_reasoning_in_a_message_is_seen_by_the_template() -> None:
    """What the model wrote is encoded as it was generated, so that the prefix cache knows it again."""
    tokenizer = load_tokenizer(DEMO_FOLDER)
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
    given = {"role": "assistant", "reasoning_content": "hm", "content": "yes"}
    assert tokenizer.chat_ids([CHAT[0], thought]) == tokenizer.chat_ids([CHAT[0], given])


@pytest.fixture
def loaded() -> ChatTokenizer:
    return small_tokenizer.shared()


def test_the_template_speaks_to_the_client(loaded: ChatTokenizer) -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        loaded.chat_ids([{"role": "user", "content": "refuse me"}])
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "template",
    ["{{ messages[9].content }}", "{{ 1 // 0 }}", "{{ messages.x.y }}", "{% if %}", "{{ messages | nope }}"],
)
def test_whatever_a_template_raises_is_a_request_error(template: str) -> None:
    tokenizer = small_tokenizer.load(small_tokenizer.byte_level(), template)
    with pytest.raises(RequestError):
        tokenizer.chat_ids(CHAT)


@pytest.mark.parametrize(
    "template",
    ["{{ messages.__class__.__mro__[1].__subclasses__() }}", "{{ ''.__class__.__base__ }}"],
)
def test_templates_run_in_a_sandbox(template: str) -> None:
    tokenizer = small_tokenizer.load(small_tokenizer.byte_level(), template)
    try:
        ids = tokenizer.chat_ids(CHAT)
    except RequestError:
        return
    assert "class" not in tokenizer.decode(ids)


def test_a_model_without_a_template_says_so() -> None:
    tokenizer = small_tokenizer.load(small_tokenizer.byte_level(), None)
    with pytest.raises(RequestError, match="no chat template") as caught:
        tokenizer.chat_ids(CHAT)
    assert caught.value.code == "no_chat_template"


@pytest.mark.parametrize(
    "name",
    [
        "chat_template",
        "tokenize",
        "tools",
        "documents",
        "messages",
        "eos_token",
        "conversation",
        "not a name",
    ],
)
def test_a_client_cannot_set_the_renderers_arguments(loaded: ChatTokenizer, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        loaded.chat_ids(CHAT, {name: "x"})
    assert caught.value.field == f"chat_template_kwargs.{name}"


def test_control_tokens_in_template_kwargs_and_tool_arguments_are_text() -> None:
    template = "{{ greeting }}{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}<|im_end|>"
    tokenizer = small_tokenizer.load(small_tokenizer.byte_level(), template)
    call = {"function": {"name": "<|im_end|>", "arguments": {"<|im_end|>": ["<|im_start|>"]}}}
    ids = tokenizer.chat_ids([{"role": "assistant", "tool_calls": [call]}], {"greeting": "<|im_end|>"})
    assert [i for i in ids if i < 3] == [2]
    assert tokenizer.decode(ids).count("<|im_end|>") == 3


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_tokenizer(tmp_path)


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    folder = small_tokenizer.save_folder(small_tokenizer.byte_level(), tmp_path)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    config = folder / "tokenizer_config.json"
    text = config.read_text().replace("{", '{"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]},', 1)
    config.write_text(text)
    with contextlib.suppress(ModelLoadError):
        load_tokenizer(folder)
    assert not marker.exists()


def test_loading_is_quiet(tmp_path: Path) -> None:
    small_tokenizer.save_folder(small_tokenizer.byte_level(), tmp_path)
    code = f"import pathlib, mlx_server.chat.tokenizer as t\nt.load_tokenizer(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, SamplingDefaults()),
        ("{", SamplingDefaults()),
        ("[]", SamplingDefaults()),
        ('{"do_sample": false}', SamplingDefaults(temperature=0.0)),
        ('{"do_sample": false, "temperature": 0.7}', SamplingDefaults(temperature=0.7)),
        ('{"temperature": 0.6, "top_k": 20, "top_p": 0.95}', SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)),
        ('{"temperature": "hot", "top_k": -3, "min_p": true, "top_p": null}', SamplingDefaults()),
    ],
)  # fmt: skip
def test_sampling_defaults_of_a_model(tmp_path: Path, text: str | None, expected: SamplingDefaults) -> None:
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    assert load_defaults(tmp_path) == expected
