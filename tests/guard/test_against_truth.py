"""The guard against the truth: bytes compared at the moment of use, over cases made at random."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.utils.dlpack import from_dlpack

from casestudy.guard import Guard, guard
from casestudy.loaders import Loader, borrowed, cloned
from casestudy.twin import OnRecycle, Order, lend

Pairs = Iterator[tuple[str, torch.Tensor]]
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.int64]
LONGEST = 3_000  # elements; the widest tensors are longer than what is read whole

FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda t: t,
    "slice": lambda t: t.view(-1)[-1:],
    "bytes": lambda t: t.view(-1).view(torch.uint8),
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "transpose": lambda t: t[None].mT,
    "storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.view(-1).view(torch.uint8).numpy(),
    "memoryview": lambda t: memoryview(t.view(-1).view(torch.uint8).numpy()),  # type: ignore[arg-type]
    "dlpack": lambda t: from_dlpack(t.view(torch.uint8)),
    "pair": lambda t: ("a pair", t),
    "closure": lambda t: lambda: t,
}
LAYERS: dict[str, Callable[[Pairs], Pairs]] = {
    "unpacks": lambda pairs: ((name, tensor) for name, tensor in pairs),
    "hands on": lambda pairs: (pair for pair in pairs),
    "delegates": lambda pairs: _delegates(pairs),
    "filters": lambda pairs: filter(None, pairs),
}


@dataclass(frozen=True)
class Plan:
    """What a consumer does with each tensor: the form it keeps, and for how many steps.

    0 steps: it is used at once; -1: it is kept to the end.
    """

    tensors: dict[str, torch.Tensor]
    keeps: list[tuple[str, int]]
    layers: list[str]
    loop: str


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 9))
    tensors = {
        f"t{number}": _random(
            draw(st.sampled_from(DTYPES)), draw(st.integers(1, LONGEST)), generator
        )
        for number in range(count)
    }
    steps = st.sampled_from([0, 0, 1, 1, 2, 3, 5, -1])
    keeps = st.tuples(st.sampled_from(sorted(FORMS)), steps)
    return Plan(
        tensors,
        draw(st.lists(keeps, min_size=count, max_size=count)),
        draw(st.lists(st.sampled_from(sorted(LAYERS)), max_size=3)),
        draw(st.sampled_from(sorted(LOOPS))),
    )


@settings(max_examples=1400)
@given(
    plans(),
    st.integers(1, 3),
    st.sampled_from(["file", "shuffled"]),
    st.sampled_from(["overwrite", "quarantine"]),
    st.integers(0, 3),
)
def test_on_the_twin(
    plan: Plan, slots: int, order: Order, on_recycle: OnRecycle, seed: int
) -> None:
    check(plan, lend(plan.tensors, slots=slots, order=order, on_recycle=on_recycle, seed=seed))


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(), loader=st.sampled_from([borrowed, borrowed, cloned]), room=st.integers(0, 3))
def test_on_the_streamer(plan: Plan, loader: Loader, room: int, tmp_path: Path) -> None:
    path = tmp_path / "case.safetensors"
    save_file(plan.tensors, path)
    limit = room * (path.stat().st_size - sum(t.nbytes for t in plan.tensors.values()))
    largest = max(tensor.nbytes for tensor in plan.tensors.values())
    check(plan, loader(path, memory_limit=room and max(room * largest, limit)))


def check(plan: Plan, pairs: Pairs) -> None:
    watched = guard(pairs, on_stale="record")
    wrong = consume(plan, watched)
    assert sorted(each.victim for each in watched.stale) == sorted(wrong)
    assert watched.unwatched == []


def consume(plan: Plan, watched: Guard[tuple[str, torch.Tensor]]) -> set[str]:
    """Follows the plan; returns the names whose bytes were not their own when they were used."""
    stream: Pairs = watched
    for layer in plan.layers:
        stream = LAYERS[layer](stream)
    desk = Desk(plan)
    LOOPS[plan.loop](stream, desk)
    desk.use_what_is_due(everything=True)
    return desk.wrong


class Desk:
    """Where kept things lie until they are due."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.step = -1
        self.kept: list[tuple[str, Any, int]] = []
        self.wrong: set[str] = set()

    def take(self, name: str, tensor: torch.Tensor) -> None:
        self.step += 1
        self.use_what_is_due()
        form, steps = self.plan.keeps[self.step]
        if steps == 0:
            self.use(name, tensor)
        else:
            due = self.step + steps if steps > 0 else 1_000_000
            self.kept.append((name, FORMS[form](tensor), due))

    def use_what_is_due(self, everything: bool = False) -> None:
        due = [each for each in self.kept if everything or each[2] <= self.step]
        self.kept = [each for each in self.kept if not any(each is one for one in due)]
        for name, thing, _ in due:
            self.use(name, thing)

    def use(self, name: str, thing: object) -> None:
        if _all_bytes(thing) != _all_bytes(self.plan.tensors[name]):
            self.wrong.add(name)


