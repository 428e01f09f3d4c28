"""One load, watched: what it says is what loaders, consumers and traces say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from casestudy import course
from casestudy.checkpoint import shard_paths
from casestudy.consumers import FUSED, keeps_the_pair, wrong_parameters
from casestudy.errors import CaseStudyError, CheckpointError
from casestudy.loaders import borrowed, plain
from casestudy.observe import observe, subject


def test_of_a_file_everything_is_kept(lesson_file: Path) -> None:
    six = subject(lesson_file)
    seen = observe(six, "borrowed", 1843)
    assert seen.wrong == ["bias", "embed", "norm", "scale"]
    assert [step.name for step in seen.trace.stale()] == ["embed", "scale", "bias", "norm"]
    assert seen.telling == seen.differences
    assert seen.verdict == (
        "borrowed, a buffer of 1,843 bytes, 2.4 times the largest tensor: "
        "4 of 6 parameters wrong: bias, embed, norm, scale."
    )
    assert observe(six, "cloned", 0).wrong == []


def test_of_a_folder_the_incidents_consumer_fills_a_model() -> None:
    model = subject(course.CHECKPOINT)
    paths = shard_paths(course.CHECKPOINT)
    right = keeps_the_pair(plain(paths), paths)
    wrong = keeps_the_pair(borrowed(paths, memory_limit=0), paths)
    seen = observe(model, "borrowed", 0)
    assert seen.wrong == wrong_parameters(wrong, right)
    assert [each.name.endswith(FUSED) for each in seen.telling] == [True] * 4
    assert all(each.relative_error > 10 for each in seen.telling)
    assert len(observe(model, "cloned", 0).telling) == 4


@pytest.mark.parametrize("factor", [0, 2, 3, 4, 5, 7, 10, 12])
def test_the_trace_finds_every_layer_that_goes_wrong(factor: int) -> None:
    """Also where a request overwrites a waiting half long before its own tensor is yielded."""
    model = subject(course.CHECKPOINT)
    seen = observe(model, "borrowed", factor * model.largest)
    wrong = {name.split(".")[2] for name in seen.wrong}
    assert {step.name.split(".")[2] for step in seen.trace.stale()} == wrong


def test_the_limits_go_from_the_smallest_buffer_to_everything(lesson_file: Path) -> None:
    six = subject(lesson_file)
    limits = six.limits()
    assert (limits[0], limits[-1]) == (0, -1)
    assert limits[1:-1] == sorted(set(limits[1:-1]))
    assert six.largest == 768 < limits[1]
    assert limits[-2] < 3968
    assert [len(observe(six, "borrowed", limit).wrong) for limit in limits[:: len(limits) - 1]] == [
        5,
        0,
    ]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (0, "768 bytes, room for the largest tensor"),
        (1843, "1,843 bytes, 2.4 times the largest tensor"),
        (-1, "any size, room for everything"),
    ],
)
def test_a_limit_is_spelled_in_bytes_and_tensors(lesson_file: Path, limit: int, words: str) -> None:
    assert subject(lesson_file).spell(limit) == words


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        subject(tmp_path)


def test_of_a_folder_without_such_pairs_everything_is_kept(equal_file: Path) -> None:
    seen = observe(subject(equal_file.parent), "borrowed", 0)
    assert len(seen.wrong) == 9
    assert seen.subject.directory is None


def test_every_limit_of_a_file_with_a_long_header_works(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    save_file({f"a_rather_long_name_{number}": torch.ones(50) for number in range(9)}, path)
    many = subject(path)
    assert len(many.limits()) > 3
    for limit in many.limits():
        assert len(observe(many, "cloned", limit).differences) == 9


def test_a_file_without_bytes_has_no_limits(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    save_file({"a": torch.zeros(0)}, path)
    with pytest.raises(CheckpointError, match=r"empty\.safetensors: there are no bytes to load"):
        subject(path).limits()


def test_a_loader_that_is_not_there_is_named(lesson_file: Path) -> None:
    with pytest.raises(CaseStudyError, match="no loader lent; use borrowed or cloned"):
        observe(subject(lesson_file), "lent", 0)


def test_the_streamers_own_limit_can_be_had(lesson_file: Path) -> None:
    seen = observe(subject(lesson_file), "borrowed", None)
    assert seen.verdict == "borrowed, a buffer of the streamer's own size: 0 of 6 parameters wrong."
