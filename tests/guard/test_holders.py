"""By which name a tensor is still held, for every kind of place that a program has for it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from casestudy.guard import Holder, guard
from casestudy.twin import lend
from tests.guard.lenders import Pairs, tensors

SHELF: dict[str, torch.Tensor] = {}


class Cache:
    """Keeps in an attribute; `shared` is the class's."""

    shared: list[torch.Tensor]

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def load(self, weights: Pairs) -> None:
        for name, tensor in weights:
            self.tensors[name] = tensor


class Slotted:
    __slots__ = ("tensor",)

    tensor: torch.Tensor


class Pair(NamedTuple):
    weight: torch.Tensor | None
    scale: torch.Tensor | None


@dataclass
class Layer:
    name: str
    parts: list[torch.Tensor] = field(default_factory=list)


class Prickly:
    """Does not like to be looked at."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        raise RuntimeError("hands off")

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("hands off")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("hands off")


def first_holder(consume: Callable[[Pairs], object]) -> Holder:
    watched = guard(lend(tensors()), on_stale="record")
    result = consume(watched)
    assert [stale.victim for stale in watched.stale] == ["t0", "t1", "t2"]
    holder = watched.stale[0].held_by
    assert holder is not None
    del result
    return holder


def in_a_global(weights: Pairs) -> None:
    for name, tensor in weights:
        SHELF[name] = tensor


def in_a_class(weights: Pairs) -> None:
    Cache.shared = []
    for _, tensor in weights:
        Cache.shared.append(tensor)


def in_slots(weights: Pairs) -> list[Slotted]:
    kept = []
    for _, tensor in weights:
        kept.append(Slotted())
        kept[-1].tensor = tensor
    return kept


def in_a_named_tuple(weights: Pairs) -> list[Pair]:
    pairs = []
    for _, tensor in weights:
        pairs.append(Pair(None, tensor))
    return pairs


def in_a_data_class(weights: Pairs) -> Layer:
    layer = Layer("first")
    for _, tensor in weights:
        layer.parts.append(tensor)
    return layer


def in_a_deque(weights: Pairs) -> None:
    queue: deque[tuple[str, torch.Tensor]] = deque()
    for pair in weights:
        queue.append(pair)


def in_a_set(weights: Pairs) -> None:
    kept = set()
    for _, tensor in weights:
        kept.add(tensor)


def in_a_module(weights: Pairs) -> None:
    model = nn.Sequential(nn.Module())
    for name, tensor in weights:
        model[0].register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def in_a_partial(weights: Pairs) -> None:
    later = {}
    for name, tensor in weights:
        later[name] = partial(print, file=tensor)


def in_a_closure(weights: Pairs) -> None:
    later = []

    def read(tensor: torch.Tensor) -> Callable[[], float]:
        return lambda: float(tensor.sum())

    for _, tensor in weights:
        later.append(read(tensor))


def in_a_default(weights: Pairs) -> None:
    later = []
    for _, tensor in weights:
        later.append(lambda tensor=tensor: tensor)


def in_a_bound_method(weights: Pairs) -> None:
    later = []
    for _, tensor in weights:
        layer = Layer("", [tensor])
        later.append(layer.parts.append)


def in_a_waiting_generator(weights: Pairs) -> None:
    def waits(kept_inside: torch.Tensor) -> Iterator[torch.Tensor]:
        yield kept_inside
        yield kept_inside

    waiting = []
    for _, tensor in weights:
        waiting.append(waits(tensor))
        next(waiting[-1])


def in_another_thread(weights: Pairs) -> None:
    may_end = threading.Event()
    threads = []

    def work(held_by_the_worker: torch.Tensor) -> None:
        may_end.wait()
        held_by_the_worker.sum()

    for _, tensor in weights:
        threads.append(threading.Thread(target=work, args=(tensor,)))
        threads[-1].start()
    may_end.set()
    for thread in threads:
        thread.join()


def beside_a_prickly_object(weights: Pairs) -> None:
    prickly = Prickly()
    kept = {}
    for name, tensor in weights:
        kept[name] = (prickly, tensor)


@pytest.mark.parametrize(
    ("consume", "path", "function"),
    [
        (in_a_global, "SHELF['t0']", f"module {__name__}"),
        (in_a_class, "Cache.shared[0]", f"module {__name__}"),
        (in_slots, "kept[0].tensor", "in_slots"),
        (in_a_named_tuple, "pairs[0].scale", "in_a_named_tuple"),
        (in_a_data_class, "layer.parts[0]", "in_a_data_class"),
        (in_a_deque, "queue[0][1]", "in_a_deque"),
        (in_a_set, "kept{…}", "in_a_set"),
        (in_a_module, "model.0.t0", "in_a_module"),
        (in_a_partial, "later['t0'].keywords['file']", "in_a_partial"),
        (in_a_closure, "tensor in the closure of later[0]", "in_a_closure"),
        (in_a_default, "later[0].__defaults__[0]", "in_a_default"),
        (in_a_bound_method, "later[0].__self__[0]", "in_a_bound_method"),
        (in_a_waiting_generator, "kept_inside", "in_a_waiting_generator.<locals>.waits"),
        (in_another_thread, "threads[0]._args[0]", "in_another_thread"),
        (beside_a_prickly_object, "kept['t0'][1]", "beside_a_prickly_object"),
    ],
)
def test_the_holder_is_named(consume: Callable[[Pairs], object], path: str, function: str) -> None:
    holder = first_holder(consume)
    assert (holder.path, holder.function) == (path, function)
    assert holder.file == __file__
    assert str(holder) == f"{path} in {function} ({__file__}:{holder.line})"


def test_an_attribute_is_named_from_the_method_that_iterates() -> None:
    holder = first_holder(Cache().load)
    assert (holder.path, holder.function) == ("self.tensors['t0']", "Cache.load")


def test_the_line_is_where_the_loop_waits() -> None:
    line = sys._getframe().f_lineno + 4

    def here(weights: Pairs) -> None:
        kept = []
        for _, tensor in weights:
            kept.append(tensor)

    assert first_holder(here).line == line


def test_who_let_go_is_named_if_nobody_was_seen_to_hold() -> None:
    """Two tensors go stale unseen, inside a batch of three, and are let go before the next look."""

    def lends_batches() -> Pairs:
        buffer = torch.zeros(6, 8)
        yield "a", buffer[0]
        yield "b", buffer[1]
        yield "c", buffer[2]
        buffer[1] = 7
        yield "d", buffer[3]

    def lets_go(weights: Pairs) -> None:
        kept = {}
        for name, tensor in weights:
            kept[name] = tensor
            if name == "d":
                del kept["b"]

    watched = guard(lends_batches(), on_stale="record")
    lets_go(watched)
    [stale] = watched.stale
    assert stale.victim == "b"
    assert stale.held_by is not None
    assert stale.held_by.path == "something that was let go"
    assert stale.held_by.function.endswith("lets_go")


def lends_from(buffers: list[torch.Tensor], order: list[int]) -> Pairs:
    """Fills `buffers[number]` for every number in `order`."""
    for step, number in enumerate(order):
        yield f"t{step}", buffers[number].fill_(step + 1)


def named_holders(weights: Pairs, consume: Callable[[Pairs], object]) -> dict[str, str]:
    watched = guard(weights, on_stale="record")
    consume(watched)
    return {each.victim: each.held_by.path for each in watched.stale if each.held_by}


def test_the_newest_is_looked_at_though_an_older_one_is_sound() -> None:
    def waits_one_step(weights: Pairs) -> None:
        kept: list[torch.Tensor] = []
        waiting: dict[str, torch.Tensor] = {}
        for name, tensor in weights:
            if not kept:
                kept.append(tensor)
            waiting.clear()
            waiting[name] = tensor

    buffers = [torch.zeros(8), torch.zeros(8)]
    found = named_holders(lends_from(buffers, [0, 1, 1, 1]), waits_one_step)
    assert found == {"t1": "waiting['t1']", "t2": "waiting['t2']"}


def test_the_oldest_is_looked_at_though_a_newer_one_is_sound() -> None:
    def holds_two(weights: Pairs) -> None:
        window: deque[torch.Tensor] = deque(maxlen=2)
        for _, tensor in weights:
            window.append(tensor)

    buffers = [torch.zeros(8), torch.zeros(8)]
    found = named_holders(lends_from(buffers, [0, 1, 0, 1, 0]), holds_two)
    assert found == {"t0": "window[0]", "t1": "window[0]", "t2": "window[0]"}
