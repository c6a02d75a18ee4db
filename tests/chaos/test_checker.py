"""The checker must be able to say no."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.chaos.answer import Answer, ChoiceReceived
from tests.chaos.checker import Known, TrueChoice, check_complete, check_failed, check_prefix, is_near_tie

KNOWN = Known(
    "one",
    "load",
    {"messages": [], "temperature": 0, "logprobs": True},
    (TrueChoice("Paris is big.", "stop", ("Paris", " is", " big", "."), (5.0, 1e-4, 3.0, 3.0)),),
    prompt_tokens=7,
    completion_tokens=5,
)


def whole() -> Answer:
    choice = ChoiceReceived(["Par", "is is big."], ["stop"], ["Paris", " is", " big", "."])
    usage = {"prompt_tokens": 7, "completion_tokens": 5}
    return Answer(200, choices={0: choice}, usage=usage, dones=1)


def test_the_truth_passes() -> None:
    assert check_complete(KNOWN, whole(), stream=True) == []


def _twice(answer: Answer) -> None:
    answer.choices[0].pieces.insert(1, "is")


def _lost(answer: Answer) -> None:
    answer.choices[0].pieces.pop()


def _ended_twice(answer: Answer) -> None:
    answer.choices[0].finish_reasons.append("stop")


def _without_end(answer: Answer) -> None:
    answer.choices[0].finish_reasons.clear()


def _without_done(answer: Answer) -> None:
    answer.dones = 0


def _another_choice(answer: Answer) -> None:
    answer.choices[1] = ChoiceReceived(["Paris is big."], ["stop"])


def _other_tokens(answer: Answer) -> None:
    answer.choices[0].tokens[0] = "Par"


def _miscounted(answer: Answer) -> None:
    answer.usage = {"prompt_tokens": 7, "completion_tokens": 6}


def _failed(answer: Answer) -> None:
    answer.error = {"message": "no"}


def _cut(answer: Answer) -> None:
    answer.transport = "EOFError"


@pytest.mark.parametrize(
    "spoil",
    [
        _twice,
        _lost,
        _ended_twice,
        _without_end,
        _without_done,
        _another_choice,
        _other_tokens,
        _miscounted,
        _failed,
        _cut,
    ],
)
def test_whatever_differs_is_found(spoil: Callable[[Answer], None]) -> None:
    answer = copy.deepcopy(whole())
    spoil(answer)
    assert check_complete(KNOWN, answer, stream=True)


def test_a_beginning_is_a_beginning() -> None:
    assert check_prefix(KNOWN, Answer(200, choices={0: ChoiceReceived(["Par", "is"])})) == []
    assert check_prefix(KNOWN, Answer(200, choices={0: ChoiceReceived(["Par", "ma"])}))
    assert check_prefix(KNOWN, Answer(200, choices={1: ChoiceReceived(["Par"])}))
    assert check_prefix(KNOWN, Answer(200, choices={0: ChoiceReceived(["Par"], ["length"])}))
    assert check_prefix(KNOWN, Answer(200, choices={0: ChoiceReceived(["Par"])}, dones=1))


def test_a_failure_must_say_so() -> None:
    assert check_failed(KNOWN, Answer(500, error={"message": "it is poisoned"})) == []
    assert check_failed(KNOWN, Answer(200, error={"message": "it is poisoned"})) == []
    assert check_failed(KNOWN, Answer(500))
    assert check_failed(KNOWN, Answer(503, error={"message": "try again"}))
    assert check_failed(KNOWN, whole())
    assert check_failed(KNOWN, Answer(transport="EOFError"))


def test_a_near_tie_is_one_only_at_the_token_that_was_close() -> None:
    def got(text: str) -> Answer:
        return Answer(200, choices={0: ChoiceReceived([text], ["stop"])}, dones=1)

    assert is_near_tie(KNOWN, got("Paris was big."))
    assert not is_near_tie(KNOWN, got("Parma is big."))
    assert not is_near_tie(KNOWN, got("Paris is old."))
    assert not is_near_tie(KNOWN, got("Paris is big."))
