"""Loaders on the real streamer: the fix holds, the bug shows, no imitation of the fix passes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from casestudy import loaders
from casestudy.checkpoint import read_layout
from casestudy.consumers import wrong_parameters
from casestudy.errors import CheckpointError, StreamError
from casestudy.loaders import (
    LOADERS,
    MEMORY_LIMIT_VARIABLE,
    Weights,
    borrowed,
    cloned,
    plain,
    requests,
    runai_safetensors_weights_iterator,
    smallest_limit,
)
from casestudy.trace import record
from tests.contract import small_test, strong_test

OWNING = {name: loader for name, loader in LOADERS.items() if name != "borrowed"}


def mutant(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Weights]:
    def loader(*args: object, **kwargs: object) -> Weights:
        for name, tensor in borrowed(*args, **kwargs):  # type: ignore[arg-type]
            yield name, change(tensor)

    return loader


def clone_too_late(*args: object, **kwargs: object) -> Weights:
    previous: tuple[str, torch.Tensor] | None = None
    for item in borrowed(*args, **kwargs):  # type: ignore[arg-type]
        if previous:
            yield previous[0], previous[1].clone()
        previous = item
    if previous:
        yield previous[0], previous[1].clone()


def clone_every_other(*args: object, **kwargs: object) -> Weights:
    for number, (name, tensor) in enumerate(borrowed(*args, **kwargs)):  # type: ignore[arg-type]
        yield name, tensor.clone() if number % 2 else tensor


MUTANTS: dict[str, Callable[..., Weights]] = {
    "no clone": mutant(lambda t: t),
    "detach": mutant(lambda t: t.detach()),
    "contiguous": mutant(lambda t: t.contiguous()),
    "to the same device": mutant(lambda t: t.to("cpu")),
    "to the same dtype": mutant(lambda t: t.to(t.dtype)),
    "view of bytes and back": mutant(lambda t: t.view(torch.uint8).view(t.dtype)),
    "clone of float32 only": mutant(lambda t: t.clone() if t.dtype == torch.float32 else t),
    "clone of FP8 only": mutant(lambda t: t.clone() if t.itemsize == 1 else t),
    "clone of matrices only": mutant(lambda t: t.clone() if t.ndim == 2 else t),
    "a constant": mutant(lambda t: torch.ones_like(t)),
    "clone too late": clone_too_late,
    "clone of every other": clone_every_other,
}


@pytest.mark.parametrize("loader", OWNING.values(), ids=OWNING)
def test_the_small_test_passes_on_an_owning_loader(loader: loaders.Loader, tmp_path: Path) -> None:
    small_test(loader, tmp_path)


@pytest.mark.parametrize("loader", OWNING.values(), ids=OWNING)
@pytest.mark.parametrize("memory_limit", [0, 1843, -1])
def test_the_strong_test_passes_on_an_owning_loader(
    loader: loaders.Loader, lesson_file: Path, memory_limit: int
) -> None:
    strong_test(loader, lesson_file, memory_limit)


def test_both_tests_fail_on_borrowed(lesson_file: Path) -> None:
    with pytest.raises(AssertionError, match="equal pointers"):
        small_test(borrowed, lesson_file.parent)
    with pytest.raises(AssertionError, match="unequal values"):
        strong_test(borrowed, lesson_file)


def test_a_large_buffer_hides_the_bug_from_the_strong_test(lesson_file: Path) -> None:
    strong_test(borrowed, lesson_file, memory_limit=-1)


@pytest.mark.parametrize("loader", MUTANTS.values(), ids=MUTANTS)
def test_no_imitation_of_the_fix_passes(loader: loaders.Loader, lesson_file: Path) -> None:
    with pytest.raises(AssertionError):
        strong_test(loader, lesson_file)


def test_the_small_test_lets_an_imitation_pass_that_the_strong_one_catches(
    lesson_file: Path,
) -> None:
    small_test(MUTANTS["clone of float32 only"], lesson_file.parent)
    with pytest.raises(AssertionError):
        strong_test(MUTANTS["clone of float32 only"], lesson_file)


def test_borrowed_breaks_all_but_the_last_at_limit_0(lesson_file: Path) -> None:
    kept = dict(borrowed(lesson_file, memory_limit=0))
    assert wrong_parameters(kept, dict(plain(lesson_file))) == sorted(kept.keys() - {"weight"})


def test_inside_the_loop_every_borrowed_tensor_is_right(lesson_file: Path) -> None:
    right = dict(plain(lesson_file))
    for name, tensor in borrowed(lesson_file, memory_limit=0):
        assert wrong_parameters({name: tensor}, {name: right[name]}) == []


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_loaders_differ_in_nothing_but_ownership(loader: loaders.Loader) -> None:
    expected = inspect.signature(loaders.Loader.__call__).parameters
    given = inspect.signature(loader).parameters
    assert [str(p) for p in given.values()] == [str(p) for n, p in expected.items() if n != "self"]


@pytest.mark.parametrize("before", [None, "12345"])
def test_the_memory_limit_of_the_shell_is_put_back(
    lesson_file: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv(MEMORY_LIMIT_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, before)
    stream = borrowed(lesson_file, memory_limit=0)
    next(stream)
    assert os.environ.get(MEMORY_LIMIT_VARIABLE) == before
    stream.close()
    assert os.environ.get(MEMORY_LIMIT_VARIABLE) == before


def test_threads_do_not_leave_their_limit_behind(
    lesson_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MEMORY_LIMIT_VARIABLE, raising=False)
    right = dict(plain(lesson_file))
    with ThreadPoolExecutor(6) as pool:
        limits = [0, -1, 4096] * 20
        loads = pool.map(lambda limit: dict(cloned(lesson_file, memory_limit=limit)), limits)
        assert all(wrong_parameters(load, right) == [] for load in loads)
    assert MEMORY_LIMIT_VARIABLE not in os.environ


def test_without_a_limit_the_streamer_decides(
    lesson_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MEMORY_LIMIT_VARIABLE, raising=False)
    strong_test(lambda path, memory_limit: borrowed(path), lesson_file)  # type: ignore[arg-type]
    monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "0")
    with pytest.raises(AssertionError):
        strong_test(lambda path, memory_limit: borrowed(path), lesson_file)  # type: ignore[arg-type]


def test_the_fixed_loader_has_vllms_name_and_signature(lesson_file: Path) -> None:
    parameters = inspect.signature(runai_safetensors_weights_iterator).parameters
    assert list(parameters) == ["hf_weights_files", "use_tqdm_on_load", "is_distributed"]
    strong_test(_as_vllm_calls_it, lesson_file)  # type: ignore[arg-type]


def test_progress_goes_over_every_tensor(
    lesson_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list(cloned(lesson_file, progress=True))) == 6
    assert "Loading safetensors with the RunAI Model Streamer" in capsys.readouterr().err


def test_several_files_come_one_after_the_other(lesson_file: Path, equal_file: Path) -> None:
    kept = dict(cloned([lesson_file, equal_file], memory_limit=0))
    assert wrong_parameters(kept, dict(plain([lesson_file, equal_file]))) == []


def test_an_early_end_leaves_nothing_behind(lesson_file: Path) -> None:
    stream = borrowed(lesson_file, memory_limit=0)
    next(stream)
    stream.close()
    strong_test(cloned, lesson_file)


def test_no_files_is_a_mistake() -> None:
    with pytest.raises(StreamError, match=r"^no files were given; name at least one"):
        next(borrowed([]))


def test_a_file_listed_twice_is_a_mistake(lesson_file: Path) -> None:
    again = lesson_file.parent / "." / ".." / lesson_file.parent.name / lesson_file.name
    with pytest.raises(StreamError) as caught:
        next(borrowed([lesson_file, again]))
    assert str(caught.value) == f"{again} is listed twice; list each shard once."


@pytest.mark.parametrize("loader", [*LOADERS.values(), plain], ids=[*LOADERS, "plain"])
def test_a_missing_file_is_named(loader: Callable[[str], Iterator[object]]) -> None:
    with pytest.raises(CheckpointError, match=r"^no\.safetensors does not exist; check the path"):
        next(loader("no.safetensors"))


def test_a_damaged_file_is_named_before_anything_is_yielded(lesson_file: Path) -> None:
    lesson_file.write_bytes(lesson_file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{lesson_file} is cut off"):
        next(borrowed(lesson_file))


def test_a_limit_below_the_largest_tensor_is_a_mistake(lesson_file: Path) -> None:
    with pytest.raises(StreamError) as caught:
        next(borrowed(lesson_file, memory_limit=767))
    assert str(caught.value) == (
        "a memory limit of 767 bytes is smaller than the largest tensor, embed with 768 bytes; "
        "use at least that, 0 for the smallest buffer that works, or -1 for no limit."
    )


def test_a_limit_below_minus_one_is_a_mistake(lesson_file: Path) -> None:
    with pytest.raises(StreamError, match=r"^a memory limit of -2 bytes"):
        next(borrowed(lesson_file, memory_limit=-2))


def test_what_the_streamer_refuses_carries_the_path(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    save_file({"a_name_that_makes_the_header_longer_than_the_tensor": torch.ones(1)}, path)
    with pytest.raises(StreamError, match=str(path)):
        next(borrowed(path, memory_limit=4))


def test_an_empty_tensor_gets_lost_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    save_file({"none": torch.zeros(0, 3), "some": torch.ones(2)}, path)
    kept = dict(cloned(path, memory_limit=0))
    assert kept["none"].shape == (0, 3)
    assert torch.equal(kept["some"], torch.ones(2))


def test_a_stream_that_ends_early_is_an_error(tmp_path: Path) -> None:
    """The streamer stops at a request that holds only empty tensors, and says nothing."""
    path = tmp_path / "empty.safetensors"
    save_file({"none": torch.zeros(0, 3)}, path)
    with pytest.raises(StreamError, match=f"delivered only 0 of the 1 tensors of {path}"):
        next(borrowed(path, memory_limit=0))


def test_a_file_without_tensors_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing.safetensors"
    save_file({}, path)
    with pytest.raises(StreamError, match=f"{path} holds no tensors; leave it out"):
        next(borrowed(path))


def _as_vllm_calls_it(path: Path, memory_limit: int) -> Weights:
    with loaders.memory_limit_set(memory_limit):
        yield from runai_safetensors_weights_iterator([str(path)], False)


def test_requests_tell_when_the_buffer_is_filled_anew(lesson_file: Path) -> None:
    """The planner's word against the bytes: what one request brought changes with the next."""
    for limit in (0, 800, 1400, 1843, 2700, -1):
        planned = requests(lesson_file, limit)
        stream, trace = record(borrowed(lesson_file, memory_limit=limit))
        kept = dict(stream)
        assert [name for names in planned for name in names] == list(kept)
        number = {name: i for i, names in enumerate(planned) for name in names}
        for fate in trace.fates():
            if fate.stale_from is not None:
                arrives = trace.steps[fate.stale_from].name
                assert number[arrives] > number[fate.step.name]
                assert planned[number[arrives]][0] == arrives


