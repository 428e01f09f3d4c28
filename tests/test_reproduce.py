"""The incident from end to end, and what is said when it does not happen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from casestudy import course, loaders
from casestudy.consumers import wrong_parameters
from casestudy.errors import CaseStudyError
from casestudy.reproduce import Reproduction, diagnosis, load, reproduce
from tests.test_consumers import FUSED_NAMES


def test_borrowed_goes_wrong_and_cloned_does_not(reproduction: Reproduction) -> None:
    assert reproduction.happened
    assert reproduction.streamer == loaders.streamer_version()
    assert reproduction.prompt == course.long_prompt()
    assert reproduction.borrowed.wrong == FUSED_NAMES
    assert reproduction.reference.wrong == reproduction.cloned.wrong == []


def test_the_texts_and_losses_tell_them_apart(reproduction: Reproduction) -> None:
    truth = course.continuation(reproduction.prompt)
    assert reproduction.reference.text == reproduction.cloned.text == truth
    assert reproduction.cloned.losses == reproduction.reference.losses
    assert reproduction.borrowed.loss >= 20 * reproduction.reference.loss
    for outcome in (reproduction.reference, reproduction.borrowed):
        assert len(outcome.losses) == len(reproduction.prompt) + len(truth) - 1
        assert outcome.loss == fmean(outcome.losses[-len(truth) :])
    wrong = sum(a != b for a, b in zip(reproduction.borrowed.text, truth, strict=True))
    assert wrong > len(truth) / 2


def test_a_large_buffer_takes_the_bug_away_and_the_diagnosis_says_so() -> None:
    result = reproduce(memory_limit=-1)
    assert not result.happened
    assert result.fixed
    assert result.borrowed.text == result.reference.text
    assert diagnosis(result).endswith("until the second has come; use --memory-limit 0.")


def test_a_release_that_does_not_lend_is_named(reproduction: Reproduction) -> None:
    mended = replace(reproduction, borrowed=reproduction.cloned, streamer="9.9")
    assert "runai-model-streamer 9.9 did not overwrite what it had lent" in diagnosis(mended)


def test_a_fix_that_does_not_hold_is_not_a_success(reproduction: Reproduction) -> None:
    unfixed = replace(reproduction, cloned=reproduction.borrowed)
    assert not unfixed.happened
    assert diagnosis(unfixed).startswith("`cloned` is not what safetensors loads")


@pytest.mark.parametrize("text", ["", "another tale", course.PROMPT_OPENING, "\u00e9"])
def test_another_tale_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(course, "TALE", tmp_path / "tale.txt")
    course.TALE.write_text(text, encoding="utf-8")
    with pytest.raises(CaseStudyError, match="is not the tale that the model knows"):
        reproduce()


def test_each_outcome_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "LONG_CONTINUATION", 1)
    told: list[int] = []
    reproduce(on_outcome=lambda: told.append(1))
    assert len(told) == 3


def test_a_second_load_gives_the_same_bytes() -> None:
    first = load(course.CHECKPOINT, loaders.cloned)
    second = load(course.CHECKPOINT, loaders.cloned)
    assert wrong_parameters(first, second) == []
