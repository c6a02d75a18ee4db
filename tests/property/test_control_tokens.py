"""User-supplied text never becomes a control token, and is otherwise encoded as what it says."""

from hypothesis import given
from hypothesis import strategies as st

from mlx_server.chat.control_tokens import BREAK, END, START, ControlTokens
from mlx_server.chat.tokenizer import ChatTokenizer
from tests.fakes import small_tokenizer

fragments = st.sampled_from(
    ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<", "|", "<|im_", "end|>", "im_start", "|>", "<think>", "\n",
     "user", "hello ", " ", START, END, BREAK, "<|im_end|", "é", "😀"]
)  # fmt: skip
hostile = st.lists(fragments, max_size=12).map("".join)


def control_ids(tokenizer: ChatTokenizer) -> set[int]:
    backend = tokenizer._backend
    return {token_id for token in tokenizer.control_tokens if (token_id := backend.token_to_id(token)) is not None}


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), hostile), min_size=1, max_size=4))
def test_control_tokens_are_those_of_the_template(chat: list[tuple[str, str]]) -> None:
    for tokenizer in (small_tokenizer.shared(), small_tokenizer.shared_fallback()):
        control = control_ids(tokenizer)
        if any(role == "assistant" for role, _ in chat):  # it may write the visible ones, as the model does
            control &= tokenizer._special_ids
        ids = tokenizer.chat_ids([{"role": role, "content": content} for role, content in chat])
        plain = tokenizer.chat_ids([{"role": role, "content": "x"} for role, _ in chat])
        assert [i for i in ids if i in control] == [i for i in plain if i in control]


@given(hostile)
def test_text_keeps_its_bytes(text: str) -> None:
    tokenizer = small_tokenizer.shared()
    expected = text
    for mark in (START, END, BREAK):
        expected = expected.replace(mark, "\ufffd")
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode_text(text))).decode() == expected


@given(st.text(max_size=60))
def test_plain_text_is_encoded_as_by_the_tokenizer_itself(text: str) -> None:
    tokenizer = small_tokenizer.shared()
    plain = text.encode(errors="replace").decode()
    if any(mark in plain for mark in (START, END, BREAK)):
        return
    assert list(tokenizer.encode_text(plain)) == tokenizer._backend.encode(plain, add_special_tokens=False).ids


@given(st.lists(st.text("abc", min_size=2, max_size=4), min_size=1, max_size=5), st.text("abc", max_size=20))
def test_no_token_survives_a_cut_even_where_tokens_overlap(tokens: list[str], text: str) -> None:
    """Joined with anything on either side, the pieces between breaks hold no control token."""
    cut = ControlTokens(tokens).cut_all(text)
    assert cut.replace(BREAK, "") == text
    assert not any(token in piece for piece in cut.split(BREAK) for token in tokens)