def _unpacking(stream: Pairs, desk: Desk) -> None:
    for name, tensor in stream:
        desk.take(name, tensor)


def _with_a_local_view(stream: Pairs, desk: Desk) -> None:
    for name, tensor in stream:
        part = tensor[:1]
        desk.take(name, tensor)
        part.view(torch.uint8).clone()


def _numbered_with_a_local_array(stream: Pairs, desk: Desk) -> None:
    for _, (name, tensor) in enumerate(stream):
        array = tensor.view(torch.uint8).numpy()
        desk.take(name, tensor)
        tail = array[-1:]
        tail.copy()


def _pairs(stream: Pairs, desk: Desk) -> None:
    for pair in stream:
        name, tensor = pair
        desk.take(name, tensor)


def _numbered(stream: Pairs, desk: Desk) -> None:
    for _, (name, tensor) in enumerate(stream):
        desk.take(name, tensor)


def _numbered_pairs(stream: Pairs, desk: Desk) -> None:
    for numbered in zip(itertools.count(), stream):
        desk.take(*numbered[1])


def _by_hand(stream: Pairs, desk: Desk) -> None:
    while (pair := next(stream, None)) is not None:
        desk.take(*pair)


def _by_hand_until_it_stops(stream: Pairs, desk: Desk) -> None:
    while True:
        try:
            name, tensor = next(stream)
        except StopIteration:
            return
        desk.take(name, tensor)


def _in_a_comprehension(stream: Pairs, desk: Desk) -> None:
    [desk.take(name, tensor) for name, tensor in stream]  # type: ignore[func-returns-value]


def _through_starmap(stream: Pairs, desk: Desk) -> None:
    deque(itertools.starmap(desk.take, stream), maxlen=0)


LOOPS: dict[str, Callable[[Pairs, Desk], None]] = {
    "unpacking": _unpacking,
    "with a local view": _with_a_local_view,
    "numbered, with a local array": _numbered_with_a_local_array,
    "pairs": _pairs,
    "numbered": _numbered,
    "numbered pairs": _numbered_pairs,
    "by hand": _by_hand,
    "by hand until it stops": _by_hand_until_it_stops,
    "in a comprehension": _in_a_comprehension,
    "through starmap": _through_starmap,
}


def _delegates(pairs: Pairs) -> Pairs:
    yield from pairs


def _random(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    octets = torch.randint(
        0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator
    )
    return octets.view(dtype)


def _all_bytes(thing: Any) -> bytes:  # noqa: ANN401, every form of a tensor
    """Of the whole storage that `thing` looks into."""
    if callable(thing):
        thing = thing()
    if isinstance(thing, tuple):
        thing = thing[1]
    if isinstance(thing, torch.Tensor):
        thing = thing.untyped_storage()
    if isinstance(thing, torch.UntypedStorage):
        thing = torch.empty(0, dtype=torch.uint8).set_(thing).numpy()
    return bytes(thing)


def test_the_cases_can_tell(tmp_path: Path) -> None:
    """A keeper is caught and a user is not: the check above is no formality."""
    tensors = {f"t{number}": torch.full((8,), float(number)) for number in range(3)}
    keeper = Plan(tensors, [("tensor", -1)] * 3, [], "unpacking")
    assert consume(keeper, guard(lend(tensors), on_stale="record")) == {"t0", "t1"}
    with pytest.raises(AssertionError):
        check(keeper, _liar(tensors))


def _liar(tensors: dict[str, torch.Tensor]) -> Pairs:
    """Yields a wrong tensor from the start, which is none of the guard's business."""
    for name, tensor in tensors.items():
        yield name, tensor + 1
