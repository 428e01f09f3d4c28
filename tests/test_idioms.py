"""The answer key: every idiom on the real streamer, against the truth and against the guard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refresh_contract import BEGINNING, ENDING, table
from safetensors.torch import save_file

from casestudy import course
from casestudy.idioms import IDIOMS, PIN_MEMORY, Answer, answer, answer_key, write_matrices
from casestudy.loaders import cloned, plain

SOUND = {
    "use at once",
    "use a view at once",
    "keep `.to` another dtype",
    "keep a copy of `.numpy()`",
    "keep `copy.deepcopy`",
    "keep a clone",
    "keep a sum",
    "keep a list of numbers",
    "copy into a parameter",
    "`load_state_dict`, copying",
    "save at once",
    "clone whoever waits",
    "group, and use at once",
    "peek at one, then chain",
    "a thread pool, given copies",
    "concatenate as it goes",
}
NAMED = {
    "keep the tensor": "kept['t0']",
    "keep a slice": "kept['t0']",
    "keep a transpose": "kept['t0']",
    "keep another dtype": "kept['t0']",
    "keep `.detach()`": "kept['t0']",
    "keep `.data`": "kept['t0']",
    "keep `.numpy()`": "kept['t0']",
    "keep a memoryview": "kept['t0']",
    "keep through DLPack": "kept['t0']",
    "keep the storage": "kept['t0']",
    "keep a Parameter of it": "kept['t0']",
    "set `param.data`": "model.t0",
    "`load_state_dict`, assigning": "model.t0",
    "register a buffer": "model.t0",
    "hold the previous one": "before[1]",
    "two at a time": "before[1]",
    "a window": "window[0][1]",
    "wait for a partner": "waiting[0][1]",
    "wait for a partner, then clone both": "waiting[0][1]",
    "a generator that looks ahead": "held[1]",
    "`functools.partial`": "later[0].args[1]",
    "a closure": "tensor in the closure of later[0]",
    "stack at the end": "parts[0]",
    "a thread pool": "tensor",
}
UNNAMED = {
    "collect in a dict": "a dict in no variable, at ['t0']",
    "collect in a list": "a list in no variable, at [0]",
    "sort": "a list in no variable, at [0]",
}


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    path = write_matrices(tmp_path_factory.mktemp("idioms"))
    return {each.idiom.name: each for each in answer_key(path)}


def test_the_table_is_as_long_as_it_should_be_and_says_nothing_twice() -> None:
    names = [idiom.name for idiom in IDIOMS]
    assert len(set(names)) == len(names) >= 24
    assert SOUND | NAMED.keys() | UNNAMED.keys() <= set(names)
    assert len(NAMED) >= 15


def test_truth_is_what_the_key_says(key: dict[str, Answer]) -> None:
    assert {name for name, each in key.items() if each.truth == "sound"} - {PIN_MEMORY} == SOUND


def test_the_guard_agrees_in_every_row_and_on_every_tensor(key: dict[str, Answer]) -> None:
    for name, each in key.items():
        assert sorted(stale.victim for stale in each.stale) == each.wrong, name


def test_the_guard_names_the_holder(key: dict[str, Answer]) -> None:
    assert {name: key[name].held_by for name in NAMED} == NAMED
    assert {name: key[name].held_by for name in UNNAMED} == UNNAMED
    for name in NAMED:
        holder = key[name].stale[0].held_by
        assert holder is not None
        assert Path(holder.file).name == "idioms.py"
        assert holder.line > 0


def test_on_a_loader_that_owns_every_idiom_is_sound(tmp_path: Path) -> None:
    path = write_matrices(tmp_path)
    reference = dict(plain(path))
    for idiom in IDIOMS:
        if idiom.name != PIN_MEMORY:
            found = answer(idiom, cloned(path, memory_limit=0), reference)
            assert (found.wrong, found.stale) == ([], []), idiom.name


def test_the_idioms_read_what_they_say(tmp_path: Path) -> None:
    """Every idiom uses every tensor, and a wrong one is noticed: no row is sound by silence."""
    wrong = {f"t{number}": torch.full((64, 64), -1.0) for number in range(10)}
    save_file(wrong, tmp_path / "wrong.safetensors")
    right = dict(plain(write_matrices(tmp_path)))
    for idiom in IDIOMS:
        if idiom.name != PIN_MEMORY:
            found = answer(idiom, plain(tmp_path / "wrong.safetensors"), right)
            assert found.wrong == sorted(right), idiom.name


def test_the_contract_shows_this_table(key: dict[str, Answer]) -> None:
    page = (course.ROOT / "docs" / "ownership-contract.md").read_text()
    shown = page.partition(BEGINNING)[2].partition(ENDING)[0]
    assert shown.strip() == table(list(key.values())).strip()
