"""What a picture is, and the one style that all pictures share."""

from __future__ import annotations

import io
import re
import warnings
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from html import escape, unescape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from casestudy.errors import CaseStudyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito; every meaning carried by a colour is carried by a hatch, a dash or a word as well
BLUE, VERMILION, YELLOW, BLACK = "#0072B2", "#D55E00", "#F0E442", "#000000"
GREY, PALE, WHITE = "#767676", "#FDF1EA", "#FFFFFF"
STALE: dict[str, Any] = {"facecolor": PALE, "edgecolor": VERMILION, "hatch": "///"}
PAPER: dict[str, Any] = {"facecolor": WHITE, "edgecolor": "none", "pad": 1}
SMALL, TITLE = 10, 13  # points
LETTER_WIDTH, BOLD_WIDTH = 0.62, 0.72  # of the font size; generous for DejaVu Sans
FEWEST_LETTERS = 8  # of a shortened name
STYLE: dict[str, Any] = {
    "svg.hashsalt": "casestudy",
    "svg.fonttype": "none",  # words stay words: to select, to search, to read aloud
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # laid out for the widest
    "font.monospace": ["DejaVu Sans Mono", "Menlo", "Consolas"],
    "font.size": 11,
    "text.parse_math": False,  # a $ in a name is a $
    "hatch.linewidth": 1.2,
}
SVG_WIDTH = 'style="max-width: 100%; height: auto"'
TABLE_COLUMNS, NARROW = 100, 60  # letters in a line of a table; below that it becomes a list
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Picture:
    """A figure with its title, its alt text and the same data as a table.

    Shows itself in notebooks (an image with its alt text) and in terminals (the table); saves as
    SVG or PNG. `columns` are the headings of the table's `rows`.
    """

    title: str
    alt: str
    figure: Figure
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def svg(self) -> str:
        """The figure as SVG, with title and description for screen readers."""
        return self._svg

    @cached_property
    def _svg(self) -> str:
        buffer = io.StringIO()
        save = drawn_in_style(self.figure.savefig)
        save(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        head, tail = text[text.index("<svg") :].split(">", 1)
        described = f"<title>{escape(self.title)}</title><desc>{escape(self.alt)}</desc>"
        whole = f'{head} {SVG_WIDTH} role="img" aria-label="{escape(self.alt)}">{described}{tail}'
        return NOT_XML.sub("\ufffd", whole)

    def png(self) -> bytes:
        """The figure as PNG, 100 dots an inch."""
        buffer = io.BytesIO()
        save = drawn_in_style(self.figure.savefig)
        save(buffer, format="png", dpi=100, metadata={"Description": self.alt})
        return buffer.getvalue()

    def html(self) -> str:
        """The figure as an HTML image that carries its alt text and needs nothing else."""
        return as_image(self.svg(), self.alt)

    def text(self, width: int = TABLE_COLUMNS) -> str:
        """Title and table, in lines of at most `width` letters; a list where that is narrow."""
        if width < NARROW:
            pairs = (zip(self.columns, row, strict=True) for row in self.rows)
            rows = ("\n".join(f"{heading}: {cell}" for heading, cell in row) for row in pairs)
            return "\n\n".join([self.title, *rows])
        from rich import box
        from rich.console import Console
        from rich.table import Column, Table
        from rich.text import Text

        columns = [Column(heading, overflow="fold") for heading in self.columns]
        table = Table(*columns, title=Text(self.title), box=box.SIMPLE)
        for row in self.rows:
            table.add_row(*map(Text, row))
        console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(table)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def save(self, path: str | Path) -> None:
        """Writes an `.svg` or `.png` file, over one of that name, whole or not at all.

        Raises `CaseStudyError` for any other ending, and if the file cannot be written.
        """
        path = Path(path)
        check_ending(path)
        data = self.png() if path.suffix.lower() == ".png" else self.svg().encode()
        beside = path.with_name(f".{path.name}.part")
        try:
            beside.write_bytes(data)
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise CaseStudyError(
                f"{path} cannot be written ({error.strerror}); name another file."
            ) from None

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        return {
            "text/plain": self.text(),
            "text/html": self.html(),
            "image/svg+xml": self.svg(),
            "image/png": self.png(),
        }


def check_ending(path: Path) -> None:
    """Raises `CaseStudyError` unless `path` ends in `.svg` or `.png`."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise CaseStudyError(f"{path} ends in neither .svg nor .png; name a picture file.")


def as_image(svg: str, alt: str) -> str:
    """An HTML image of an SVG: JupyterLab and nbconvert show a bare SVG without its alt text."""
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    return f'<img alt="{escape(alt)}" style="max-width: 100%" src="{source}">'


def image_of(path: Path) -> str:
    """An HTML image of a saved SVG, with the alt text that it carries."""
    svg = path.read_text(encoding="utf-8")
    alt = unescape(svg.partition("<desc>")[2].partition("</desc>")[0])
    return as_image(svg, alt)


def drawn_in_style(
    draw: Callable[Parameters, Result],
) -> Callable[Parameters, Result]:
    """A function that draws, in the style of all pictures."""

    @wraps(draw)
    def inside(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        from matplotlib import rc_context

        with rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn for it
            return draw(*args, **kwargs)

    return inside


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; inches, 72 points each."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=WHITE)


def finish(figure: Figure, title: str) -> None:
    """Titles the figure and fixes its layout, so that every rendering of it is the same."""
    entitle(figure, title)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def entitle(figure: Figure, title: str, **place: float) -> None:
    """The title over the figure, in as many lines as it needs."""
    letters = int(figure.get_figwidth() * 72 / (TITLE * BOLD_WIDTH))
    lines = "\n".join(wrap(title, letters))
    figure.suptitle(lines, fontweight="bold", fontsize=TITLE, va="top", **place)


def label_bytes(axes: Axes, where: str) -> None:
    """A horizontal axis in bytes, with few numbers, which may be long."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlabel(f"bytes {where}")
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def counted(number: int, thing: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{number:,} {thing}" + "s" * (number != 1)


def shorten(name: str, letters: int) -> str:
    """`name` in at most so many letters: `m.l.7.self_attn.indexer.wk.weight`, then a gap inside.

    Parts are cut to their first letter from the front, numbers stay; what cannot be printed is
    replaced.
    """
    parts = "".join(each if each.isprintable() else "\ufffd" for each in name).split(".")
    for index, part in enumerate(parts[:-1]):
        if len(".".join(parts)) > letters and not part.isdigit():
            parts[index] = part[:1]
    short = ".".join(parts)
    if len(short) <= letters:
        return short
    front = (letters - 1) * 2 // 5
    beginning, end = short[:front], short[len(short) - (letters - 1 - front) :]
    return f"{beginning.rstrip('.')}…{end.lstrip('.')}"


def fitting(axes: Axes, words: str, width: float, fontsize: float = SMALL) -> str:
    """`words`, shortened to `width` units of the x axis; empty where that says nothing any more.

    Call it once the figure is finished: before that the axes have no final size.
    """
    points = axes.get_window_extent().width * 72 / axes.figure.dpi
    left, right = axes.get_xlim()
    letters = int(abs(width / (right - left)) * points / (fontsize * LETTER_WIDTH)) - 1
    return shorten(words, letters) if letters >= min(len(words), FEWEST_LETTERS) else ""
