"""Who is let in, who is suspected and who is given up, step by step. At random: tests/property/test_blame.py."""

from __future__ import annotations

import pytest

from mlx_server.core.blame import Blame


def running(*request_ids: str, beyond_doubt: bool = True) -> Blame:
    """Requests that have started, and got on unless said otherwise."""
    blame = Blame()
    start(blame, *request_ids)
    for request_id in request_ids if beyond_doubt else ():
        blame.progressed(request_id, 1)
    return blame


def start(blame: Blame, *request_ids: str) -> None:
    for request_id in request_ids:
        assert blame.may_start(request_id)
        blame.started(request_id)


def fail(blame: Blame, **positions: int) -> str | None:
    return blame.failed(positions)


def may_start(blame: Blame, among: str) -> str:
    """Requests are named by one letter each."""
    return "".join(r for r in among if blame.may_start(r))


def test_without_a_failure_everybody_may_start() -> None:
    blame = running("a", beyond_doubt=False)
    assert blame.candidates is None
    assert may_start(blame, "abc") == "abc"
    assert blame.in_doubt == {"a"}
    blame.progressed("a", 1)
    assert blame.in_doubt == set()


def test_one_failure_of_several_beyond_doubt_suspects_nobody() -> None:
    blame = running("a", "b")
    assert fail(blame, a=5, b=9) is None
    assert blame.candidates is None
    start(blame, "a", "b")
    blame.progressed("a", 4)
    assert blame.in_doubt == {"a", "b"}, "not past the point of the failure yet"
    blame.progressed("a", 5)
    blame.progressed("b", 12)
    assert blame.in_doubt == set()


def test_a_sole_request_is_given_up_at_its_second_failure_in_a_row() -> None:
    blame = running("a")
    assert fail(blame, a=5) is None
    start(blame, "a")
    assert fail(blame, a=5) == "a"
    assert blame.candidates is None
    assert may_start(blame, "abc") == "abc", "it is forgotten"


@pytest.mark.parametrize(("position", "culprit"), [(4, "a"), (5, None), (6, None)])
def test_only_getting_past_the_failure_ends_the_row_of_failures(position: int, culprit: str | None) -> None:
    blame = running("a")
    fail(blame, a=5)
    start(blame, "a")
    blame.progressed("a", position)
    assert fail(blame, a=8) == culprit


def test_the_only_newcomer_starts_before_all_others_and_is_given_up_at_its_third_failure() -> None:
    blame = running("a", "b")
    start(blame, "n")
    assert fail(blame, a=5, b=9, n=3) is None
    for culprit in (None, "n"):
        assert may_start(blame, "abn") == "n"
        start(blame, "n")
        assert may_start(blame, "ab") == "", "nobody starts beside a trial"
        assert fail(blame, n=3) == culprit
    assert may_start(blame, "ab") == "ab"


def test_suspects_are_tried_one_at_a_time() -> None:
    blame = running("a", "b", "c", beyond_doubt=False)
    fail(blame, a=5, b=5, c=5)
    assert may_start(blame, "abcn") == "abc"
    start(blame, "b")
    assert may_start(blame, "acn") == ""
    blame.progressed("b", 5)
    assert may_start(blame, "acn") == "ac"
    start(blame, "a")
    blame.progressed("a", 5)
    assert may_start(blame, "cn") == "c"
    start(blame, "c")
    blame.progressed("c", 5)
    assert may_start(blame, "n") == "n"


def test_a_failure_beside_a_trial_is_not_proof() -> None:
    """`a` has passed its trial; it or `b`, which is on trial, has failed. `b` is tried with nobody beside it."""
    blame = running("a", "b", beyond_doubt=False)
    fail(blame, a=5, b=5)
    start(blame, "a")
    blame.progressed("a", 5)
    start(blame, "b")
    assert fail(blame, a=6, b=5) is None
    assert may_start(blame, "abn") == "b"
    start(blame, "b")
    blame.progressed("b", 5)
    start(blame, "a")
    assert fail(blame, a=6, b=6) is None
    assert may_start(blame, "abn") == "a"
    start(blame, "a")
    assert fail(blame, a=6) is None
    start(blame, "a")
    assert fail(blame, a=6) == "a"


def test_a_suspect_that_is_taken_out_lets_the_next_one_start() -> None:
    blame = running("a", "b", beyond_doubt=False)
    fail(blame, a=5, b=5)
    start(blame, "a")
    blame.stopped("a")
    assert may_start(blame, "abn") == "ab"


def test_one_on_trial_may_start_again() -> None:
    blame = running("a", "b", beyond_doubt=False)
    fail(blame, a=5, b=5)
    start(blame, "a")
    assert may_start(blame, "abn") == "a"


@pytest.mark.parametrize("is_prime", [True, False])
@pytest.mark.parametrize("is_on_trial", [True, False])
def test_a_suspect_that_ends_holds_nobody_up(is_prime: bool, is_on_trial: bool) -> None:
    blame = running("a") if is_prime else running("a", "b", beyond_doubt=False)
    start(blame, "x")
    fail(blame, a=5, b=5, x=5)
    if is_on_trial:
        start(blame, "x")
    blame.forget("x")
    assert may_start(blame, "abn") == ("abn" if is_prime else "ab")


def test_everybody_may_be_stopped_by_a_failure_that_is_explained() -> None:
    """What was suspected before still is."""
    blame = running("a", "b", beyond_doubt=False)
    fail(blame, a=5, b=5)
    start(blame, "a")
    blame.all_stopped()
    assert may_start(blame, "abn") == "ab"
    assert blame.in_doubt == set()


def test_a_failure_with_nobody_in_it_blames_nobody() -> None:
    blame = running("a", beyond_doubt=False)
    assert fail(blame) is None
    assert blame.candidates is None


def test_requests_that_were_not_in_the_failure_are_not_suspected() -> None:
    """They had started, but the step was without them."""
    blame = running("a", "b", "c", beyond_doubt=False)
    fail(blame, a=5, b=5)
    assert may_start(blame, "abc") == "ab"
