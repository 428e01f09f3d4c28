"""What models wrote, and the loss along the true text with its cliff at `index_topk`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from casestudy.plots.picture import BLACK, BLUE, GREY, SMALL, VERMILION
from casestudy.reproduce import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_STYLES = ((BLUE, "-", 2.5), (VERMILION, "-", 1.5), (BLACK, ":", 1.5))
SMOOTHED_OVER = 9  # characters


class Continuations(NamedTuple):
    """What several models wrote after one prompt; the first is the one to compare with.

    prompt_length, index_topk: in characters.
    """

    outcomes: Mapping[str, Outcome]
    prompt_length: int
    index_topk: int


def draw_losses(axes: Axes, told: Continuations) -> None:
    """Running means; verticals where the indexer begins to choose and where the prompt ends."""
    for (name, outcome), (colour, dash, width) in zip(
        told.outcomes.items(), LINE_STYLES, strict=False
    ):
        positions = range(1, len(outcome.losses) + 1)
        axes.plot(positions, _smoothed(outcome.losses), dash, color=colour, lw=width, label=name)
    axes.axvline(told.index_topk, color=GREY, ls="--", lw=1)
    axes.axvline(told.prompt_length, color=GREY, ls="-.", lw=1)
    mark: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "va": "bottom",
        "fontsize": SMALL,
    }
    axes.text(told.index_topk, 1.01, f"index_topk = {told.index_topk}", **mark)
    axes.text(told.prompt_length, 1.01, "end of the prompt", **mark)
    axes.set_xlabel("characters read")
    axes.set_ylabel(f"loss of the next character\n(nats, mean of {SMOOTHED_OVER})")
    axes.margins(x=0.01)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.2)  # room for the legend
    axes.legend(loc="upper right", ncols=len(told.outcomes), edgecolor="none", framealpha=1)


def _smoothed(values: Sequence[float]) -> list[float]:
    half = SMOOTHED_OVER // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
