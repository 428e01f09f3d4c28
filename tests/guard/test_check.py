"""`check_iterator` and `check_consumer`: the verdict, the evidence, and what stands against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from ctypes import string_at
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from casestudy import course
from casestudy.checkpoint import shard_paths
from casestudy.consumers import CONSUMERS, collect
from casestudy.errors import CaseStudyError
from casestudy.guard import Guard, check_consumer, check_iterator
from casestudy.loaders import MEMORY_LIMIT_VARIABLE, borrowed, cloned, plain
from tests.guard import lenders
from tests.guard.lenders import Pairs, tensors

SHARDS = shard_paths(course.CHECKPOINT)


# iterators


@pytest.mark.parametrize(
    ("factory", "verdict"),
    [
        (lambda: borrowed(SHARDS, memory_limit=0), "lends"),
        (lambda: borrowed(SHARDS), "lends"),
        (lambda: cloned(SHARDS), "owned"),
        (lambda: plain(SHARDS), "owned"),
        (lambda: lenders.owned(tensors()), "owned"),
        (lambda: lenders.tied(tensors()), "owned"),
        (lambda: lenders.same_tensor(tensors()), "lends"),
        (lambda: lenders.staging(tensors()), "lends"),
        (lambda: lenders.freed_at_the_end(tensors()), "lends"),
    ],
)
def test_an_iterator_owns_or_lends(factory: Callable[[], Pairs], verdict: str) -> None:
    report = check_iterator(factory)
    assert report.verdict == verdict
    assert bool(report.stale) is (verdict == "lends")
    assert report.ok is (verdict == "owned")


def test_a_small_model_that_looks_owned_is_forced_to_show() -> None:
    report = check_iterator(lambda: borrowed(SHARDS))
    total = len(dict(plain(SHARDS)))
    assert report.evidence[0] == f"As it is: 0 of {total} kept tensors were overwritten."
    assert report.evidence[1].startswith("With the streamer's smallest buffers: ")
    assert "looks owned only because its buffer is larger" in report.evidence[2]
    assert "looks owned" not in str(check_iterator(lambda: borrowed(SHARDS, memory_limit=0)))


def test_the_shells_settings_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_LIMIT_VARIABLE, "-1")
    before = dict(os.environ)
    assert check_iterator(lambda: borrowed(SHARDS)).verdict == "lends"
    assert dict(os.environ) == before


def test_the_report_says_what_overwrote_what_and_how_many_more() -> None:
    said = str(check_iterator(lambda: lenders.same_tensor(tensors(9)))).splitlines()
    assert said[0] == "lends"
    assert said[3] == "  t0 (256 bytes), overwritten by t1 while it was held"
    assert said[-1] == "  and 3 more"


def test_an_iterator_of_nothing_is_not_owned() -> None:
    with pytest.raises(CaseStudyError, match="yields no tensor"):
        check_iterator(lambda: iter(()))


def test_what_cannot_be_watched_is_told() -> None:
    sparse = ("s", torch.ones(2, 2).to_sparse())
    report = check_iterator(lambda: iter([sparse, ("t", torch.ones(2))]))
    assert "1 could not be watched (s)" in report.evidence[0]
    for nothing_to_watch in (sparse, ("a", torch.ones(2).numpy())):
        with pytest.raises(CaseStudyError, match="yields no tensor"):
            check_iterator(lambda thing=nothing_to_watch: iter([thing]))  # type: ignore[misc]


def test_bytes_that_are_wrong_when_they_are_yielded_need_a_reference() -> None:
    """A clone that comes too late is the consumer's own, and wrong from the start."""

    def late() -> Pairs:
        before = None
        for pair in lenders.same_tensor(tensors()):
            if before is not None:
                yield before[0], before[1].clone()
            before = pair

    assert check_iterator(late).verdict == "owned"
    report = check_iterator(late, lambda: iter(tensors().items()))
    assert (report.verdict, report.ok, report.stale) == ("corrupts", False, [])
    assert report.different == ["t0", "t1", "t2"]
    assert "3 had wrong bytes when they were yielded (t0)" in report.evidence[0]


class Reused(IterableDataset[Any]):
    """A dataset that fills one buffer again and again, or hands out copies of it."""

    def __init__(self, copies: bool) -> None:
        self.copies = copies

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        buffer = torch.empty(64)
        for name, tensor in tensors().items():
            buffer.copy_(tensor)
            yield name, buffer.clone() if self.copies else buffer


@pytest.mark.parametrize(("copies", "verdict"), [(False, "lends"), (True, "owned")])
def test_torchs_own_data_loader(copies: bool, verdict: str) -> None:
    assert check_iterator(lambda: DataLoader(Reused(copies), batch_size=None)).verdict == verdict


# consumers


