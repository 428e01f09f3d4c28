"""The same bytes at three moments, as a grid, and what they mean as the tensor's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import torch

from casestudy.plots.picture import (
    BLACK,
    GREY,
    PALE,
    VERMILION,
    Picture,
    counted,
    drawn_in_style,
    entitle,
    new_figure,
    shorten,
)
from casestudy.trace import Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 256  # bytes
HARD_SPACE = "\u00a0"
MARGIN, LEAD = 0.2, 0.7  # inches: left of everything, left of the bytes
HTML_LINE, HTML_LETTERS = 16, 6  # bytes a line, letters a value
HTML_TABLE = (
    'style="font-family: monospace; line-height: 1.4; white-space: nowrap; '
    'border-collapse: collapse; margin: 0 0 8px"'
)
HTML_CAPTION = 'style="text-align: left; font-weight: bold"'
HTML_MARK = (
    f'style="background: {PALE}; color: {BLACK}; font-weight: bold; '
    f'border-bottom: 2px solid {VERMILION}"'
)
COLUMNS = ("step", "offset", "bytes (* changed)", "values")


class Grid(NamedTuple):
    """How bytes are laid out: bytes a line, letters a byte, size of the letters in points."""

    line: int
    letters: int
    fontsize: float


# by the bytes of a value: narrow values need wide cells. Up to 64 bytes, and up to 256.
NEAR = {1: Grid(16, 7, 10.5), 2: Grid(16, 6, 11), 4: Grid(16, 5, 11), 8: Grid(16, 5, 11)}
FAR = {1: Grid(32, 6, 6.5), 2: Grid(32, 5, 7.5), 4: Grid(32, 4, 9), 8: Grid(32, 4, 9)}
LINE = 1.35 / 72  # inches for a point of letter size


class Moment(NamedTuple):
    """What the bytes were at a moment; `octets` is None where nobody held them (any more)."""

    heading: str
    octets: bytes | None


@drawn_in_style
def byte_view(step: Step, now: int | None = None, title: str | None = None) -> Picture:
    """The first bytes of a yielded tensor's memory: at the yield, a step later, and at step `now`.

    Without `now`: at the last step at which the tensor was held, the last at which it can have
    been used. Changed bytes are bold and underlined; below each byte stands what it means as the
    tensor's dtype. Shows what `record` noted, up to 256 bytes.
    """
    now = step.last_held if now is None else now
    title = title or f"The first bytes of {shorten(step.name, 60)}"
    first = step.snapshots[0][:MOST]
    moments = _moments(step, now)
    grid = (NEAR if len(first) <= 64 else FAR)[min(step.dtype.itemsize, 8)]
    lines = 2 * max(1, -(-len(first) // grid.line)) + 2.4  # of a moment, heading and gap included
    height = 3 * lines * grid.fontsize * LINE + 0.5
    figure = new_figure(width=11, height=height)
    figure.set_layout_engine("none")  # lines of text need none, and so it is fast enough to step
    axes = figure.add_axes((MARGIN / 11, 0, 1 - MARGIN / 11, 1 - 0.5 / height))
    axes.set_axis_off()
    axes.set_xlim(0, 11 - MARGIN)
    axes.set_ylim(3 * lines, 0)
    for number, moment in enumerate(moments):
        _draw_moment(axes, number * lines, moment, first, step.dtype, grid)
    entitle(figure, title, y=1 - 0.1 / height)
    alt = f"{title}. {_describe(step, moments, first)}"
    return Picture(title, alt, figure, COLUMNS, _table(moments, first, step.dtype))


def byte_grid(step: Step, now: int | None = None) -> str:
    """The same grid as HTML tables: words, which a screen reader can walk through.

    Takes no figure, so it can be made anew at every step of a stream.
    """
    first = step.snapshots[0][:MOST]
    moments = _moments(step, step.last_held if now is None else now)
    tables = (_html_moment(moment, first, step.dtype) for moment in moments)
    return f'<div style="overflow-x: auto">{"".join(tables)}</div>'


def decode(octets: bytes, dtype: torch.dtype, letters: int = 8) -> list[str]:
    """What `octets` mean as `dtype`, a word of at most so many letters a value, if that can be.

    Bytes of half a value are left out; of dtypes that torch cannot turn into numbers (packed ones)
    nothing is told.
    """
    whole = len(octets) - len(octets) % dtype.itemsize
    if not whole:
        return []
    values = torch.frombuffer(bytearray(octets[:whole]), dtype=torch.uint8).view(dtype)
    try:
        numbers = (values.double() if dtype.is_floating_point else values).tolist()
    except (RuntimeError, NotImplementedError):
        return []
    return [_short(number, letters) for number in numbers]


def _moments(step: Step, now: int) -> list[Moment]:
    """At the yield, one step later, now."""
    last = "now" if now < step.last_held else "at the last use"
    wanted = {"yielded": step.index, "one step later": step.index + 1, last: now}
    return [
        Moment(f"{words}, step {when}", _seen(step, when, now)) for words, when in wanted.items()
    ]


def _seen(step: Step, when: int, now: int) -> bytes | None:
    age = when - step.index
    if when > now or not 0 <= age < len(step.snapshots):
        return None
    return step.snapshots[age][:MOST]


def _draw_moment(
    axes: Axes, top: float, moment: Moment, first: bytes, dtype: torch.dtype, grid: Grid
) -> None:
    axes.text(0, top + 0.6, _heading(moment, first), fontweight="bold")
    if moment.octets is None:
        return
    marks = _changed(moment.octets, first)
    width = grid.letters * dtype.itemsize
    for number, start in enumerate(range(0, len(first), grid.line)):
        line, stop = top + 1.6 + 2 * number, start + grid.line
        octets, values = _cells(moment.octets[start:stop], marks[start:stop], dtype, width - 1)
        _write(axes, 0, line, f"+{start:#04x}", grid, color=GREY)
        _draw_cells(axes, line, octets, grid.letters, grid)
        _draw_cells(axes, line + 0.9, values, width, grid)


def _draw_cells(
    axes: Axes, line: float, cells: Sequence[tuple[str, bool]], width: int, grid: Grid
) -> None:
    """Unmarked cells in black; marked ones bold, coloured and underlined."""
    plain = "".join(("" if mark else word).center(width) for word, mark in cells)
    strong = "".join((word if mark else "").center(width) for word, mark in cells)
    _write(axes, LEAD, line, plain, grid, color=BLACK)
    _write(axes, LEAD, line, strong, grid, color=VERMILION, fontweight="bold")
    if width == grid.letters:  # the bytes themselves
        under = "".join(("_" * len(word) if mark else "").center(width) for word, mark in cells)
        _write(axes, LEAD, line + 0.1, under, grid, color=VERMILION)


def _write(axes: Axes, left: float, line: float, words: str, grid: Grid, **style: str) -> None:
    """Blanks between words keep columns; they are hard spaces, which SVG does not merge."""
    if words.strip():
        hard = words.rstrip().replace(" ", HARD_SPACE)
        font = {"family": "monospace", "fontsize": grid.fontsize, **style}
        axes.text(left, line, hard, va="center", fontdict=font)


def _html_moment(moment: Moment, first: bytes, dtype: torch.dtype) -> str:
    rows = []
    marks = _changed(moment.octets, first) if moment.octets is not None else []
    for start in range(0, len(marks), HTML_LINE):
        stop = start + HTML_LINE
        part = (moment.octets or b"")[start:stop]
        octets, values = _cells(part, marks[start:stop], dtype, HTML_LETTERS)
        lead = f'<th scope="row">+{start:#04x}</th>'
        rows.append(f"<tr>{lead}{_html_cells(octets, 1)}</tr>")
        rows.append(f"<tr><td></td>{_html_cells(values, dtype.itemsize)}</tr>")
    caption = f"<caption {HTML_CAPTION}>{escape(_heading(moment, first))}</caption>"
    return f"<table {HTML_TABLE}>{caption}{''.join(rows)}</table>"


def _html_cells(cells: Sequence[tuple[str, bool]], width: int) -> str:
    return "".join(
        f'<td colspan="{width}" style="padding: 0 4px; text-align: center">'
        + (f"<mark {HTML_MARK}>{word}</mark>" if mark else word)
        + "</td>"
        for word, mark in cells
    )


def _heading(moment: Moment, first: bytes) -> str:
    if moment.octets is None:
        return f"{moment.heading}: not held"
    changed = sum(_changed(moment.octets, first))
    return f"{moment.heading}: {changed} of these {counted(len(first), 'byte')} changed"


def _cells(
    part: bytes, marked: Sequence[bool], dtype: torch.dtype, letters: int
) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Bytes and values of a line as words, each with whether it changed."""
    octets = [(f"{octet:02x}", mark) for octet, mark in zip(part, marked, strict=True)]
    wrong = [any(marked[i : i + dtype.itemsize]) for i in range(0, len(part), dtype.itemsize)]
    return octets, list(zip(decode(part, dtype, letters), wrong, strict=False))


