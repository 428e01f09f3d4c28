"""Address x step: the marks say what the trace says."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from casestudy.loaders import borrowed
from casestudy.observe import Observation
from casestudy.plots import Picture, stream_map
from casestudy.plots.stream_map import StreamMap
from casestudy.trace import record
from tests.plots.conftest import trace_of_many


@pytest.fixture(scope="module")
def drawn(lent: Observation) -> StreamMap:
    return stream_map(lent.trace, "Lent")


def test_the_alt_text_names_every_stale_tensor_and_its_overwriter(drawn: StreamMap) -> None:
    assert drawn.alt.startswith("Lent. 6 tensors in 6 steps, 4 of them stale while held. ")
    for victim, fate in [
        ("embed", "stale from step 2: overwritten by bias"),
        ("scale", "stale from step 2: overwritten by norm, which is yielded at step 3"),
        ("bias", "stale from step 5: overwritten by weight"),
        ("norm", "stale from step 5: overwritten by weight"),
        ("head", "never overwritten while held"),
        ("weight", "never overwritten while held"),
    ]:
        sentence = next(s for s in drawn.alt.split(". ") if s.startswith(victim))
        assert sentence.rstrip(".").endswith(fate)


def test_the_alt_text_of_many_names_every_stale_tensor(broken: Observation) -> None:
    picture = stream_map(broken.trace)
    stale = broken.trace.stale()
    assert len(stale) == 4
    assert all(f"{step.name}, 32 bytes at " in picture.alt for step in stale)
    assert picture.alt.count("yielded at step") == 4 + picture.alt.count("which is yielded")


def test_each_stale_life_is_hatched_and_names_whose_the_bytes_are(drawn: StreamMap) -> None:
    own, stale = _lives(drawn)
    assert sorted(own) == [(0, 2), (1, 2), (2, 5), (3, 5), (4, 6), (5, 6)]
    assert sorted(stale) == [(2, 6), (2, 6), (5, 6), (5, 6)]
    named = sorted((text.get_position()[0], text.get_text()) for text in drawn.steps.texts)
    assert named == [
        (2.5, "bias"),
        (3.0, "norm"),
        (4.0, "norm"),
        (5.0, "head"),
        (5.5, "weight"),
        (5.5, "weight"),
        (5.5, "weight"),
    ]


def test_a_life_ends_when_the_tensor_is_let_go(lesson_file: Path) -> None:
    kept = []
    stream, trace = record(borrowed(lesson_file, memory_limit=0))
    for number, (_, tensor) in enumerate(stream):
        if number == 0:
            kept.append(tensor)
        if number == 3:
            kept.clear()
    own, stale = _lives(stream_map(trace))
    assert stale == [(1, 4)]
    assert (0, 1) in own


def test_bars_lie_where_the_bytes_lie_and_rows_say_so(drawn: StreamMap) -> None:
    where = drawn.figure.axes[0]
    (bars,) = [_extents(each) for each in _bars(where)]
    assert sorted(bars) == [(0, 576), (0, 736), (0, 768), (576, 1280), (768, 1408), (1280, 1824)]
    assert [label.get_text() for label in where.get_yticklabels()] == [
        "bias: A+0x0, 576 B",
        "weight: A+0x0, 736 B",
        "embed: A+0x0, 768 B",
        "norm: A+0x240, 704 B",
        "scale: A+0x300, 640 B",
        "head: A+0x500, 544 B",
    ]


def test_tensors_that_lie_there_in_turn_share_a_row(equal_file: Path) -> None:
    stream, trace = record(borrowed(equal_file, memory_limit=0))
    for _ in stream:
        pass
    picture = stream_map(trace)
    where, when = picture.figure.axes
    labels = [label.get_text() for label in where.get_yticklabels()]
    assert labels == ["t0 and 9 more: A+0x0, 16,384 B"]
    assert [text.get_text() for text in when.texts if text.get_text()] == [
        step.name for step in trace.steps
    ]


def test_tensors_that_are_held_together_have_a_row_each(equal_file: Path) -> None:
    stream, trace = record(borrowed(equal_file, memory_limit=0))
    kept = dict(stream)
    assert len(kept) == 10
    assert len(stream_map(trace).figure.axes[0].get_yticklabels()) == 10


def test_copies_are_drawn_apart_and_unhatched(copied: Observation) -> None:
    picture = stream_map(copied.trace)
    assert _lives(picture)[1] == []
    assert "0 of them stale" in picture.alt
    (bars,) = [sorted(_extents(each)) for each in _bars(picture.figure.axes[0])]
    assert all(left[1] <= right[0] for left, right in pairwise(bars))


def test_of_many_rows_those_with_a_stale_tensor_are_tall_and_named(broken: Observation) -> None:
    picture = stream_map(broken.trace)
    labels = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    named = sorted(label.split(":")[0] for label in labels if ":" in label)
    assert named == [f"m.l.{layer}.s.i.wk.weight_scale_inv" for layer in range(4)]
    places = [label for label in labels if re.fullmatch(r"A\+0x[0-9a-f]+, [0-9,]+ B", label)]
    assert len(places) == len(labels) - 4 > 10
    written = {text.get_text().strip() for text in picture.steps.texts} - {""}
    assert {"by lm_head.weight", "by model.layers.0.mlp.down_proj.weight"} <= written
    assert len({words.removeprefix("by ") for words in written}) == 3  # two layers share one


def test_many_stale_tensors_are_all_in_the_table() -> None:
    picture = stream_map(trace_of_many(40))
    assert [row[1] for row in picture.rows] == [f"layer.{number}" for number in range(40)]
    assert [row[6] for row in picture.rows] == [*map(str, range(1, 40)), "never"]
    assert picture.rows[0][7] == "layer.1 (step 1)"
    own, stale = _lives(picture)
    assert sorted(stale) == [(step + 1, 40) for step in range(39)]
    assert sorted(own) == [(step, step + 1) for step in range(40)]


def test_a_name_is_written_as_it_is() -> None:
    picture = stream_map(trace_of_many(2, "$a_b$ <&>"))
    written = [each.text for each in ElementTree.fromstring(picture.svg()).iter()]
    assert "$a_b$ <&>.0: A+0x0, 256 B" in written
    assert "$a_b$ <&>.0, 256 bytes" in picture.alt


def test_an_empty_trace_can_be_drawn() -> None:
    stream, trace = record([])
    assert list(stream) == []
    assert "0 tensors in 0 steps" in stream_map(trace).alt


def test_up_to_a_step_the_future_is_behind_a_curtain(drawn: StreamMap) -> None:
    assert drawn.moment(2) == (
        "Step 2: bias arrives. Held, with bytes of its own: bias. Held, but stale: embed, scale."
    )
    assert drawn.moment(3) == (
        "Step 3: norm arrives. Held, with bytes of its own: bias, norm. "
        "Held, but stale: embed, scale."
    )
    widths = [_curtain_width(drawn, step) for step in range(6)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == 0
    assert widths[0] / widths[4] == pytest.approx(5, abs=0.1)
    assert drawn.moment(3) in drawn.html_at(3)


def _curtain_width(picture: StreamMap, step: int) -> float:
    curtain = picture._curtain(step)
    return float(curtain.partition('width="')[2].partition('"')[0])


def _lives(picture: Picture) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Steps from and to of the plain bars and of the hatched ones."""
    own, stale = _bars(picture.figure.axes[1])
    assert not own.get_hatch()
    assert stale.get_hatch()
    return _extents(own), _extents(stale)


def _bars(axes: Axes) -> list[PolyCollection]:
    return [each for each in axes.collections if isinstance(each, PolyCollection)]


def _extents(bars: PolyCollection) -> list[tuple[float, float]]:
    ends = [np.asarray(path.vertices)[:, 0] for path in bars.get_paths()]
    return [(min(each), max(each)) for each in ends]
