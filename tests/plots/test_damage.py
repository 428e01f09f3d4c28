"""Which parameters are wrong and by how much; what that costs along a text."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from casestudy.consumers import Difference
from casestudy.observe import Observation
from casestudy.plots import Continuations, Picture, damage

FOUND = [
    Difference("right", False, 0.0),
    Difference("small", True, 0.01),
    Difference("large", True, 1000.0),
    Difference("broken", True, inf),
]


def test_a_bar_is_as_long_as_the_error_on_a_log_scale() -> None:
    picture = damage(FOUND)
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in _bars(picture)}
    ends = {row: bar.get_x() + bar.get_width() for row, bar in bars.items()}
    assert ends[1] == pytest.approx(-2)
    assert ends[2] == pytest.approx(3)
    assert ends[3] > ends[2]
    assert 0 not in bars
    assert all(bar.get_hatch() for bar in bars.values())


def test_every_row_has_its_verdict_in_words() -> None:
    chart = damage(FOUND).figure.axes[0]
    words = [text.get_text() for text in chart.texts]
    assert words == [
        "right to the bit",
        "wrong, relative error 0.01",
        "wrong, relative error 1e+03",
        "wrong, not finite",
    ]
    assert [label.get_text() for label in chart.get_yticklabels()] == [each.name for each in FOUND]


def test_the_words_name_what_is_wrong(broken: Observation, told: Continuations) -> None:
    picture = damage(broken.telling, told, "Damage")
    assert picture.alt.startswith("Damage. 4 of the 4 parameters shown are wrong. ")
    for each in broken.telling:
        assert f"{each.name} is wrong, relative error {each.relative_error:.3g}." in picture.alt
    assert f"borrowed: {told.outcomes['borrowed'].loss:.2g} nats" in picture.alt
    assert "The cliff is at index_topk, 64 characters." in picture.alt


def test_the_losses_are_drawn_with_their_cliff(broken: Observation, told: Continuations) -> None:
    chart = damage(broken.telling, told).figure.axes[1]
    curves, verticals = chart.lines[:2], chart.lines[2:]
    for line, each in zip(curves, told.outcomes.values(), strict=True):
        assert len(np.asarray(line.get_xdata())) == len(each.losses)
    places = [np.asarray(line.get_xdata())[0] for line in verticals]
    assert places == [told.index_topk, told.prompt_length]
    assert "index_topk = 64" in [text.get_text() for text in chart.texts]


def test_nothing_to_compare_can_be_drawn() -> None:
    assert "0 of the 0 parameters shown are wrong" in damage([]).alt


def _bars(picture: Picture) -> list[Rectangle]:
    patches = picture.figure.axes[0].patches
    return [patch for patch in patches if isinstance(patch, Rectangle)]


def test_other_bytes_of_the_same_number_have_no_bar() -> None:
    (bar,) = _bars(damage([Difference("minus zero", True, 0.0)]))
    assert bar.get_width() == 0
