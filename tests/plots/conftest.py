"""Observations and pictures that several tests of pictures share; drawn once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from casestudy import course
from casestudy.checkpoint import read_layout
from casestudy.loaders import requests
from casestudy.observe import Observation, Subject, observe, subject
from casestudy.plots import (
    Continuations,
    Picture,
    byte_view,
    checkpoint_strip,
    damage,
    storage_map,
    stream_map,
    text_comparison,
)
from casestudy.reproduce import Reproduction
from casestudy.trace import Trace, record

SHARD = course.CHECKPOINT / "model-00002-of-00003.safetensors"


@pytest.fixture(scope="session")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Six tensors, three dtypes, six sizes; every one is kept."""
    return subject(course.write_lesson_file(tmp_path_factory.mktemp("lesson")))


@pytest.fixture(scope="session")
def model() -> Subject:
    """The course's checkpoint, through the incident's consumer."""
    return subject(course.CHECKPOINT)


@pytest.fixture(scope="session")
def lent(lesson: Subject) -> Observation:
    """A buffer of 2.4 tensors: some are overwritten in part."""
    return observe(lesson, "borrowed", 1843)


@pytest.fixture(scope="session")
def copied(lesson: Subject) -> Observation:
    return observe(lesson, "cloned", 0)


@pytest.fixture(scope="session")
def broken(model: Subject) -> Observation:
    """The incident."""
    return observe(model, "borrowed", 0)


@pytest.fixture(scope="session")
def told(reproduction: Reproduction) -> Continuations:
    outcomes = {"cloned": reproduction.cloned, "borrowed": reproduction.borrowed}
    return Continuations(outcomes, len(reproduction.prompt), course.index_topk())


@pytest.fixture(scope="session")
def pictures(
    lent: Observation,
    copied: Observation,
    broken: Observation,
    model: Subject,
    told: Continuations,
) -> dict[str, Picture]:
    """One of every kind, small and large."""
    kept = {"borrowed": lent.parameters, "cloned": copied.parameters}
    steps = {step.name: step for step in lent.trace.steps}
    return {
        "map": stream_map(lent.trace),
        "map of copies": stream_map(copied.trace),
        "map of a checkpoint": stream_map(broken.trace),
        "map of many": stream_map(trace_of_many(500)),
        "map of odd names": stream_map(trace_of_many(5, "a$b_{c}$.<d>&." + "e" * 40)),
        "storage": storage_map(kept),
        "F32 bytes": byte_view(steps["scale"]),
        "BF16 bytes": byte_view(steps["norm"]),
        "FP8 bytes": byte_view(steps["weight"]),
        "strip": checkpoint_strip(read_layout(SHARD), requests(model.paths, 0)),
        "damage": damage(broken.telling, told),
        "damage of few": damage(lent.telling),
        "text": text_comparison(told),
    }


def trace_of_many(tensors: int, name: str = "layer") -> Trace:
    """One slot for everything, and everything kept."""
    slot = torch.zeros(64 + tensors)

    def lend() -> object:
        for number in range(tensors):
            slot.fill_(number)
            yield f"{name}.{number}", torch.from_numpy(slot.numpy()[: 64 + number])

    stream, trace = record(lend())  # type: ignore[arg-type]
    kept = dict(stream)
    assert len(kept) == tensors
    return trace


@pytest.fixture
def draw_map(lesson: Subject) -> Callable[[], Picture]:
    """Loads and draws once more."""
    return lambda: stream_map(observe(lesson, "borrowed", 1843).trace)
