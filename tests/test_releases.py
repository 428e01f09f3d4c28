"""The streamer's releases side by side, each in a process of its own."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from casestudy import course, releases
from casestudy.errors import CaseStudyError
from casestudy.releases import RELEASES

LENDING, NEWEST = RELEASES[:2], RELEASES[2]


@cache
def probe(release: str, module: str = "tests.releases_probe") -> dict[str, Any]:
    """What a probe prints under one release, run once."""
    done = releases.run_under(release, "-m", module)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("release", RELEASES)
def test_the_release_is_the_one_that_runs(release: str) -> None:
    assert probe(release)["release"] == release


@pytest.mark.parametrize("release", RELEASES)
def test_borrowed_lends_and_cloned_does_not_on_every_release(release: str) -> None:
    assert probe(release)["strong_test"]["borrowed"] == "unequal values"
    assert probe(release)["strong_test"]["cloned"] == "passes"
    assert probe(release)["wrong_layers"]["cloned"] == 0
    assert probe(release)["wrong_layers"]["borrowed"] >= 2


@pytest.mark.parametrize("release", LENDING)
def test_up_to_0_16_the_streamer_lends_by_default(release: str) -> None:
    assert probe(release)["lends_by_default"] is True
    assert probe(release)["wrong_by_default"] == 9
    failing = dict.fromkeys(("unfixed", "borrowed"), "equal pointers")
    assert probe(release)["small_test"] == {**failing, "cloned": "passes"}


def test_from_0_17_the_streamer_owns_by_default() -> None:
    assert probe(NEWEST)["lends_by_default"] is False
    assert probe(NEWEST)["wrong_by_default"] == 0


def test_the_small_test_can_no_longer_fail() -> None:
    """On 0.17 a vLLM without its `clone()` passes vLLM's regression test, and so does `borrowed`.

    Two reasons: the streamer owns by default; and even with `owned=False` a tensor lands at an
    address congruent with its file offset modulo the mount's block, so tensors of eight bytes in
    one block never meet. The strong test, with tensors of 16 KiB, fails as it should.
    """
    loaders = ("unfixed", "borrowed", "cloned")
    assert probe(NEWEST)["small_test"] == dict.fromkeys(loaders, "passes")
    assert probe(NEWEST)["strong_test"]["unfixed"] == "passes"
    assert probe(NEWEST)["strong_test"]["borrowed"] == "unequal values"


@pytest.mark.parametrize("release", RELEASES)
def test_the_record_that_the_course_shows_is_still_true(release: str) -> None:
    recorded = json.loads(course.RELEASES_RECORD.read_text())
    assert recorded["releases"][release] == probe(release)


def test_a_release_that_does_not_exist_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CaseStudyError, match=r"runai-model-streamer 9\.9\.9 cannot be installed"):
        releases.install("9.9.9")
    assert list((tmp_path / "casestudy" / "releases").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(CaseStudyError, match="set XDG_CACHE_HOME to a folder that can"):
        releases.install(NEWEST)


def test_an_empty_folder_is_not_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (releases.cache_folder() / NEWEST).mkdir(parents=True)
    with pytest.raises(CaseStudyError, match="cannot be installed"):
        releases.install(NEWEST)


def test_the_locked_release_is_the_first_of_them() -> None:
    assert f"{releases.PACKAGE}=={RELEASES[0]}\n" in (course.ROOT / "requirements.lock").read_text()
