"""What `guard` reports, and what it lets pass; through its public face."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from casestudy import course
from casestudy.checkpoint import shard_paths
from casestudy.consumers import keeps_the_pair
from casestudy.errors import CaseStudyError
from casestudy.guard import StaleTensorError, StaleTensorWarning, guard, memory
from casestudy.loaders import borrowed, cloned
from casestudy.twin import lend
from tests.guard import lenders
from tests.guard.lenders import Pairs, tensors

Consume = Callable[[Pairs], object]


def drop(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    for _, tensor in weights:
        tensor.clone()


def keep_all(weights: Pairs) -> dict[str, torch.Tensor]:
    kept = {}
    for name, tensor in weights:
        kept[name] = tensor
    return kept


def previous(weights: Pairs) -> None:
    before = None
    for _, tensor in weights:
        if before is not None:
            before.clone()
        before = tensor


def victims(weights: Pairs, consume: Consume, **settings: Any) -> list[str]:  # noqa: ANN401
    watched = guard(weights, on_stale="record", **settings)
    consume(watched)
    return [stale.victim for stale in watched.stale]


def layers(weights: Pairs, count: int) -> Pairs:
    for _ in range(count):
        weights = ((name, tensor) for name, tensor in weights)
    return weights


# what is raised, warned and recorded


def test_the_first_stale_tensor_is_raised_before_anyone_reads_it() -> None:
    seen = []
    with pytest.raises(StaleTensorError) as raised:
        kept = {}
        for name, tensor in guard(lend(tensors())):
            seen.append(name)
            kept[name] = tensor
    assert seen == ["t0"]
    [stale] = raised.value.stale
    assert (stale.victim, stale.overwriter, stale.nbytes, stale.steps) == ("t0", "t1", 256, 1)
    assert stale.why == "overwritten"
    assert stale.held_by is not None
    assert stale.held_by.path == "kept['t0']"
    assert stale.held_by.file == __file__
    assert "t0 (256 bytes), kept for 1 step by kept['t0'] in test_the_first" in str(raised.value)
    assert "clone()" in str(raised.value)


def test_what_c_code_collects_is_raised_two_steps_later() -> None:
    """In no variable, so it may be a passing hold of an iterator in C, until it outlasts that."""
    seen = []

    def notes(weights: Pairs) -> Pairs:
        for pair in weights:
            seen.append(pair[0])
            yield pair

    with pytest.raises(StaleTensorError, match=r"t0 .*a dict in no variable, at \['t0'\]"):
        dict(guard(notes(lend(tensors(9)))))
    assert seen == ["t0", "t1", "t2"]


def test_what_c_code_collects_at_the_very_end_is_raised_there() -> None:
    with pytest.raises(StaleTensorError, match=r"t0 .*a dict in no variable, at \['t0'\]"):
        dict(guard(lend(tensors(2))))


def test_warnings_name_every_victim_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keep_all(guard(lend(tensors()), on_stale="warn"))
    assert [warning.category for warning in caught] == [StaleTensorWarning] * 3
    assert [str(each.message).split()[0] for each in caught] == ["t0", "t1", "t2"]
    assert {Path(each.filename).name for each in caught} == {"test_guard.py"}
    with pytest.warns(StaleTensorWarning) as at_the_end:
        dict(guard(lend(tensors()), on_stale="warn"))
    assert {each.filename for each in at_the_end} == {__file__}


def test_what_is_recorded_grows_with_the_time_it_is_held() -> None:
    watched = guard(lend(tensors()), on_stale="record")
    kept = keep_all(watched)
    assert [stale.steps for stale in watched.stale] == [3, 2, 1]
    assert [stale.overwriter for stale in watched.stale] == ["t1", "t2", "t3"]
    assert len(kept) == 4


def test_an_iterator_that_ended_stays_ended() -> None:
    watched = guard(lend(tensors(2)), on_stale="record")
    drop(watched)
    assert next(watched, None) is None
    raised = guard(lend(tensors()))
    with pytest.raises(StaleTensorError):
        keep_all(raised)
    assert next(raised, None) is None


# the loop's own variable, through generator layers


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize(
    ("consume", "expected"),
    [(drop, []), (previous, ["t0", "t1", "t2"]), (keep_all, ["t0", "t1", "t2"])],
)
def test_a_loop_does_not_keep_and_a_holder_of_one_step_does(
    count: int, consume: Consume, expected: list[str]
) -> None:
    assert victims(lend(tensors()), lambda weights: consume(layers(weights, count))) == expected


def test_a_variable_that_is_read_before_it_is_written_keeps() -> None:
    def reads_after_the_next_has_come(weights: Pairs) -> None:
        _, tensor = next(weights)
        for pair in weights:
            tensor.clone()
            _, tensor = pair

    assert victims(lend(tensors()), reads_after_the_next_has_come) == ["t0", "t1", "t2"]


def test_a_loop_in_a_module_does_not_keep() -> None:
    watched = guard(lend(tensors()), on_stale="record")
    exec("for name, tensor in weights: tensor.sum()", {"weights": watched})
    assert watched.stale == []


# what is not a fault


@pytest.mark.parametrize("consume", [drop, keep_all, previous])
@pytest.mark.parametrize("lender", [lenders.owned, lenders.tied])
def test_owned_and_tied_tensors_may_be_kept(lender: Any, consume: Consume) -> None:  # noqa: ANN401
    assert victims(lender(tensors()), consume) == []


def test_memory_that_the_allocator_hands_out_again_is_no_fault() -> None:
    addresses = set()

    def some_are_kept(weights: Pairs) -> None:
        kept = []
        for number, (_, tensor) in enumerate(weights):
            addresses.add(tensor.data_ptr())
            if number % 50 == 0:
                kept.append(tensor)

    assert victims(lenders.owned(tensors(200)), some_are_kept) == []
    assert len(addresses) < 200


def test_a_holder_may_write_into_what_it_owns() -> None:
    def scales(weights: Pairs) -> None:
        kept = []
        for _, tensor in weights:
            tensor.mul_(2)
            kept.append(tensor)
            for each in kept:
                each[:8].add_(1)

    assert victims(lenders.owned(tensors()), scales) == []
    assert victims(lend(tensors()), scales) == ["t0", "t1", "t2"]
    assert victims(lend(tensors(), slots=2), scales) == ["t0", "t1"]


def local_slice(weights: Pairs) -> None:
    for _, tensor in weights:
        shard = tensor.narrow(0, 0, 8)
        shard.clone()


def local_array(weights: Pairs) -> None:
    for _, tensor in weights:
        array = tensor.numpy()
        tail = array[4:]
        tail.copy()


def local_views(weights: Pairs) -> None:
    for pair in weights:
        rows = pair[1].view(8, 8)
        first, *others = rows.chunk(4)
        others[0].t().clone()
        first.clone()


def numbered_view(weights: Pairs) -> None:
    for _, (_, tensor) in enumerate(weights):
        shard = tensor[:8]
        shard.clone()


def local_containers(weights: Pairs) -> None:
    for name, tensor in weights:
        by_name = {name: tensor}
        listed = [tensor, tensor[:4]]
        parameter = nn.Parameter(tensor, requires_grad=False)
        call = partial(drop, [(name, tensor)])
        call()
        assert by_name[name].shape == listed[0].shape == parameter.shape


def loop_in_a_loop(weights: Pairs) -> None:
    for _, tensor in weights:
        for part in tensor.chunk(4):
            part.clone()


def view_in_a_layer(weights: Pairs) -> None:
    def views(inner: Pairs) -> Pairs:
        for name, tensor in inner:
            yield name, tensor.view(8, 8)

    for _, tensor in views(weights):
        tensor.clone()


def kept_view(weights: Pairs) -> None:
    kept = []
    for _, tensor in weights:
        shard = tensor[:8]
        kept.append(shard)


def kept_array(weights: Pairs) -> None:
    kept = []
    for _, tensor in weights:
        array = tensor.numpy()
        kept.append(array[1:])


def previous_view(weights: Pairs) -> None:
    shard = None
    for _, tensor in weights:
        if shard is not None:
            shard.clone()
        shard = tensor[:8]


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize(
    "loop",
    [
        local_slice,
        local_array,
        local_views,
        numbered_view,
        local_containers,
        loop_in_a_loop,
        view_in_a_layer,
    ],
)
def test_a_view_in_a_loops_own_variable_does_not_keep(loop: Consume, count: int) -> None:
    assert victims(lend(tensors()), lambda weights: loop(layers(weights, count))) == []


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("loop", [kept_view, kept_array, previous_view])
def test_a_view_that_is_kept_as_well_does(loop: Consume, count: int) -> None:
    found = victims(lend(tensors()), lambda weights: loop(layers(weights, count)))
    assert found == ["t0", "t1", "t2"]


def test_a_numbered_loop_in_a_module_does_not_keep() -> None:
    watched = guard(lend(tensors()), on_stale="record")
    loop = (
        "for number, (name, tensor) in enumerate(weights):\n    part = tensor[1:]\n    part.sum()"
    )
    exec(loop, {"weights": watched})
    assert watched.stale == []


def test_memory_that_moves_away_is_no_fault() -> None:
    def shares(weights: Pairs) -> None:
        kept = []
        for _, tensor in weights:
            kept.append(tensor.share_memory_())

    assert victims(lenders.owned(tensors()), shares) == []


def test_writes_are_counted_in_inference_mode_too() -> None:
    def adds(weights: Pairs) -> None:
        kept = []
        for _, tensor in weights:
            kept.append(tensor)
            kept[-1].add_(1)

    with torch.inference_mode():
        assert victims(lenders.owned(tensors()), adds) == []
        assert victims(lend(tensors()), adds) == ["t0", "t1", "t2"]


def test_what_is_let_go_in_time_is_no_fault() -> None:
    def pops(weights: Pairs) -> None:
        waiting = {}
        for name, tensor in weights:
            waiting[name] = tensor
            del tensor
            waiting.pop(name).sum()

    assert victims(lend(tensors()), pops) == []


# ways of lending


@pytest.mark.parametrize(
    ("lender", "expected"),
    [
        (lenders.same_tensor, ["t0", "t1", "t2"]),
        (lenders.staging, ["t0", "t1"]),
        (lambda named: lend(named, slots=2), ["t0", "t1"]),
        (lambda named: lend(named, slots=2, on_recycle="quarantine"), ["t0", "t1"]),
    ],
    ids=["the same tensor", "one staging storage", "two slots", "quarantine"],
)
def test_every_way_of_lending_is_seen(lender: Any, expected: list[str]) -> None:  # noqa: ANN401
    assert victims(lender(tensors()), keep_all) == expected
    assert victims(lender(tensors()), drop) == []


def test_an_overwriter_may_not_have_been_yielded_yet() -> None:
    """Staging overwrites a whole batch before it yields the part that lies on the victim."""
    with pytest.raises(StaleTensorError) as raised:
        keep_all(guard(lenders.staging(tensors(6), batch=3)))
    assert [stale.overwriter for stale in raised.value.stale] == ["t3", None, None]
    watched = guard(lenders.staging(tensors(6), batch=3), on_stale="record")
    keep_all(watched)
    assert [stale.overwriter for stale in watched.stale] == ["t3", "t4", "t5"]


def test_freed_memory_is_reported_and_not_read() -> None:
    watched = guard(lenders.freed_at_the_end(tensors()), on_stale="record")
    kept = keep_all(watched)
    assert [(stale.victim, stale.why) for stale in watched.stale] == [
        (name, "freed") for name in kept
    ]
    assert "lies in memory that is freed" in str(watched.stale[0])
    assert victims(lenders.freed_at_the_end(tensors()), drop) == []


def test_the_last_tensor_counts_if_it_is_read_behind_the_loop() -> None:
    def reads_behind(weights: Pairs) -> torch.Tensor:
        for _, tensor in weights:  # noqa: B007
            pass
        return tensor

    def numbers(weights: Pairs) -> None:
        for _, (_, tensor) in enumerate(weights):
            tensor.clone()

    def lists(weights: Pairs) -> None:
        assert list(weights)

    assert victims(lenders.freed_at_the_end(tensors()), reads_behind) == ["t3"]
    assert victims(lenders.freed_at_the_end(tensors()), numbers) == []
    assert victims(lenders.freed_at_the_end(tensors()), lists) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t[None].expand(2, -1),
        lambda t: t.view(8, 8)[:, 1:5],
        lambda t: t.view(8, 8).T,
        lambda t: t[::3],
        lambda t: t[3],
        lambda t: t.to(torch.float8_e4m3fn),
        lambda t: t.to(torch.bfloat16),
        lambda t: t.to(torch.complex64),
        lambda t: t > 1,
    ],
)
def test_every_layout_and_dtype(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def shaped(named: dict[str, torch.Tensor]) -> Pairs:
        buffer = make(torch.zeros(64)).clone(memory_format=torch.preserve_format)
        for name, tensor in named.items():
            buffer.copy_(make(tensor))
            yield name, buffer

    seen: dict[str, torch.Tensor] = {}

    def keep_and_look(weights: Pairs) -> None:
        for name, tensor in weights:
            assert torch.equal(tensor, make(named[name])), name
            seen[name] = tensor

    named = {"a": torch.zeros(64), "b": torch.ones(64) * 2}
    assert victims(shaped(named), keep_and_look) == ["a"]


def test_gaps_between_elements_belong_to_others() -> None:
    def columns(named: dict[str, torch.Tensor]) -> Pairs:
        matrix = torch.zeros(8, 4)
        for number, (name, tensor) in enumerate(named.items()):
            matrix[:, number] = tensor[:8]
            yield name, matrix[:, number]

    assert victims(columns(tensors()), keep_all) == []


def test_empty_tensors_pass() -> None:
    named = {"a": torch.empty(0, 3), **tensors(2)}
    assert victims(lend(named), keep_all) == ["t0"]
    assert victims(lend({"a": torch.empty(0)}), keep_all) == []


@pytest.mark.parametrize("mode", ["exact", "keep"])
def test_what_is_not_watched_may_come_anywhere(mode: str) -> None:
    def mixed() -> Pairs:
        for name, tensor in lend(tensors(3)):
            yield name, tensor
            yield f"{name}.empty", torch.empty(0)
            yield f"{name}.sparse", torch.ones(2, 2).to_sparse()

    assert victims(mixed(), drop, mode=mode) == []
    assert victims(mixed(), keep_all, mode=mode)[:2] == ["t0", "t1"]


def test_long_tensors_are_sampled_and_read_whole_when_asked() -> None:
    """The end of a window notices a change at either end; one in between needs "full"."""

    def changes_at(place: int) -> Pairs:
        buffer = torch.zeros(100_000)
        yield "a", buffer
        buffer[place] = 1
        yield "b", torch.zeros(4)

    assert victims(changes_at(0), keep_all) == ["a"]
    assert victims(changes_at(-1), keep_all) == ["a"]
    assert victims(changes_at(3_000), keep_all) == []
    assert victims(changes_at(3_000), keep_all, digest="full") == ["a"]


# what comes with a tensor


class Entry(NamedTuple):
    name: str
    tensor: torch.Tensor
    extra: int


@pytest.mark.parametrize("kind", [tuple, list, Entry._make])
def test_what_comes_along_is_handed_on(kind: Callable[[Any], Any]) -> None:
    def entries() -> Iterator[Any]:
        for number, (name, tensor) in enumerate(lend(tensors())):
            yield kind((name, tensor, number))

    watched = guard(entries(), on_stale="record")
    kept = [(type(entry), entry[0], entry[2], entry[1]) for entry in watched]
    assert [entry[:3] for entry in kept] == [
        (type(kind("abc")), f"t{number}", number) for number in range(4)
    ]
    assert [stale.victim for stale in watched.stale] == ["t0", "t1", "t2"]


def test_type_gradient_and_attributes_are_kept() -> None:
    class Marked(torch.Tensor):
        pass

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        yield "parameter", nn.Parameter(torch.ones(2))
        yield "frozen", nn.Parameter(torch.ones(2), requires_grad=False)
        yield "leaf", torch.ones(2, requires_grad=True)
        yield "marked", torch.ones(2).as_subclass(Marked)

    for (name, seen), (_, original) in zip(guard(made()), made(), strict=True):
        assert type(seen) is type(original), name
        assert seen.requires_grad == original.requires_grad, name
        assert torch.equal(seen, original)

    tensor = torch.ones(2)
    tensor.lent = True  # type: ignore[attr-defined]
    [(_, seen)] = guard([("a", tensor)])
    assert seen.lent  # type: ignore[attr-defined]


def test_what_cannot_be_watched_is_handed_on_and_listed() -> None:
    others = {
        "sparse": torch.ones(2, 2).to_sparse(),
        "meta": torch.empty(2, device="meta"),
        "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
        "computed": torch.ones(2, requires_grad=True) * 2,
        "no tensor": 3,
    }
    watched = guard([*others.items(), ("plain", torch.ones(2))], on_stale="record")
    assert all(seen is others.get(name, seen) for name, seen in watched)
    assert watched.unwatched == list(others)


# settings and misuse


@pytest.mark.parametrize(
    "setting", [{"on_stale": "ignore"}, {"mode": "fast"}, {"digest": "md5"}], ids=str
)
def test_unknown_settings_are_told(setting: dict[str, Any]) -> None:
    with pytest.raises(
        CaseStudyError, match=f"'{next(iter(setting.values()))}' is none of guard's"
    ):
        guard([], **setting)


@pytest.mark.parametrize("thing", [5, None, object()])
def test_what_is_no_iterator_is_told(thing: Any) -> None:  # noqa: ANN401
    with pytest.raises(CaseStudyError, match="guard takes an iterator"):
        guard(thing)


def test_memory_that_cannot_be_read_is_told_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.pread", refuse)
    with pytest.raises(CaseStudyError, match=r"/proc/self/mem.*not permitted|use mode=.keep."):
        guard(lend(tensors()))


def test_a_closed_descriptor_is_opened_again() -> None:
    victims(lend(tensors()), keep_all)
    os.close(memory._own_memory())
    assert victims(lend(tensors()), keep_all) == ["t0", "t1", "t2"]


def test_the_first_thing_that_cannot_be_watched_is_warned_of() -> None:
    arrays = [("a", torch.ones(2).numpy()), ("b", torch.ones(2).numpy())]
    with pytest.warns(UserWarning, match="cannot watch a, a ndarray") as caught:
        list(guard(arrays))
    assert len(caught) == 1


def test_a_guarded_iterator_is_not_guarded_again() -> None:
    with pytest.raises(CaseStudyError, match="guarded already"):
        guard(guard([]))


@pytest.mark.parametrize("item", [torch.ones(2), 3, ("name",)])
def test_what_is_no_pair_is_told(item: object) -> None:
    with pytest.raises(CaseStudyError, match=r"guard takes \(name, tensor\)"):
        list(guard([item]))  # type: ignore[type-var]


def test_an_error_of_the_iterator_is_its_own() -> None:
    def breaks() -> Pairs:
        yield "a", torch.ones(2)
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        drop(guard(breaks()))


# leaving early


def test_leaving_a_with_block_looks_at_what_is_held() -> None:
    """The iterator wipes its memory when it is closed, and the first tensor is still held."""

    def wipes(named: dict[str, torch.Tensor]) -> Pairs:
        buffer = torch.empty(64)
        try:
            for name, tensor in named.items():
                yield name, buffer.copy_(tensor)
        finally:
            buffer.zero_()

    kept = []
    with pytest.raises(StaleTensorError, match="t0"), guard(wipes(tensors())) as weights:
        kept.append(next(weights))


def test_leaving_closes_the_iterator() -> None:
    closed = []

    def notes() -> Pairs:
        try:
            yield from lend(tensors())
        finally:
            closed.append(True)

    with guard(notes()) as weights:
        next(weights)
    assert closed == [True]
    for _ in guard(notes()):
        break
    assert closed == [True, True]


def test_an_error_on_its_way_out_comes_first() -> None:
    kept = []
    with (
        pytest.warns(StaleTensorWarning),
        pytest.raises(ZeroDivisionError),
        guard(lenders.freed_at_the_end(tensors(1))) as weights,
    ):
        kept.append(next(weights))
        raise ZeroDivisionError


def test_a_guard_that_nobody_holds_is_gone() -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in guard(lend(tensors())):
            break
        assert not [each for each in gc.get_objects() if type(each).__name__ == "ExactGuard"]
    finally:
        gc.enable()


# other threads


def test_threads_may_let_go_at_any_time() -> None:
    """A pool that sums what it is given drops each at its own time; nobody overwrites anything."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(10):
            watched = guard(lenders.owned(tensors(100)), on_stale="record")
            with ThreadPoolExecutor(2) as pool:
                sums = [pool.submit(torch.sum, tensor) for _, tensor in watched]
            assert [float(each.result()) for each in sums] == [64.0 * n for n in range(1, 101)]
            assert watched.stale == []
    finally:
        sys.setswitchinterval(interval)


