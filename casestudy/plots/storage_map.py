"""Where held tensors lie, to one scale, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from casestudy.aliasing import Place, byte_span, end_to_end, overlaps, places
from casestudy.plots.picture import (
    BLACK,
    BLUE,
    PAPER,
    SMALL,
    STALE,
    WHITE,
    Picture,
    counted,
    drawn_in_style,
    finish,
    fitting,
    label_bytes,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANE, TALLEST = 0.4, 4.5  # inches: a lane, all lanes
LABEL_ROOM = 0.2  # inches
OWN: dict[str, Any] = {"facecolor": BLUE, "edgecolor": WHITE}
MANY = 60  # bars; their outlines would be all one sees
COLUMNS = ("load", "tensor", "place", "bytes", "bytes shared with")


class Bar(NamedTuple):
    """A tensor: where it lies, in bytes from the left, in which lane (from 1), whom it overlaps."""

    name: str
    place: Place
    offset: int
    nbytes: int
    lane: int
    shared_with: list[str]


@drawn_in_style
def storage_map(
    held: Mapping[str, Mapping[str, torch.Tensor]], title: str = "Where the tensors lie"
) -> Picture:
    """The bytes of several sets of held tensors, side by side on one scale.

    `held`: a set of tensors by name for each load, for example before and after the fix. Tensors
    whose bytes overlap are stacked and hatched.
    """
    from matplotlib.ticker import MaxNLocator

    if not held:
        raise ValueError("there is nothing to draw; give at least one set of held tensors.")
    loads = {load: _bars(tensors) for load, tensors in held.items()}
    lanes = max((bar.lane for bars in loads.values() for bar in bars), default=1)
    lane = min(LANE, TALLEST / lanes)
    figure = new_figure(width=9.5, height=lanes * lane + 1.9)
    panels = figure.subplots(1, len(loads), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (load, bars) in zip(panels, loads.items(), strict=True):
        _draw_bars(axes, bars)
        axes.set_title(f"{load}\n{_summary(bars)}", fontsize=11)
        label_bytes(axes, "in regions, end to end")
    panels[0].set_ylim(lanes + 0.6, 0.4)
    panels[0].yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panels[0].set_ylabel("tensors deep")
    _explain_bars(figure)
    finish(figure, title)
    if lane >= LABEL_ROOM:
        for axes, bars in zip(panels, loads.values(), strict=True):
            _name_bars(axes, bars)
    return Picture(title, f"{title}. {_describe(loads)}", figure, COLUMNS, _table(loads))


def _bars(tensors: Mapping[str, torch.Tensor]) -> list[Bar]:
    spans = [byte_span(tensor) for tensor in tensors.values()]
    found = places(spans)
    shared: dict[str, list[str]] = {name: [] for name in tensors}
    for first, second, _ in overlaps(tensors):
        shared[first].append(second)
        shared[second].append(first)
    offsets = end_to_end(found)
    lanes = _lanes(
        [(offset, offset + span.nbytes) for offset, span in zip(offsets, spans, strict=True)]
    )
    return [
        Bar(name, place, offset, span.nbytes, lane, shared[name])
        for name, place, offset, span, lane in zip(
            tensors, found, offsets, spans, lanes, strict=True
        )
    ]


def _lanes(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """For each interval the first lane, counted from 1, in which it overlaps nobody."""
    stops: list[int] = []
    lanes = [0] * len(intervals)
    for index in sorted(range(len(intervals)), key=lambda index: intervals[index]):
        start, stop = intervals[index]
        lane = next((lane for lane, end in enumerate(stops) if end <= start), len(stops))
        stops[lane : lane + 1] = [stop]
        lanes[index] = lane + 1
    return lanes


def _draw_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    for style, chosen in (
        (OWN, [bar for bar in bars if not bar.shared_with]),
        (STALE, [bar for bar in bars if bar.shared_with]),
    ):
        axes.barh(
            [bar.lane for bar in chosen],
            [bar.nbytes for bar in chosen],
            left=[bar.offset for bar in chosen],
            height=0.7,
            linewidth=1 if len(bars) <= MANY else 0,
            **style,
        )


def _name_bars(axes: Axes, bars: Sequence[Bar]) -> None:
    for bar in bars:
        style: dict[str, Any] = {"color": BLACK, "bbox": PAPER}
        if not bar.shared_with:
            style = {"color": WHITE}
        words = fitting(axes, bar.name, bar.nbytes)
        if words:
            middle = bar.offset + bar.nbytes / 2
            style |= {"ha": "center", "va": "center", "fontsize": SMALL}
            axes.text(middle, bar.lane, words, **style)


def _explain_bars(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(label="bytes of its own", **OWN), Patch(label="bytes overlap", **STALE)]
    figure.legend(handles=patches, loc="outside lower right", ncols=2, frameon=False, fontsize=10)


def _summary(bars: Sequence[Bar]) -> str:
    total = sum(bar.nbytes for bar in bars)
    regions = {bar.place.letter: bar.place.region_nbytes for bar in bars}
    return f"{total:,} bytes of tensors in {sum(regions.values()):,} bytes of memory"


def _table(loads: Mapping[str, Sequence[Bar]]) -> list[tuple[str, ...]]:
    return [
        (load, bar.name, str(bar.place), f"{bar.nbytes:,}", ", ".join(bar.shared_with) or "nobody")
        for load, bars in loads.items()
        for bar in bars
    ]


def _describe(loads: Mapping[str, Sequence[Bar]]) -> str:
    sentences = []
    for load, bars in loads.items():
        names = ", ".join(bar.name for bar in bars if bar.shared_with)
        fate = f"These share bytes with others: {names}." if names else "None share a byte."
        sentences.append(f"{load}: {counted(len(bars), 'tensor')}, {_summary(bars)}. {fate}")
    return " ".join(sentences)
