"""The plugin in a pytest of its own, without and with xdist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import os, pytest, torch
from casestudy import borrowed, course
from casestudy.twin import lend

TENSORS = {f"layer{number}": torch.full((8,), float(number)) for number in range(3)}
FILE = sorted(course.CHECKPOINT.glob("*.safetensors"))[0]


def clones(weights):
    for name, tensor in weights:
        yield name, tensor.clone()


def keeps(weights):
    kept = {}
    for name, tensor in weights:
        kept[name] = tensor


def drops(weights):
    for name, tensor in weights:
        assert tensor.shape


def test_keeps(lending_iterator, guarded):
    keeps(guarded(lending_iterator(TENSORS)))


def test_keeps_nothing(lending_iterator, guarded):
    drops(guarded(lending_iterator(TENSORS)))


def test_stale_floats_are_nan(lending_iterator):
    kept = dict(lending_iterator(TENSORS, order="shuffled", seed=1))
    assert sum(bool(tensor.isnan().all()) for tensor in kept.values()) == 2
    plainly = dict(lending_iterator(TENSORS, on_recycle="overwrite"))
    assert not any(tensor.isnan().any() for tensor in plainly.values())


@pytest.mark.owned_iterator
def test_lends(guarded):
    drops(guarded(lend(TENSORS)))


@pytest.mark.owned_iterator
def test_owns(guarded):
    drops(guarded(clones(lend(TENSORS))))


def test_a_large_buffer_hides_nothing(guarded):
    dict(guarded(borrowed(FILE)))


@pytest.mark.owned_iterator
def test_the_buffer_is_forced_down(guarded):
    drops(guarded(borrowed(FILE)))


def test_the_buffer_is_as_before():
    assert "RUNAI_STREAMER_MEMORY_LIMIT" not in os.environ


def test_every_byte_is_read(guarded):
    def changes_in_the_middle():
        buffer = torch.zeros(100_000)
        yield "a", buffer
        buffer[3_000] = 1
        yield "b", torch.zeros(4)
    keeps(guarded(changes_in_the_middle()))


@pytest.mark.owned_iterator
def test_a_marked_guard_can_be_used_like_any(guarded):
    with guarded(lend(TENSORS)) as weights:
        next(weights)
    assert weights.stale == []


@pytest.mark.owned_iterator
def test_arrays_are_not_watched(guarded):
    drops(guarded((name, tensor.numpy()) for name, tensor in TENSORS.items()))


@pytest.mark.owned_iterator
def test_without_the_fixture():
    pass


@pytest.mark.owned_iterator
def test_with_nothing_yielded(guarded):
    guarded(lend(TENSORS))


def test_fails_by_itself(lending_iterator, guarded):
    keeps(guarded(lending_iterator(TENSORS)))
    assert "its own" == "error"
"""
OUTCOMES = {
    "test_keeps": "FAILED",
    "test_keeps_nothing": "PASSED",
    "test_stale_floats_are_nan": "PASSED",
    "test_lends": "FAILED",
    "test_owns": "PASSED",
    "test_a_large_buffer_hides_nothing": "FAILED",
    "test_the_buffer_is_forced_down": "FAILED",
    "test_the_buffer_is_as_before": "PASSED",
    "test_every_byte_is_read": "FAILED",
    "test_a_marked_guard_can_be_used_like_any": "PASSED",
    "test_arrays_are_not_watched": "FAILED",
    "test_without_the_fixture": "FAILED",
    "test_with_nothing_yielded": "FAILED",
    "test_fails_by_itself": "FAILED",
}


def run_pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module", params=[[], ["-n", "2"]], ids=["plain", "xdist"])
def output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_cases.py").write_text(CASES)
    return run_pytest(folder, *request.param)


def said_of(test: str, output: str) -> str:
    """What pytest prints of a failure."""
    found = re.search(rf"^_+ {test} _+$(.*?)^(?:_+ \w+ _+|=+ .*=+)$", output, re.M | re.S)
    assert found, output
    return found[1]


def test_each_case_ends_as_it_should(output: str) -> None:
    lines = re.findall(r"^(PASSED|FAILED|ERROR) test_cases\.py::(\w+)", output, re.MULTILINE)
    assert {name: outcome for outcome, name in lines} == OUTCOMES


def test_the_keeper_is_named(output: str) -> None:
    said = said_of("test_keeps", output)
    assert "kept['layer0'] in keeps" in said
    assert "layer1 (32 bytes), kept for 1 step" in said
    assert "layer2" not in said.replace("overwritten by layer2", "")


def test_the_lender_is_told(output: str) -> None:
    said = said_of("test_lends", output)
    assert "2 of 3 tensors were overwritten while they were held (layer0, layer1)" in said


def test_a_marked_test_that_checks_nothing_says_so(output: str) -> None:
    assert "what goes through the fixture `guarded`; use it" in said_of(
        "test_without_the_fixture", output
    )
    assert "no tensor went through" in said_of("test_with_nothing_yielded", output)


def test_a_tests_own_error_comes_first(output: str) -> None:
    assert "AssertionError" in said_of("test_fails_by_itself", output)


def test_a_run_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    """torch, which takes longest to import, stays out; fixtures and marker are known anyway."""
    (tmp_path / "test_bare.py").write_text(
        "import sys\n\n"
        "def test_it():\n"
        "    assert 'casestudy.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'numpy', 'casestudy.guard'} & sys.modules.keys()\n"
    )
    assert "1 passed" in run_pytest(tmp_path)
    fixtures = run_pytest(tmp_path, "--fixtures")
    assert "lending_iterator" in fixtures
    assert "guarded" in fixtures
    assert "owned_iterator" in run_pytest(tmp_path, "--markers")