# what cannot be decided


def test_a_hold_that_nobody_will_read_is_reported_all_the_same() -> None:
    """`chain` keeps the list that it has passed; nothing tells that it will not look again."""

    def chains(weights: Pairs) -> None:
        for _, tensor in itertools.chain([next(weights)], weights):
            tensor.clone()

    assert victims(lend(tensors()), chains) == ["t0"]


def test_a_bare_address_is_not_seen() -> None:
    addresses = []

    def keeps_addresses(weights: Pairs) -> None:
        for _, tensor in weights:
            addresses.append(tensor.data_ptr())

    assert victims(lend(tensors()), keeps_addresses) == []
    assert len(set(addresses)) == 1


def test_equal_bytes_are_no_change() -> None:
    named = dict.fromkeys("abc", torch.ones(4))
    assert victims(lend(named), keep_all) == []
    assert victims(lend(named, on_recycle="quarantine"), keep_all) == ["a", "b"]


# the cheap mode


def test_keep_mode_reports_what_is_held_a_full_step_later() -> None:
    assert victims(lenders.owned(tensors()), keep_all, mode="keep") == ["t0", "t1", "t2"]
    assert victims(lenders.owned(tensors()), previous, mode="keep") == []
    assert victims(lenders.owned(tensors()), drop, mode="keep") == []
    assert victims(lenders.staging(tensors()), drop, mode="keep") == []
    assert victims(lenders.same_tensor(tensors()), drop, mode="keep") == []