def test_requests_go_on_from_one_file_to_the_next(lesson_file: Path, equal_file: Path) -> None:
    assert requests(lesson_file, 1843) == [["embed", "scale"], ["bias", "norm", "head"], ["weight"]]
    both = requests([lesson_file, equal_file], 0)
    assert both[0] == ["embed", "scale", "bias", "norm", "head", "weight"]
    assert both[1:] == [[f"t{number}"] for number in range(10)]
    assert requests([lesson_file, equal_file], -1) == [[name for names in both for name in names]]


def test_requests_are_not_known_for_a_ring_of_slots(
    lesson_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "lends_by_default", lambda: False)
    with pytest.raises(StreamError, match=r"fills a ring of slots; requests are known up to 0\.16"):
        requests(lesson_file, 0)


def test_the_streamers_own_words_carry_the_path(
    lesson_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(loaders.MEMORY_LIMIT_VARIABLE, "abc")
    for ask in (lambda: next(borrowed(lesson_file)), lambda: requests(lesson_file)):
        with pytest.raises(StreamError, match=str(lesson_file)):
            ask()


def test_the_smallest_limit_is_one_that_works(lesson_file: Path, tmp_path: Path) -> None:
    """Also where the header, which comes through the same buffer, is longer than any tensor."""
    many = tmp_path / "many.safetensors"
    save_file({f"a_rather_long_name_{number}": torch.ones(2) for number in range(9)}, many)
    for path in (lesson_file, many):
        least = smallest_limit({str(path): read_layout(path)})
        assert len(dict(borrowed(path, memory_limit=least))) == len(read_layout(path))
        with pytest.raises(StreamError, match=f"with {least} bytes"):
            next(borrowed(path, memory_limit=least - 1))
        with pytest.raises(StreamError, match=f"with {least} bytes"):
            requests(path, least - 1)


def test_requests_are_planned_for_local_files() -> None:
    with pytest.raises(StreamError, match=r"s3://a/b\.safetensors: requests are planned for local"):
        requests("s3://a/b.safetensors")
