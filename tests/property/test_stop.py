"""Stop strings: what leaves is the text cut where the first stop string begins, however it was split."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlx_server.chat.stop import StopMatcher

ALPHABET = "ab\n"
texts = st.text(ALPHABET, max_size=40)
stop_lists = st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4)


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)] or [""]


def cut_whole(text: str, stops: list[str]) -> tuple[str, bool]:
    begins = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(begins)], True) if begins else (text, False)


@given(texts, stop_lists, st.lists(st.integers(0, 40), max_size=8))
def test_split_text_is_cut_like_whole_text(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    delivered = "".join(matcher.push(piece) for piece in split(text, cuts)) + matcher.flush()
    assert (delivered, matcher.matched) == cut_whole(text, stops)


@given(texts, stop_lists)
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    delivered = ""
    for at, char in enumerate(text):
        delivered += matcher.push(char)
        if matcher.matched:
            return
        seen = text[: at + 1]
        if any(stop in seen for stop in stops):
            continue  # found, and waiting for one that began earlier
        held = seen[len(delivered) :]
        longest = max((size for stop in stops for size in range(len(stop)) if seen.endswith(stop[:size])), default=0)
        assert len(held) == longest


@given(texts)
def test_without_stop_strings_nothing_is_held(text: str) -> None:
    matcher = StopMatcher(())
    assert matcher.push(text) == text
    assert matcher.flush() == ""
    assert not matcher.matched


def test_nothing_leaves_after_the_match() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("go stop now") == "go "
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_an_earlier_beginning_wins_over_an_earlier_end() -> None:
    matcher = StopMatcher(["b", "abc"])
    assert matcher.push("xab") == ""
    assert not matcher.matched
    assert matcher.push("c") == "x"
    assert matcher.matched