def test_keep_mode_lets_loops_skip() -> None:
    def every_third(weights: Pairs) -> None:
        for _, tensor in itertools.islice(weights, 0, None, 3):
            tensor.clone()

    assert victims(lenders.owned(tensors(9)), every_third, mode="keep") == []


def test_keep_mode_names_the_holder() -> None:
    with pytest.raises(StaleTensorError, match=r"kept\['t0'\] in keep_all .*so far") as raised:
        keep_all(guard(lenders.owned(tensors()), mode="keep"))
    assert raised.value.stale[0].why == "kept"


def test_keep_mode_looks_at_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.pread", None)
    assert victims(lend(tensors()), keep_all, mode="keep") == ["t0", "t1", "t2"]


# other processes and devices


def _child(names: Any) -> None:  # noqa: ANN401, a queue
    names.put(victims(lend(tensors()), keep_all))


def test_a_forked_child_reads_its_own_memory() -> None:
    assert victims(lend(tensors()), keep_all) == ["t0", "t1", "t2"]
    context = multiprocessing.get_context("fork")
    names = context.Queue()
    child = context.Process(target=_child, args=(names,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process with threads
        child.start()
    assert names.get() == ["t0", "t1", "t2"]
    child.join()


def test_no_file_descriptor_is_left_behind() -> None:
    victims(lend(tensors()), keep_all)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        victims(lend(tensors()), keep_all)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; none is here")
def test_on_a_gpu() -> None:
    named = {name: tensor.cuda() for name, tensor in tensors().items()}
    assert victims(lenders.owned(named), keep_all) == []
    lent = lenders.same_tensor(named)
    assert victims(lent, keep_all) == ["t0", "t1", "t2"]
    assert victims(lenders.same_tensor(named), drop) == []
    assert victims(lenders.same_tensor(named), previous) == ["t0", "t1", "t2"]


# the real streamer


def test_the_streamers_views_are_caught_and_its_copies_are_not(lesson_file: Path) -> None:
    assert len(victims(borrowed(lesson_file, memory_limit=0), keep_all)) == 5
    assert victims(borrowed(lesson_file, memory_limit=0), drop) == []
    assert victims(borrowed(lesson_file, memory_limit=-1), keep_all) == []
    assert victims(cloned(lesson_file, memory_limit=0), keep_all) == []


def test_the_readme_quotes_what_the_guard_says_of_the_incident() -> None:
    shards = shard_paths(course.CHECKPOINT)
    with pytest.raises(StaleTensorError) as raised:
        keeps_the_pair(guard(borrowed(shards, memory_limit=0)), shards)
    said = re.sub(r"\(\S*/consumers\.py", "(consumers.py", str(raised.value.stale[0]))
    [quoted] = re.findall(r"^> (.*)$", (course.ROOT / "README.md").read_text(), re.MULTILINE)
    assert quoted.replace("`", "") == said