@pytest.mark.parametrize(
    ("name", "verdict", "stale"),
    [
        ("copies_at_once", "keeps nothing", 0),
        ("keeps_the_pair", "keeps", 4),
        ("clones_the_pair", "keeps nothing", 0),
    ],
)
def test_the_incidents_consumers(name: str, verdict: str, stale: int) -> None:
    report = check_consumer(lambda weights: CONSUMERS[name](weights, SHARDS), plain(SHARDS))
    assert (report.verdict, len(report.stale)) == (verdict, stale)
    for each in report.stale:
        assert each.held_by is not None
        assert each.held_by.path == f"waiting[{each.victim!r}]"
        assert each.held_by.function == "load_weights"
    assert len(report.different) == stale


def test_a_consumer_that_collects_keeps_everything_but_the_last() -> None:
    report = check_consumer(collect, tensors())
    assert (report.verdict, len(report.stale)) == ("keeps", 3)
    assert report.different == ["t0", "t1", "t2", "t3"]
    assert len(report.evidence) == 10


def test_a_slice_that_nobody_overwrites_is_found_in_quarantine() -> None:
    """The tail of a large tensor outlives smaller ones that come after it."""
    named = {"large": torch.arange(1000.0), "m": torch.ones(4), "n": torch.full((4,), 2.0)}
    report = check_consumer(lambda weights: {name: t[-1:] for name, t in weights}, named)
    assert report.verdict == "keeps"
    assert {each.victim for each in report.stale} == {"large", "m"}


def test_a_result_that_differs_counts_even_if_nothing_is_seen_to_be_held() -> None:
    """A bare address is invisible to the guard; what is read through it is not."""
    alive = []

    def by_address(weights: Pairs) -> dict[str, torch.Tensor]:
        places, made = {}, {}
        for name, tensor in weights:
            places[name] = tensor.data_ptr(), tensor.nbytes
            if not isinstance(weights, Guard):
                alive.append(tensor)
            if len(places) == 4:
                made = {each: bytearray(string_at(*place)) for each, place in places.items()}
        return {name: torch.frombuffer(octets, dtype=torch.uint8) for name, octets in made.items()}

    report = check_consumer(by_address, tensors())
    assert (report.verdict, report.stale) == ("keeps", [])
    assert report.different == ["t0", "t1", "t2", "t3"]


def test_a_consumer_that_breaks_only_on_lent_tensors_is_told() -> None:
    def insists(weights: Pairs) -> None:
        kept = dict(weights)
        if any(bool(tensor.isnan().any()) for tensor in kept.values()):
            raise ValueError("weights are not finite")

    report = check_consumer(insists, tensors())
    assert "and it raised ValueError: weights are not finite." in report.evidence[-1]


def test_a_module_and_a_list_are_compared_too() -> None:
    def fills(weights: Pairs) -> torch.nn.Module:
        model = torch.nn.Module()
        for name, tensor in weights:
            model.register_parameter(name, torch.nn.Parameter(tensor))
        return model

    assert check_consumer(fills, tensors()).different == ["t0", "t1", "t2", "t3"]
    assert check_consumer(lambda weights: [t for _, t in weights], tensors()).different
    assert check_consumer(lambda weights: [t.clone() for _, t in weights], tensors()).ok


def test_a_consumer_that_is_broken_anyway_raises_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        check_consumer(lambda _: 1 // 0, tensors())


def test_a_consumer_that_takes_nothing_has_not_been_checked() -> None:
    def generates(weights: Pairs) -> Pairs:
        yield from weights

    for consume in (lambda weights: None, generates):
        with pytest.raises(CaseStudyError, match="took no tensor"):
            check_consumer(consume, tensors())
    report = check_consumer(lambda weights: next(weights) and None, tensors())
    assert report.evidence[-1] == "It took only 1 of the 4 tensors."


def test_the_last_tensor_is_not_to_be_kept_either() -> None:
    def keeps_the_last(weights: Pairs) -> torch.Tensor:
        for _, tensor in weights:  # noqa: B007
            pass
        return tensor

    report = check_consumer(keeps_the_last, tensors())
    assert (report.verdict, [each.victim for each in report.stale]) == ("keeps", ["t3"])


def test_without_tensors_there_is_nothing_to_say() -> None:
    with pytest.raises(CaseStudyError, match="no tensors"):
        check_consumer(collect, {})


def test_as_json_it_has_the_promised_keys() -> None:
    found = check_consumer(collect, tensors()).as_json()
    assert found.keys() == {"verdict", "stale", "different", "evidence", "streamer"}
    assert found["stale"][0].keys() == {"victim", "overwriter", "bytes", "steps", "held_by"}
    assert found["stale"][0]["bytes"] == 256


def test_checking_reads_and_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_consumer(collect, tensors())
    check_iterator(lambda: lenders.owned(tensors()))
    assert list(tmp_path.iterdir()) == []