def _changed(octets: bytes, first: bytes) -> list[bool]:
    return [now != then for now, then in zip(octets, first, strict=True)]


def _short(number: complex | float | bool, letters: int) -> str:
    """The most exact spelling that has at most so many letters, at most six digits."""
    if isinstance(number, int):
        return str(number)
    spelled = [f"{number:.{digits}g}" for digits in (6, 5, 4, 3, 2, 1)]
    return next((word for word in spelled if len(word) <= letters), spelled[-1])


def _table(moments: Sequence[Moment], first: bytes, dtype: torch.dtype) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for heading, octets in moments:
        step = heading.rpartition(" ")[2]
        if octets is None:
            rows.append((step, "", "not held", ""))
            continue
        words = [
            f"{octet:02x}" + "*" * mark
            for octet, mark in zip(octets, _changed(octets, first), strict=True)
        ]
        for start in range(0, len(octets), 8):
            values = decode(octets[start : start + 8], dtype)
            rows.append(
                (step, f"+{start:#04x}", " ".join(words[start : start + 8]), " ".join(values))
            )
    return rows


def _describe(step: Step, moments: Sequence[Moment], first: bytes) -> str:
    dtype = str(step.dtype).removeprefix("torch.")
    sentences = [f"{step.name}, {dtype}, {len(first)} of its {counted(step.span.nbytes, 'byte')}."]
    for heading, octets in moments:
        if octets is None:
            sentences.append(f"{heading}: not held.")
            continue
        changed = sum(_changed(octets, first))
        values = ", ".join(decode(octets, step.dtype)[:4]) or "none"
        sentences.append(f"{heading}: {changed} changed; the first values are {values}.")
    return " ".join(sentences)
