"""Where held tensors lie, on one scale."""

from __future__ import annotations

import pytest
import torch
from matplotlib.patches import Rectangle

from casestudy.observe import Observation
from casestudy.plots import Picture, storage_map


def test_overlaps_are_stacked_and_hatched_and_copies_lie_side_by_side(
    lent: Observation, copied: Observation
) -> None:
    picture = storage_map({"before": lent.parameters, "after": copied.parameters})
    before, after = (_bars(picture, panel) for panel in (0, 1))
    assert {name: bar[:2] for name, bar in before.items()} == {
        "embed": (0, 768),
        "scale": (768, 640),
        "bias": (0, 576),
        "norm": (576, 704),
        "head": (1280, 544),
        "weight": (0, 736),
    }
    assert len({before[name][2] for name in ("bias", "weight", "embed")}) == 3
    assert all(bar[3] for bar in before.values())
    assert {bar[2] for bar in after.values()} == {1}
    assert not any(bar[3] for bar in after.values())


def test_both_panels_have_one_scale(lent: Observation, copied: Observation) -> None:
    picture = storage_map({"before": lent.parameters, "after": copied.parameters})
    before, after = picture.figure.axes
    assert before.get_xlim() == after.get_xlim()
    assert before.get_position().width == pytest.approx(after.get_position().width)


def test_the_words_say_how_much_memory_there_is(lent: Observation, copied: Observation) -> None:
    picture = storage_map({"before": lent.parameters, "after": copied.parameters}, "Kept")
    assert picture.alt == (
        "Kept. before: 6 tensors, 3,968 bytes of tensors in 1,824 bytes of memory. "
        "These share bytes with others: embed, scale, bias, norm, head, weight. "
        "after: 6 tensors, 3,968 bytes of tensors in 3,968 bytes of memory. None share a byte."
    )
    assert ("before", "scale", "A+0x300", "640", "norm, head") in picture.rows
    assert ("after", "scale", "B+0x0", "640", "nobody") in picture.rows


def test_a_tensor_that_only_touches_another_does_not_share() -> None:
    memory = torch.zeros(8)
    picture = storage_map({"halves": {"a": memory[:4], "b": memory[4:]}})
    bars = _bars(picture, 0)
    assert bars == {"a": (0, 16, 1, False), "b": (16, 16, 1, False)}


def _bars(picture: Picture, panel: int) -> dict[str, tuple[float, float, int, bool]]:
    """Left, width, lane and whether hatched, by the name written in the bar."""
    axes = picture.figure.axes[panel]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    names = {text.get_position(): text.get_text() for text in axes.texts}
    return {
        names[bar.get_x() + bar.get_width() / 2, lane]: (
            bar.get_x(),
            bar.get_width(),
            lane,
            bool(bar.get_hatch()),
        )
        for bar in bars
        for lane in [round(bar.get_y() + bar.get_height() / 2)]
    }


def test_of_many_tensors_every_bar_can_be_seen() -> None:
    picture = storage_map({"many": {f"t{number}": torch.zeros(16) for number in range(300)}})
    axes = picture.figure.axes[0]
    low, high = axes.get_xlim()
    assert high - low == pytest.approx(300 * 64, rel=0.15)
    assert {patch.get_linewidth() for patch in axes.patches} == {0}


def test_nothing_held_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        storage_map({})
