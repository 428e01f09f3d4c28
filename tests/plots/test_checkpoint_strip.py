"""A file from front to back: places, pairs, cuts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Arc, Rectangle

from casestudy.checkpoint import TensorEntry, read_layout
from casestudy.loaders import requests
from casestudy.observe import Subject
from casestudy.plots import Picture, checkpoint_strip
from casestudy.plots.picture import BLACK, BLUE, GREY, VERMILION, YELLOW
from tests.plots.conftest import SHARD


def test_every_tensor_lies_where_it_lies_in_the_file() -> None:
    layout = read_layout(SHARD)
    picture = checkpoint_strip(layout)
    to_scale, by_column = (sorted(map(_place, _bars(picture, panel))) for panel in (0, 1))
    assert [start for start, _ in to_scale] == [entry.start / 1024 for entry in layout]
    sizes = [entry.nbytes / 1024 for entry in layout]
    assert [size for _, size in to_scale] == pytest.approx(sizes)
    assert by_column == [(number + 0.5, 1) for number in range(len(layout))]


def test_the_fill_tells_the_width_of_a_value() -> None:
    layout = read_layout(SHARD)
    fills = {4: BLACK, 2: BLUE, 1: YELLOW}
    bars = sorted(_bars(checkpoint_strip(layout), 1), key=lambda bar: bar.get_x())
    for entry, bar in zip(layout, bars, strict=True):
        channels = bar.get_facecolor()[:3]
        fill = "#" + "".join(f"{round(channel * 255):02X}" for channel in channels)
        assert fill == fills[entry.dtype.itemsize]


def test_two_dtypes_of_one_width_differ_by_their_hatch() -> None:
    layout = [
        TensorEntry("a", torch.bfloat16, (4,), 0, 8),
        TensorEntry("b", torch.float16, (4,), 8, 16),
    ]
    first, second = _bars(checkpoint_strip(layout), 0)
    assert first.get_facecolor() == second.get_facecolor()
    assert first.get_hatch() != second.get_hatch()


def test_an_arc_joins_each_pair_and_tells_whether_it_is_cut_apart(model: Subject) -> None:
    layout = read_layout(SHARD)
    names = [entry.name for entry in layout]
    cut = checkpoint_strip(layout, requests(model.paths, 0))
    whole = checkpoint_strip(layout, requests(model.paths, -1))
    pairs = [name for name in names if f"{name}_scale_inv" in names]
    for picture, colour, line in ((cut, VERMILION, "-"), (whole, GREY, ":")):
        arcs = [patch for patch in picture.figure.axes[1].patches if isinstance(patch, Arc)]
        ends = sorted(
            (arc.center[0] - arc.width / 2, arc.center[0] + arc.width / 2) for arc in arcs
        )
        wanted = sorted((names.index(f"{n}_scale_inv") + 1, names.index(n) + 1) for n in pairs)
        assert ends == wanted
        assert {(arc.get_linestyle(), _hex(arc)) for arc in arcs} == {(line, colour)}
    assert "14 pairs of weight and scale, 8 request cuts, 14 pairs cut apart" in cut.alt
    assert "0 request cuts, 0 pairs cut apart" in whole.alt


def test_the_halves_of_a_pair_are_never_neighbours(model: Subject) -> None:
    picture = checkpoint_strip(read_layout(SHARD), requests(model.paths, 0))
    assert len(picture.rows) == 14
    assert all(int(weight) - int(scale) > 1 for _, scale, weight, _, _ in picture.rows)
    wk = "model.layers.1.self_attn.indexer.wk.weight"
    number = {name: i for i, names in enumerate(requests(model.paths, 0)) for name in names}
    cuts = number[wk] - number[f"{wk}_scale_inv"]
    assert (wk, "2", "63", "498,352", str(cuts)) in picture.rows
    assert f"{wk}: its scale is tensor 2, it is tensor 63, 498,352 bytes" in picture.alt


@pytest.mark.parametrize(
    ("requests_made", "cuts"),
    [
        ([["w_scale_inv", "x", "w"]], 0),
        ([["w_scale_inv"], ["x", "w"]], 1),
        ([["w_scale_inv", "x"], ["w"]], 1),
        ([["w_scale_inv"], ["x"], ["w"]], 2),
    ],
)
def test_cuts_are_counted_from_half_to_half(requests_made: list[list[str]], cuts: int) -> None:
    layout = [
        TensorEntry("w_scale_inv", torch.float32, (1,), 8, 12),
        TensorEntry("x", torch.bfloat16, (2,), 12, 16),
        TensorEntry("w", torch.float8_e4m3fn, (4,), 16, 20),
    ]
    assert checkpoint_strip(layout, requests_made).rows == [("w", "1", "3", "4", str(cuts))]


def test_a_cut_stands_where_a_request_ends(model: Subject) -> None:
    layout = read_layout(SHARD)
    picture = checkpoint_strip(layout, requests(model.paths, 0))
    names = [entry.name for entry in layout]
    firsts = [request[0] for request in requests(model.paths, 0)]
    cuts = [np.asarray(line.get_xdata())[0] for line in picture.figure.axes[1].lines[1::2]]
    assert cuts == [names.index(name) + 0.5 for name in firsts if name in names[1:]]


def test_without_requests_nothing_is_said_of_them() -> None:
    (legend,) = checkpoint_strip(read_layout(SHARD)).figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert "the halves of a pair" in words
    assert not any("request" in word for word in words)


def test_a_file_without_pairs_or_tensors_can_be_drawn() -> None:
    lonely = [TensorEntry("a", torch.float32, (4,), 8, 24)]
    assert "0 pairs" in checkpoint_strip(lonely).alt
    assert "0 tensors in file order: none" in checkpoint_strip([]).alt


def _bars(picture: Picture, panel: int) -> list[Rectangle]:
    patches = picture.figure.axes[panel].patches
    return [patch for patch in patches if isinstance(patch, Rectangle)]


def _place(bar: Rectangle) -> tuple[float, float]:
    return bar.get_x(), bar.get_width()


def _hex(arc: Arc) -> str:
    return "#" + "".join(f"{round(channel * 255):02X}" for channel in arc.get_edgecolor()[:3])
