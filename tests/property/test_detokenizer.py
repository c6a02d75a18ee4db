"""Incremental decoding equals decoding everything at once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mlx_server.chat.detokenizer import ByteDetokenizer, WindowDetokenizer
from mlx_server.chat.tokenizer import ChatTokenizer
from tests.fakes import small_tokenizer

words = st.sampled_from(["hello", " world", "naïve", "日本語", "😀😃", "\n", "<|im_end|>", "«plain added»", "  "])
texts = st.one_of(st.text(max_size=30), st.lists(words, max_size=10).map("".join))


def stream(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> str:
    detokenizer = tokenizer.detokenizer()
    return "".join([detokenizer.push(token_id) for token_id in token_ids]) + detokenizer.flush()


@given(st.lists(st.integers(0, 620), max_size=60))
def test_byte_level_pieces_equal_the_whole_for_any_ids(token_ids: list[int]) -> None:
    tokenizer = small_tokenizer.shared()
    assert isinstance(tokenizer.detokenizer(), ByteDetokenizer)
    assert stream(tokenizer, token_ids) == tokenizer.decode(token_ids)


@given(texts)
def test_byte_level_text_survives(text: str) -> None:
    tokenizer = small_tokenizer.shared()
    plain = text.encode(errors="replace").decode()
    assert stream(tokenizer, tokenizer.encode_text(plain)) == plain


@given(texts)
def test_byte_fallback_pieces_equal_the_whole_for_encoded_text(text: str) -> None:
    tokenizer = small_tokenizer.shared_fallback()
    assert isinstance(tokenizer.detokenizer(), WindowDetokenizer)
    token_ids = tokenizer.encode_text(text)
    assert stream(tokenizer, token_ids) == tokenizer.decode(token_ids)


@given(st.lists(st.integers(0, 299), max_size=60))
def test_byte_fallback_pieces_equal_the_whole_for_tokens_that_are_not_bytes(token_ids: list[int]) -> None:
    tokenizer = small_tokenizer.shared_fallback()
    ids = [token_id for token_id in token_ids if tokenizer.token_bytes(token_id).isascii()]
    assert stream(tokenizer, ids) == tokenizer.decode(ids)


def test_a_character_of_several_tokens_leaves_once_and_whole() -> None:
    tokenizer = small_tokenizer.shared()
    token_ids = tokenizer.encode_text("\U0001f9d1")
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    assert len(pieces) > 1
    assert pieces == [""] * (len(pieces) - 1) + ["\U0001f9d1"]


def test_an_unfinished_character_is_flushed_as_a_replacement() -> None:
    for tokenizer in (small_tokenizer.shared(), small_tokenizer.shared_fallback()):
        token_ids = tokenizer.encode_text("\U0001f9d1")[:-1]
        detokenizer = tokenizer.detokenizer()
        assert "".join(detokenizer.push(token_id) for token_id in token_ids) == ""
        assert detokenizer.flush() == tokenizer.decode(token_ids)


def test_many_tokens_without_text_are_not_piled_up() -> None:
    tokenizer = small_tokenizer.shared_fallback()
    detokenizer = tokenizer.detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)
    broken = tokenizer.encode_text("\U0001f9d1")[0]
    for _ in range(1000):
        detokenizer.push(broken)
        assert len(detokenizer._pending) < 32
