"""A trace tells what was yielded and for how long it was held, by the real streamer's example."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
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
    assert [step.last_held - step.index for step in trace.steps] == [0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
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
