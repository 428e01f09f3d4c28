"""The incident's consumer in its three versions, on the course's checkpoint."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import torch

from casestudy import course
from casestudy.checkpoint import checkpoint_entries, dequantise, shard_paths
from casestudy.consumers import (
    CONSUMERS,
    FUSED,
    WK,
    Difference,
    collect,
    differences,
    keeps_the_pair,
    wrong_parameters,
)
from casestudy.errors import CheckpointError
from casestudy.loaders import borrowed, cloned, plain
from casestudy.reproduce import load, load_plain

LAYERS = 4
FUSED_NAMES = [f"model.layers.{layer}.self_attn.{FUSED}" for layer in range(LAYERS)]
EXPECTED_WRONG = {
    "copies_at_once": [],
    "keeps_the_pair": FUSED_NAMES,
    "clones_the_pair": [],
}


@pytest.mark.parametrize("name", CONSUMERS)
def test_only_the_consumer_that_keeps_the_pair_goes_wrong(name: str) -> None:
    loaded = load(course.CHECKPOINT, borrowed, CONSUMERS[name], memory_limit=0)
    right = load_plain(course.CHECKPOINT, CONSUMERS[name])
    assert wrong_parameters(loaded, right) == EXPECTED_WRONG[name]


@pytest.mark.parametrize("name", CONSUMERS)
def test_every_consumer_is_right_on_clones(name: str) -> None:
    loaded = load(course.CHECKPOINT, cloned, CONSUMERS[name], memory_limit=0)
    assert wrong_parameters(loaded, load_plain(course.CHECKPOINT, CONSUMERS[name])) == []


def test_twenty_runs_of_twenty_give_the_same_wrong_set() -> None:
    right = load_plain(course.CHECKPOINT)
    runs = [
        wrong_parameters(load(course.CHECKPOINT, borrowed, memory_limit=0), right)
        for _ in range(20)
    ]
    assert runs == [FUSED_NAMES] * 20


def test_the_damage_is_finite() -> None:
    loaded = load(course.CHECKPOINT, borrowed, memory_limit=0)
    assert all(bool(loaded[name].isfinite().all()) for name in FUSED_NAMES)


@pytest.mark.parametrize("turned", [False, True], ids=["scale first", "weight first"])
def test_the_fused_parameter_is_the_pair_and_its_neighbour(turned: bool) -> None:
    paths = shard_paths(course.CHECKPOINT)
    pairs = sorted(plain(paths), reverse=turned)
    tensors = dict(pairs)
    parameters = keeps_the_pair(pairs, paths)
    for name in FUSED_NAMES:
        wk = tensors[name.replace(FUSED, WK)]
        scale = tensors[name.replace(FUSED, WK) + "_scale_inv"]
        projection = tensors[name.replace(FUSED, "indexer.weights_proj.weight")]
        assert parameters[name].dtype == torch.bfloat16
        assert torch.equal(parameters[name], torch.cat([dequantise(wk, scale), projection]))


def test_all_other_parameters_keep_name_dtype_and_shape() -> None:
    paths = shard_paths(course.CHECKPOINT)
    parameters = load_plain(course.CHECKPOINT)
    entries = {entry.name: entry for entry in checkpoint_entries(paths)}
    for name in parameters.keys() - set(FUSED_NAMES):
        entry = entries[name]
        assert (parameters[name].dtype, tuple(parameters[name].shape)) == entry[1:3]
    assert len(entries) == len(parameters) + 2 * LAYERS


@pytest.mark.parametrize("name", CONSUMERS)
def test_an_incomplete_stream_is_noticed(name: str) -> None:
    paths = shard_paths(course.CHECKPOINT)
    pairs = list(plain(paths))
    for broken, sentence in (
        (pairs[:-1], f"{pairs[-1][0]} is in the shards but was never yielded"),
        ([], "is in the shards but was never yielded"),
        ([*pairs, pairs[0]], f"{pairs[0][0]} was yielded twice"),
        ([("ghost", torch.ones(1)), *pairs], "ghost was yielded twice, or is in none"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            CONSUMERS[name](broken, paths)


def test_collect_keeps_what_it_is_given(lesson_file: Path) -> None:
    right = dict(plain(lesson_file))
    assert collect(right.items()) == right
    assert len(wrong_parameters(collect(borrowed(lesson_file, memory_limit=0)), right)) == 5


def test_wrong_parameters_compares_bytes_not_values() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert wrong_parameters({"a": nan}, {"a": nan.clone()}) == []
    assert wrong_parameters({"a": -zero}, {"a": zero}) == ["a"]
    assert wrong_parameters({"a": zero}, {"a": zero.bfloat16()}) == ["a"]
    assert wrong_parameters({"a": zero}, {"a": zero.view(1, 1)}) == ["a"]


def test_wrong_parameters_wants_the_same_names() -> None:
    with pytest.raises(ValueError, match="only one of the two holds b"):
        wrong_parameters({"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})


def test_a_difference_is_relative_to_the_reference() -> None:
    right = {
        "a": torch.tensor([3.0, 4.0]),
        "b": torch.ones(2),
        "c": torch.ones(2),
        "d": torch.ones(2),
    }
    loaded = {
        "d": torch.ones(2),
        "a": torch.tensor([3.0, 14.0]),
        "b": torch.tensor([1.0, float("nan")]),
        "c": torch.ones(3),
    }
    assert differences(loaded, right) == [
        Difference("a", True, 2.0),
        Difference("b", True, inf),
        Difference("c", True, inf),
        Difference("d", False, 0.0),
    ]


def test_a_difference_from_nothing_but_zeros_is_wrong_all_the_same() -> None:
    (found,) = differences({"a": torch.ones(1)}, {"a": torch.zeros(1)})
    assert (found.wrong, found.relative_error) == (True, inf)
    (same,) = differences({"a": -torch.zeros(1)}, {"a": torch.zeros(1)})
    assert (same.wrong, same.relative_error) == (True, 0.0)


def test_a_complex_difference_counts_its_imaginary_part() -> None:
    loaded, right = {"a": torch.tensor([3 + 8j])}, {"a": torch.tensor([3 + 4j])}
    (found,) = differences(loaded, right)
    assert found.relative_error == pytest.approx(0.8)
