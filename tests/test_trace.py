"""A trace tells what was yielded and for how long it was held, by the real streamer's example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from casestudy.loaders import borrowed, cloned, plain
from casestudy.trace import Trace, digest, record

KEEPING: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a slice": lambda t: t[:2],
    "another dtype": lambda t: t.view(torch.uint8),
    "NumPy": lambda t: t.view(torch.uint8).numpy(),
    "detached": lambda t: t.detach(),
    "a Parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "transposed": lambda t: t.unsqueeze(0).mT,
}


def test_every_step_is_noted_with_the_bytes_it_was_yielded_with(lesson_file: Path) -> None:
    right = dict(plain(lesson_file))
    stream, trace = record(borrowed(lesson_file, memory_limit=0))
    names = [name for name, _ in stream]
    assert [step.name for step in trace.steps] == names
    for index, step in enumerate(trace.steps):
        tensor = right[step.name]
        assert step.index == index
        assert (step.dtype, step.shape) == (tensor.dtype, tuple(tensor.shape))
        assert (step.span.nbytes, step.digest) == (tensor.nbytes, digest(tensor))


@pytest.mark.parametrize("keep", KEEPING.values(), ids=KEEPING)
def test_whoever_keeps_a_view_holds(equal_file: Path, keep: Callable[[torch.Tensor], Any]) -> None:
    stream, trace = record(borrowed(equal_file, memory_limit=0))
    kept = [keep(tensor) for _, tensor in stream]
    assert len(kept) == 10
    assert [step.last_held for step in trace.steps] == [9] * 10
    assert [step.index for step in trace.stale()] == list(range(9))


def test_a_loop_that_keeps_nothing_holds_nothing(equal_file: Path) -> None:
    assert _trace_of_loop(equal_file, lambda t: None).stale() == []


def test_a_loop_that_copies_holds_nothing(equal_file: Path) -> None:
    copies: list[torch.Tensor] = []
    trace = _trace_of_loop(equal_file, lambda t: copies.append(t.clone()))
    assert [step.last_held for step in trace.steps] == list(range(10))
    assert trace.stale() == []


def test_a_hold_ends_when_it_is_let_go(equal_file: Path) -> None:
    kept: dict[str, torch.Tensor] = {}
    stream, trace = record(borrowed(equal_file, memory_limit=0))
    for number, (name, tensor) in enumerate(stream):
        if number == 2:
            kept[name] = tensor
        if number == 6:
            kept.clear()
    assert [step.last_held - step.index for step in trace.steps] == [0, 0, 4, 0, 0, 0, 0, 0, 0, 0]
    assert [step.index for step in trace.stale()] == [2]


def test_the_overwriters_are_those_on_the_same_bytes_in_order(lesson_file: Path) -> None:
    stream, trace = record(borrowed(lesson_file, memory_limit=1843))
    kept = dict(stream)
    assert len(kept) == 6
    assert {
        step.name: [later.name for later in trace.overwriters(step)] for step in trace.stale()
    } == {
        "embed": ["bias", "norm", "weight"],
        "scale": ["norm", "head"],
        "bias": ["weight"],
        "norm": ["weight"],
    }


def test_a_fate_tells_the_first_overwriter_and_since_when(lesson_file: Path) -> None:
    stream, trace = record(borrowed(lesson_file, memory_limit=1843))
    kept = dict(stream)
    assert len(kept) == 6
    assert [
        (fate.step.name, fate.overwriter and fate.overwriter.name, fate.stale_from)
        for fate in trace.fates()
    ] == [
        ("embed", "bias", 2),
        ("scale", "norm", 2),  # the request that brings `bias` brings `norm` as well
        ("bias", "weight", 5),
        ("norm", "weight", 5),
        ("head", None, None),
        ("weight", None, None),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 12), st.booleans()), min_size=1, max_size=30
    )
)
def test_the_first_overwriter_is_the_first_of_all(spans: list[tuple[int, int, bool]]) -> None:
    memories = (torch.zeros(64, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8))
    lent = [
        (f"t{number}", memories[other][start : start + size])
        for number, (start, size, other) in enumerate(spans)
    ]
    stream, trace = record(lent)
    for _ in stream:
        pass
    for fate in trace.fates():
        overwriters = trace.overwriters(fate.step)
        assert fate.overwriter is (overwriters[0] if overwriters else None)


def test_snapshots_are_what_the_bytes_were_at_each_step_while_held(lesson_file: Path) -> None:
    right = dict(plain(lesson_file))
    stream, trace = record(borrowed(lesson_file, memory_limit=0), snapshot_nbytes=32)
    kept = []
    for number, (_, tensor) in enumerate(stream):
        if number == 1:
            kept.append(tensor)
        if number == 4:
            kept.clear()
    scale = trace.steps[1]
    names = ["scale", "bias", "norm", "head"]
    assert scale.snapshots == [
        bytes(right[name].flatten().view(torch.uint8)[:32].tolist()) for name in names
    ]
    assert (scale.last_held, scale.changed_at) == (4, 2)
    assert [len(step.snapshots) for step in trace.steps] == [1, 4, 1, 1, 1, 1]


def test_snapshots_of_slices_of_one_storage_are_of_the_slice() -> None:
    memory = torch.arange(12, dtype=torch.uint8)
    stream, trace = record([("a", memory[:4]), ("b", memory[4:8]), ("c", memory[8:])])
    kept = dict(stream)
    assert len(kept) == 3
    assert [step.snapshots[-1] for step in trace.steps] == [
        bytes(range(4)),
        bytes(range(4, 8)),
        bytes(range(8, 12)),
    ]


def test_bytes_that_change_without_an_overwriter_are_stale(equal_file: Path) -> None:
    """As when a loader poisons what it has lent."""
    tensors = {name: tensor.clone() for name, tensor in plain(equal_file)}
    stream, trace = record(tensors.items())
    for number, (_, _) in enumerate(stream):
        if number == 4:
            tensors["t1"].zero_()
    assert [(f.step.name, f.overwriter, f.stale_from) for f in trace.fates() if f.stale_from] == [
        ("t1", None, 5)
    ]


def test_copies_are_never_stale(lesson_file: Path) -> None:
    stream, trace = record(cloned(lesson_file, memory_limit=0))
    kept = dict(stream)
    assert len(kept) == 6
    assert trace.stale() == []


def test_a_digest_is_of_the_bytes_and_nothing_else() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    assert digest(tensor) == digest(tensor.clone()) == digest(tensor.view(torch.int32))
    assert digest(tensor.T) == digest(tensor.T.contiguous()) != digest(tensor)
    assert digest(tensor[:0]) == digest(torch.zeros(0)) != digest(torch.zeros(1))
    assert digest(torch.tensor(1.0)) == digest(torch.ones(1))
    waves = torch.tensor([1 + 2j, 3 - 4j])
    assert digest(waves.conj()) == digest(waves.conj().resolve_conj()) != digest(waves)


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"]
)
def test_what_has_no_bytes_has_no_digest(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="has no byte span"):
        digest(tensor)


def _trace_of_loop(path: Path, use: Callable[[torch.Tensor], None]) -> Trace:
    stream, trace = record(borrowed(path, memory_limit=0))
    for _, tensor in stream:
        use(tensor)
    return trace


def test_tied_weights_overwrite_nothing() -> None:
    weight = torch.arange(8.0)
    stream, trace = record([("embed", weight), ("other", torch.ones(8)), ("head", weight)])
    kept = dict(stream)
    assert len(kept) == 3
    assert trace.stale() == []
    assert trace.overwriters(trace.steps[0]) == []
    assert [fate.overwriter for fate in trace.fates()] == [None] * 3


def test_both_of_a_tied_pair_are_stale_once_someone_else_comes() -> None:
    memory = torch.arange(8.0)

    def lend() -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("embed", "head"):
            yield name, torch.from_numpy(memory.numpy())
        memory.zero_()
        yield "last", torch.from_numpy(memory.numpy())

    stream, trace = record(lend())
    kept = dict(stream)
    assert len(kept) == 3
    assert [step.name for step in trace.stale()] == ["embed", "head"]
