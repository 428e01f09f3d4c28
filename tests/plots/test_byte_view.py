"""The same bytes at three moments: what changed is marked, what it means stands below."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from casestudy.loaders import borrowed, plain
from casestudy.plots import Picture, byte_grid, byte_view
from casestudy.plots.byte_view import decode
from casestudy.plots.picture import BLACK, VERMILION
from casestudy.trace import Step, record


@pytest.fixture
def steps(lesson_file: Path) -> dict[str, Step]:
    """The lesson's six tensors, all kept, in a buffer for one."""
    stream, trace = record(borrowed(lesson_file, memory_limit=0))
    kept = dict(stream)
    assert len(kept) == 6
    return {step.name: step for step in trace.steps}


@pytest.mark.parametrize("name", ["scale", "norm", "weight"])
def test_at_the_yield_the_grid_holds_the_files_own_bytes_and_values(
    steps: dict[str, Step], lesson_file: Path, name: str
) -> None:
    tensor = dict(plain(lesson_file))[name].flatten()
    hexed, values, marked = _read(byte_view(steps[name]), moment=0)
    octets = bytes(tensor.view(torch.uint8)[:64].tolist())
    assert hexed == [f"{octet:02x}" for octet in octets]
    shown = [float(value) for value in values]
    wanted = tensor[: 64 // tensor.element_size()].double().tolist()
    assert shown == pytest.approx(wanted, abs=6e-4)  # six letters of FP8
    assert marked == []


def test_later_the_overwriters_bytes_are_there_and_marked(
    steps: dict[str, Step], lesson_file: Path
) -> None:
    right = dict(plain(lesson_file))
    first = _octets(right["embed"])
    for moment, name in ((1, "scale"), (2, "weight")):
        hexed, values, marked = _read(byte_view(steps["embed"]), moment)
        there = _octets(right[name])
        assert hexed == [f"{octet:02x}" for octet in there]
        changed = [new != old for new, old in zip(there, first, strict=True)]
        assert marked == [h for h, change in zip(hexed, changed, strict=True) if change]
        assert len(values) == 16
        with np.errstate(invalid="ignore"):
            wanted = np.frombuffer(there, dtype=np.float32)
        assert [float(value) for value in values] == pytest.approx(list(wanted), rel=1e-3)


def test_every_changed_byte_is_underlined(steps: dict[str, Step]) -> None:
    picture = byte_view(steps["embed"])
    lines = "".join(text.get_text() for text in picture.figure.axes[0].texts)
    changed = sum(len(_read(picture, moment)[2]) for moment in range(3))
    assert lines.count("_") == 2 * changed > 100


def test_the_words_count_the_changes(steps: dict[str, Step]) -> None:
    picture = byte_view(steps["embed"], title="Embed")
    assert picture.alt.startswith("Embed. embed, float32, 64 of its 768 bytes. yielded, step 0: ")
    assert "yielded, step 0: 0 changed; the first values are -1.12584, " in picture.alt
    later = sum(a != b for a, b in zip(*steps["embed"].snapshots[:2], strict=True))
    assert f"one step later, step 1: {later} changed; " in picture.alt
    assert [row[0] for row in picture.rows[::8]] == ["0", "1", "5"]
    words = [text.get_text() for text in picture.figure.axes[0].texts]
    assert f"one step later, step 1: {later} of these 64 bytes changed" in words
    assert sum(row[2].count("*") for row in picture.rows[8:16]) == later


def test_what_nobody_holds_is_not_shown(lesson_file: Path) -> None:
    stream, trace = record(borrowed(lesson_file, memory_limit=0))
    for _ in stream:
        pass
    picture = byte_view(trace.steps[1])
    assert [row[2] for row in picture.rows if row[1] == ""] == ["not held"]
    assert "one step later, step 2: not held." in picture.alt


def test_up_to_a_step_the_later_moments_are_not_shown(steps: dict[str, Step]) -> None:
    assert "one step later, step 3: not held" in byte_view(steps["bias"], now=2).alt
    now = byte_view(steps["bias"], now=4)
    assert "now, step 4: " in now.alt
    wanted = [f"{octet:02x}" for octet in steps["bias"].snapshots[2]]
    assert _read(now, 2)[0] == wanted


def test_the_html_grid_says_the_same(steps: dict[str, Step]) -> None:
    picture = byte_view(steps["embed"])
    grid = byte_grid(steps["embed"])
    tables = grid.split("<table")[1:]
    assert len(tables) == 3
    for number, table in enumerate(tables):
        hexed, values, marked = _read(picture, number)
        cells = [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", table)]
        assert [cell for cell in cells if re.fullmatch("[0-9a-f]{2}", cell)] == hexed
        assert len(cells) == 64 + 4 + len(values)
        marks = [word for word in re.findall("<mark.*?>(.*?)</mark>", table) if len(word) == 2]
        assert marks == marked


def test_up_to_256_bytes_are_shown(lesson_file: Path) -> None:
    stream, trace = record(borrowed(lesson_file, memory_limit=0), snapshot_nbytes=1000)
    kept = dict(stream)
    assert len(kept) == 6
    picture = byte_view(trace.steps[4])
    hexed, values, _ = _read(picture, 0)
    assert len(hexed) == len(values) == 256
    assert hexed == [f"{octet:02x}" for octet in trace.steps[4].snapshots[0][:256]]


def test_a_tensor_of_a_few_bytes_can_be_shown() -> None:
    stream, trace = record([("one", torch.tensor([1.5])), ("none", torch.zeros(0))])
    kept = dict(stream)
    assert len(kept) == 2
    assert "the first values are 1.5" in byte_view(trace.steps[0]).alt
    assert "none, float32, 0 of its 0 bytes" in byte_view(trace.steps[1]).alt


@pytest.mark.parametrize(
    ("dtype", "values", "words"),
    [
        (torch.float8_e4m3fn, [448.0, -0.001953125], ["448", "-0.00195"]),
        (torch.float8_e5m2, [57344.0, float("inf")], ["57344", "inf"]),
        (torch.bfloat16, [float("nan"), 3.0e38], ["nan", "3e+38"]),
        (torch.float16, [0.5], ["0.5"]),
        (torch.int32, [-7], ["-7"]),
        (torch.bool, [True], ["True"]),
        (torch.complex64, [1 + 2j], ["1+2j"]),
    ],
)
def test_bytes_mean_what_their_dtype_says(
    dtype: torch.dtype, values: list[float], words: list[str]
) -> None:
    octets = bytes(torch.tensor(values, dtype=dtype).view(torch.uint8).tolist())
    assert decode(octets, dtype) == words
    assert decode(octets[:-1], dtype) == words[:-1]


def _octets(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.flatten().view(torch.uint8)[:64].tolist())


def _read(picture: Picture, moment: int) -> tuple[list[str], list[str], list[str]]:
    """Bytes, values and marked bytes of one moment, as they are written in the figure."""
    texts = picture.figure.axes[0].texts
    tops = [text.get_position()[1] for text in texts if text.get_fontweight() == "bold"]
    headings = [y for y in sorted(tops) if _is_heading(picture, y)]
    bounds = list(pairwise([*headings, 1e9]))[moment]
    inside = [text for text in texts if bounds[0] < text.get_position()[1] < bounds[1]]
    lines: dict[float, dict[int, tuple[str, bool]]] = {}
    for text in inside:
        letters = text.get_text()
        if text.get_color() not in (BLACK, VERMILION) or not letters.strip("_\u00a0"):
            continue
        line = lines.setdefault(text.get_position()[1], {})
        for found in re.finditer("[^\u00a0]+", letters):
            line[found.start()] = (found[0], text.get_color() == VERMILION)
    ordered = [[cells[place] for place in sorted(cells)] for _, cells in sorted(lines.items())]
    hexed = [word for line in ordered[::2] for word, _ in line]
    marked = [word for line in ordered[::2] for word, mark in line if mark]
    return hexed, [word for line in ordered[1::2] for word, _ in line], marked


def _is_heading(picture: Picture, y: float) -> bool:
    at = [text for text in picture.figure.axes[0].texts if text.get_position()[1] == y]
    return any("step" in text.get_text() for text in at)
