"""A safetensors file in the order of its bytes: dtypes, pairs, and where requests are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from casestudy.checkpoint import SCALE_SUFFIX, TensorEntry
from casestudy.plots.picture import (
    BLACK,
    BLUE,
    GREY,
    VERMILION,
    WHITE,
    YELLOW,
    Picture,
    counted,
    drawn_in_style,
    finish,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARCS, STRIP = 1.0, 0.5  # heights, in the panel's own unit
# by the width of a value, in the order in which safetensors writes: dark, middle, light
FILLS = {8: BLACK, 4: BLACK, 2: BLUE, 1: YELLOW}
HATCHES = ("", "//", "..", "xx")  # dtypes of one width
COLUMNS = ("pair", "scale is tensor", "weight is tensor", "bytes between", "request cuts between")


class Pair(NamedTuple):
    """A weight and its scale: their positions in the file, what lies and what is cut between."""

    name: str
    scale: int
    weight: int
    bytes_between: int
    cuts_between: int


@drawn_in_style
def checkpoint_strip(
    layout: Sequence[TensorEntry],
    requests: Sequence[Sequence[str]] | None = None,
    title: str = "A file, from front to back",
) -> Picture:
    """One file's tensors as they lie, above to scale, below a column for each.

    `layout`: from `read_layout`. `requests`: from `loaders.requests`, for a memory limit; where
    one ends and the next begins there is a cut. An arc joins the halves of each pair, solid if
    they travel in different requests, else dotted.
    """
    from matplotlib.ticker import MaxNLocator

    cuts = _cuts(layout, requests or ())
    pairs = _pairs(layout, cuts)
    figure = new_figure(width=9.5, height=5.4 if pairs else 3.6)
    to_scale, by_column = figure.subplots(2, 1)
    unit, name = (1024, "KiB") if layout and layout[-1].stop > 8192 else (1, "bytes")
    edges = [(entry.start / unit, entry.stop / unit) for entry in layout]
    columns = [(number + 0.5, number + 1.5) for number in range(len(layout))]
    for axes, places in ((to_scale, edges), (by_column, columns)):
        _draw_strip(axes, layout, places)
        _draw_pairs(axes, pairs, places)
        _draw_cuts(axes, cuts, places)
    to_scale.set_xlabel(f"offset in the file, {name}")
    by_column.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_column.set_xlabel("tensor, counted from the front of the file (not to scale)")
    _explain(figure, layout, pairs, cuts, known=requests is not None)
    finish(figure, title)
    return Picture(
        title, f"{title}. {_describe(layout, pairs, cuts)}", figure, COLUMNS, _table(pairs)
    )


def _cuts(layout: Sequence[TensorEntry], requests: Iterable[Iterable[str]]) -> list[int]:
    """The positions of the tensors before which a new request begins."""
    number = {name: index for index, names in enumerate(requests) for name in names}
    turns = enumerate(pairwise(layout), 1)
    return [i for i, (a, b) in turns if number.get(a.name) != number.get(b.name)]


def _pairs(layout: Sequence[TensorEntry], cuts: Sequence[int]) -> list[Pair]:
    position = {entry.name: index for index, entry in enumerate(layout)}
    found = []
    for name, weight in position.items():
        scale = position.get(name + SCALE_SUFFIX)
        if scale is not None:
            first, second = sorted((scale, weight))
            between = layout[second].start - layout[first].stop
            crossed = sum(first < cut <= second for cut in cuts)
            found.append(Pair(name, scale, weight, between, crossed))
    return found


def _draw_strip(
    axes: Axes, layout: Sequence[TensorEntry], places: Sequence[tuple[float, float]]
) -> None:
    for dtype, look in _looks(layout).items():
        chosen = [
            place for entry, place in zip(layout, places, strict=True) if entry.dtype == dtype
        ]
        axes.barh(
            [-STRIP / 2] * len(chosen),
            [stop - start for start, stop in chosen],
            left=[start for start, _ in chosen],
            height=STRIP,
            **look,
        )
    axes.set_ylim(-STRIP - 0.35, 0.15)
    if places and places[0][0] < places[-1][1]:
        axes.set_xlim(places[0][0], places[-1][1])
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _looks(layout: Sequence[TensorEntry]) -> dict[torch.dtype, dict[str, Any]]:
    """Fill and hatch of each dtype: the fill tells the width, the hatch dtypes of one width."""
    seen: dict[str, int] = {}
    looks = {}
    for dtype in dict.fromkeys(entry.dtype for entry in layout):
        fill = FILLS[min(dtype.itemsize, 8)]
        hatch = HATCHES[seen.get(fill, 0) % len(HATCHES)]
        seen[fill] = seen.get(fill, 0) + 1
        edge = WHITE if fill != YELLOW else BLACK
        looks[dtype] = {"facecolor": fill, "edgecolor": edge, "hatch": hatch, "linewidth": 0.5}
    return looks


def _draw_pairs(axes: Axes, pairs: Sequence[Pair], places: Sequence[tuple[float, float]]) -> None:
    from matplotlib.patches import Arc

    if not pairs:
        return
    axes.set_ylim(top=ARCS + 0.1)
    middle = [(start + stop) / 2 for start, stop in places]
    longest = max(abs(middle[pair.weight] - middle[pair.scale]) for pair in pairs) or 1
    for pair in pairs:
        left, right = sorted((middle[pair.scale], middle[pair.weight]))
        height = 2 * ARCS * (right - left) / longest
        centre = ((left + right) / 2, 0)
        axes.add_patch(Arc(centre, right - left, height, theta1=0, theta2=180, **_line(pair)))


def _line(pair: Pair) -> dict[str, Any]:
    if pair.cuts_between:
        return {"color": VERMILION, "linestyle": "-", "linewidth": 1.5}
    return {"color": GREY, "linestyle": ":", "linewidth": 1.5}


def _draw_cuts(axes: Axes, cuts: Sequence[int], places: Sequence[tuple[float, float]]) -> None:
    for cut in cuts:
        ends = ([places[cut][0]] * 2, [-STRIP - 0.3, 0.12])
        axes.plot(*ends, color=WHITE, lw=4, solid_capstyle="butt")  # seen on black as well
        axes.plot(*ends, color=BLACK, lw=2, ls="--")


def _explain(
    figure: Figure,
    layout: Sequence[TensorEntry],
    pairs: Sequence[Pair],
    cuts: Sequence[int],
    known: bool,
) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sizes = _sizes(layout)
    whole = "pair in one request" if known else "the halves of a pair"
    handles: list[Any] = [
        Patch(label=f"{_dtype(dtype)}, {sizes[dtype]:,} B", **look)
        for dtype, look in _looks(layout).items()
    ]
    for split, words in ((True, "pair in different requests"), (False, whole)):
        chosen = [pair for pair in pairs if bool(pair.cuts_between) is split]
        if chosen:
            handles.append(Line2D([], [], label=words, **_line(chosen[0])))
    if cuts:
        handles.append(Line2D([], [], color=BLACK, lw=2, ls="--", label="a new request begins"))
    style: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 10}
    figure.legend(handles=handles, ncols=3, **style)


def _sizes(layout: Sequence[TensorEntry]) -> dict[torch.dtype, int]:
    """Bytes of each dtype, in file order."""
    sizes: dict[torch.dtype, int] = {}
    for entry in layout:
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.nbytes
    return sizes


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _table(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    return [
        (
            pair.name,
            str(pair.scale + 1),
            str(pair.weight + 1),
            f"{pair.bytes_between:,}",
            str(pair.cuts_between),
        )
        for pair in pairs
    ]


def _describe(layout: Sequence[TensorEntry], pairs: Sequence[Pair], cuts: Sequence[int]) -> str:
    order = ", then ".join(
        f"{_dtype(dtype)} ({size:,} bytes)" for dtype, size in _sizes(layout).items()
    )
    split = [pair.name for pair in pairs if pair.cuts_between]
    sentences = [
        f"{counted(len(layout), 'tensor')} in file order: {order or 'none'}.",
        f"{counted(len(pairs), 'pair')} of weight and scale, {counted(len(cuts), 'request cut')}, "
        f"{counted(len(split), 'pair')} cut apart.",
    ]
    sentences += [
        f"{pair.name}: its scale is tensor {pair.scale + 1}, it is tensor {pair.weight + 1}, "
        f"{pair.bytes_between:,} bytes and {counted(pair.cuts_between, 'cut')} lie between."
        for pair in pairs
    ]
    return " ".join(sentences)
