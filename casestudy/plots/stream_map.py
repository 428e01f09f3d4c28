"""Address x iterator step: whose bytes are where, from when to when."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from casestudy.aliasing import Place, end_to_end, places
from casestudy.plots.picture import (
    BLUE,
    GREY,
    PAPER,
    SMALL,
    STALE,
    WHITE,
    Picture,
    as_image,
    counted,
    drawn_in_style,
    finish,
    fitting,
    label_bytes,
    new_figure,
    shorten,
)
from casestudy.trace import Fate, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 14  # rows or steps that can each have a name
ROW = 0.36  # inches
TALLEST = 5.0  # inches of rows, when there are many
LABEL_ROOM = 0.2  # inches between labels
NAME_LETTERS = 30
HELD: dict[str, Any] = {"color": BLUE}
PLACE: dict[str, Any] = {"color": GREY}
INSIDE: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "bbox": PAPER}
COLUMNS = ("step", "tensor", "dtype", "place", "bytes", "held to", "stale from", "overwritten by")


class Row(NamedTuple):
    """A byte range and the tensors that lay there one after the other.

    offset: bytes from the left of the picture; centre, height: inches.
    """

    place: Place
    offset: int
    fates: list[Fate]
    centre: float
    height: float


@dataclass(frozen=True)
class StreamMap(Picture):
    """The picture of a trace; it can be shown up to a step."""

    trace: Trace
    steps: Axes

    def moment(self, step: int) -> str:
        """What is true at `step`, in a sentence or two."""
        own: list[str] = []
        stale: list[str] = []
        for fate in self.trace.fates():
            if fate.step.index <= step <= fate.step.last_held:
                gone = fate.stale_from is not None and fate.stale_from <= step
                (stale if gone else own).append(fate.step.name)
        return (
            f"Step {step}: {self.trace.steps[step].name} arrives. "
            f"Held, with bytes of its own: {_listed(own)}. Held, but stale: {_listed(stale)}."
        )

    def html_at(self, step: int) -> str:
        """The picture as an HTML image with everything after `step` behind a curtain."""
        svg = self.svg().removesuffix("</svg>\n") + self._curtain(step) + "</svg>\n"
        return as_image(svg, f"{self.title}. {self.moment(step)}")

    def _curtain(self, step: int) -> str:
        """SVG is in points, from the top."""
        box = self.steps.get_window_extent()
        points = 72 / self.figure.dpi
        left = self.steps.transData.transform((step + 1, 0))[0] * points
        top = self.figure.get_figheight() * 72 - box.y1 * points
        width, height = box.x1 * points - left, box.height * points
        return (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(width, 0):.1f}" '
            f'height="{height:.1f}" fill="{WHITE}" fill-opacity="0.85"/>'
            f'<path d="M{left:.1f} {top - 4:.1f}v{height + 8:.1f}" stroke="#000" stroke-width="2"/>'
        )


@drawn_in_style
def stream_map(trace: Trace, title: str = "Who lies where, and for how long") -> StreamMap:
    """The yields of an iterator: on the left the bytes, on the right the steps.

    A row is a byte range, in the order of addresses; tensors that lie there one after the other
    share it, those that are held at the same time have a row each. A bar runs from the yield to
    the last step at which someone holds the tensor; it is hatched from the step at which the
    bytes are another's, who is named. With many rows only those with a stale tensor are tall.
    """
    fates = trace.fates()
    found = places(step.span for step in trace.steps)
    rows = _rows(fates, found)
    figure = new_figure(width=9.5, height=max(sum(row.height for row in rows), 1.0) + 1.8)
    where, when = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2.4])
    _draw_places(where, rows)
    _draw_lives(when, rows)
    _label_rows(where, rows)
    _label_axes(where, when, rows, len(fates))
    _explain_bars(figure)
    finish(figure, title)
    _name_bars(when, trace, rows)
    alt = f"{title}. {_describe(fates, found)}"
    return StreamMap(title, alt, figure, COLUMNS, _table(fates, found), trace, when)


def _rows(fates: Sequence[Fate], found: Sequence[Place]) -> list[Row]:
    offsets = end_to_end(found)
    order = sorted(range(len(fates)), key=lambda i: (offsets[i], _nbytes(fates[i]), i))
    lanes: list[tuple[int, list[Fate]]] = []
    for (offset, _), group in groupby(order, lambda i: (offsets[i], _nbytes(fates[i]))):
        lanes += [(offset, lane) for lane in _lanes([fates[index] for index in group])]
    heights = _heights([lane for _, lane in lanes])
    rows, top = [], 0.0
    for (offset, lane), height in zip(lanes, heights, strict=True):
        rows.append(Row(found[lane[0].step.index], offset, lane, top + height / 2, height))
        top += height
    return rows


def _lanes(fates: Sequence[Fate]) -> list[list[Fate]]:
    """Fates in lanes such that no two in a lane are held at the same step."""
    lanes: list[list[Fate]] = []
    for fate in fates:
        for lane in lanes:
            if lane[-1].step.last_held < fate.step.index:
                lane.append(fate)
                break
        else:
            lanes.append([fate])
    return lanes


def _heights(lanes: Sequence[Sequence[Fate]]) -> list[float]:
    """Inches for each lane: all alike if they are few, else those with a stale tensor are tall."""
    if len(lanes) <= FEW:
        return [ROW] * len(lanes)
    stale = [any(fate.stale_from is not None for fate in lane) for lane in lanes]
    tall = sum(stale) if sum(stale) <= FEW else 0
    thin = (TALLEST - tall * ROW) / (len(lanes) - tall) if tall < len(lanes) else 0
    thin = max(min(thin, ROW), 0.002)
    return [ROW if tall and is_stale else thin for is_stale in stale]


def _draw_places(axes: Axes, rows: Sequence[Row]) -> None:
    places = [(row.offset, row.offset + _nbytes(row.fates[0])) for row in rows]
    _draw_bars(axes, [(row, *place) for row, place in zip(rows, places, strict=True)], PLACE)


def _draw_lives(axes: Axes, rows: Sequence[Row]) -> None:
    own, stale = [], []
    for row in rows:
        for fate in row.fates:
            own.append((row, fate.step.index, _own_until(fate)))
            if fate.stale_from is not None:
                stale.append((row, fate.stale_from, fate.step.last_held + 1))
    _draw_bars(axes, own, HELD)
    _draw_bars(axes, stale, STALE)


def _draw_bars(axes: Axes, bars: Sequence[tuple[Row, int, int]], look: dict[str, Any]) -> None:
    """Bars from start to stop, each in its row; one collection, which is fast for hundreds."""
    from matplotlib.collections import PolyCollection

    corners = []
    for row, start, stop in bars:
        half = row.height * (0.3 if row.height >= LABEL_ROOM else 0.45)
        top, bottom = row.centre - half, row.centre + half
        corners.append([(start, top), (stop, top), (stop, bottom), (start, bottom)])
    thin = any(row.height < LABEL_ROOM for row, _, _ in bars)  # edges would be all one sees
    axes.add_collection(PolyCollection(corners, linewidth=0 if thin else 1, **look))


def _label_rows(axes: Axes, rows: Sequence[Row]) -> None:
    """Names where there is room for a line, places in between where there is room for one."""
    named = [row for row in rows if row.height >= LABEL_ROOM]
    labels = {row.centre: _label(row) for row in named}
    taken = [row.centre for row in named]
    for row in rows:
        near = bisect_left(taken, row.centre)
        if all(
            abs(row.centre - other) >= LABEL_ROOM for other in taken[max(near - 1, 0) : near + 1]
        ):
            labels[row.centre] = _range(row)
            taken.insert(near, row.centre)
    axes.set_yticks([*labels], [*labels.values()])
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.set_ylim(rows[-1].centre + rows[-1].height / 2 if rows else 1, 0)


def _label(row: Row) -> str:
    name = shorten(row.fates[0].step.name, NAME_LETTERS)
    others = f" and {len(row.fates) - 1} more" if len(row.fates) > 1 else ""
    return f"{name}{others}: {_range(row)}"


def _range(row: Row) -> str:
    return f"{row.place}, {_nbytes(row.fates[0]):,} B"


def _label_axes(where: Axes, when: Axes, rows: Sequence[Row], n_steps: int) -> None:
    several = len({row.place.letter for row in rows}) > 1
    label_bytes(where, "in regions, end to end" if several else "of the buffer")
    where.set_ylabel("byte range")
    ends = [row.offset + _nbytes(row.fates[0]) for row in rows]
    where.set_xlim(0, 1.05 * max(ends, default=1))
    when.set_xlabel("iterator step")
    when.set_xlim(0, max(n_steps, 1))
    if n_steps <= FEW:
        when.set_xticks([index + 0.5 for index in range(n_steps)], map(str, range(n_steps)))
    when.tick_params(axis="y", left=False)


def _explain_bars(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(label="where it lies", **PLACE),
        Patch(label="held, the bytes are its own", **HELD),
        Patch(label="held, but overwritten (by the one named)", **STALE),
    ]
    figure.legend(handles=patches, loc="outside lower right", ncols=3, frameon=False, fontsize=10)


def _name_bars(axes: Axes, trace: Trace, rows: Sequence[Row]) -> None:
    """Whose the bytes are, in each stale stretch; whose the bar is, where a row has several."""
    for row in rows:
        if row.height < LABEL_ROOM:
            continue
        for fate in row.fates:
            if len(row.fates) > 1:
                own = (fate.step.index, _own_until(fate), fate.step.name)
                _write(axes, row, *own, color=WHITE, bbox=None)
            stretches = list(_owners(trace, fate))
            if len(stretches) == 1 and len(row.fates) == 1:
                _write_near(axes, row, fate, *stretches[0])
            else:
                for stretch in stretches:
                    _write(axes, row, *stretch)


def _own_until(fate: Fate) -> int:
    """The step at which a life, or the part of it with bytes of its own, is over."""
    return fate.step.last_held + 1 if fate.stale_from is None else fate.stale_from


def _owners(trace: Trace, fate: Fate) -> Iterator[tuple[int, int, str]]:
    """The stale stretches of a life and who owns the bytes in each; with many steps, the first."""
    if fate.stale_from is None:
        return
    stop = fate.step.last_held + 1
    few = len(trace.steps) <= FEW
    later = trace.overwriters(fate.step) if few else [fate.overwriter] if fate.overwriter else []
    owners = [step for step in later[1:] if step.index < stop]
    turns = [fate.stale_from, *(step.index for step in owners), stop]
    names = [_overwriter(fate), *(step.name for step in owners)]
    for name, (start, end) in zip(names, pairwise(turns), strict=True):
        yield start, end, name


def _write(axes: Axes, row: Row, start: int, stop: int, name: str, **look: object) -> None:
    """Writes in the middle of a bar, shortened to its width."""
    words = fitting(axes, name, stop - start)
    axes.text((start + stop) / 2, row.centre, words, **{**INSIDE, **look})


def _write_near(axes: Axes, row: Row, fate: Fate, start: int, stop: int, name: str) -> None:
    """Writes in the bar if the whole name fits, else beside it, where there is more room."""
    before, after = fate.step.index - axes.get_xlim()[0], axes.get_xlim()[1] - stop
    if fitting(axes, name, stop - start) == name or max(before, after) < stop - start:
        _write(axes, row, start, stop, name)
        return
    words = f" by {fitting(axes, name, max(before, after))} "
    if after >= before:
        axes.text(stop, row.centre, words, **{**INSIDE, "ha": "left"})
    else:
        axes.text(fate.step.index, row.centre, words, **{**INSIDE, "ha": "right"})


def _overwriter(fate: Fate) -> str:
    return fate.overwriter.name if fate.overwriter else "someone who was never yielded"


def _table(fates: Sequence[Fate], found: Sequence[Place]) -> list[tuple[str, ...]]:
    return [
        (
            str(step.index),
            step.name,
            str(step.dtype).removeprefix("torch."),
            str(place),
            f"{step.span.nbytes:,}",
            str(step.last_held),
            "never" if stale_from is None else str(stale_from),
            "" if overwriter is None else f"{overwriter.name} (step {overwriter.index})",
        )
        for (step, overwriter, stale_from), place in zip(fates, found, strict=True)
    ]


def _describe(fates: Sequence[Fate], found: Sequence[Place]) -> str:
    """Every tensor if they are few; of many, every stale one."""
    stale = [fate for fate in fates if fate.stale_from is not None]
    told = fates if len(fates) <= FEW else stale
    sentences = [
        f"{counted(len(fates), 'tensor')} in {counted(len(fates), 'step')}, "
        f"{len(stale)} of them stale while held."
    ]
    for fate in told:
        step, overwriter, stale_from = fate
        life = f"yielded at step {step.index} and held to step {step.last_held}"
        end = "never overwritten while held"
        if stale_from is not None:
            end = f"stale from step {stale_from}: overwritten by {_overwriter(fate)}"
            if overwriter and overwriter.index > stale_from:
                end += f", which is yielded at step {overwriter.index}"
        place = found[step.index]
        sentences.append(f"{step.name}, {step.span.nbytes:,} bytes at {place}: {life}, {end}.")
    return " ".join(sentences)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _nbytes(fate: Fate) -> int:
    return fate.step.span.nbytes
