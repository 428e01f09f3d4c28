"""Pictures of plain data. Each knows its title and an alt text written from the data it shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casestudy.aliasing import Place, places
from casestudy.trace import Step, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito; every meaning carried by a colour is carried by a hatch, a dash or a word as well
BLUE, VERMILION, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#767676", "#000000"
PALE = "#FDF1EA"
LINE_STYLES = ((BLUE, "-", 2.5), (VERMILION, "-", 1.5), (BLACK, ":", 1.5))
STALE: dict[str, Any] = {"facecolor": PALE, "edgecolor": VERMILION, "hatch": "///"}
PAPER: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
STYLE = {"svg.hashsalt": "casestudy", "font.family": "DejaVu Sans", "font.size": 10}
TEXT_COLUMNS = 96
SMOOTHED_OVER = 9  # characters
NAMED_UP_TO = 12  # steps; beyond that the names would overlap


@dataclass(frozen=True)
class Picture:
    """A figure with its title and alt text; shows itself in notebooks, saves as SVG or PNG."""

    title: str
    alt: str
    figure: Figure

    def svg(self) -> str:
        """The figure as SVG, with title and description for screen readers."""
        from matplotlib import rc_context

        buffer = io.StringIO()
        with rc_context(STYLE):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        head, tail = text[text.index("<svg") :].split(">", 1)
        described = f"<title>{escape(self.title)}</title><desc>{escape(self.alt)}</desc>"
        fitting = 'style="max-width: 100%; height: auto"'
        return f'{head} {fitting} role="img" aria-label="{escape(self.alt)}">{described}{tail}'

    def png(self) -> bytes:
        """The figure as PNG, 120 dots an inch."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=120, metadata={"Description": self.alt})
        return buffer.getvalue()

    def save(self, path: str | Path) -> None:
        """Writes an `.svg` or `.png` file. Raises `ValueError` for any other ending."""
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg(), encoding="utf-8")
        elif path.suffix == ".png":
            path.write_bytes(self.png())
        else:
            raise ValueError(f"{path} ends in neither .svg nor .png.")

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        return {"text/plain": self.alt, "image/svg+xml": self.svg(), "image/png": self.png()}


def stream_map(trace: Trace, title: str = "Who lies where, and for how long") -> Picture:
    """The yields of an iterator, a row each: on the left the bytes, on the right the steps.

    Rows are sorted by address, so tensors that share bytes are neighbours. A bar runs from the
    yield to the last step at which someone holds the tensor; it is hatched from the step at which
    its bytes belong to others, who are named in turn.
    """
    found = places(step.span for step in trace.steps)
    offsets = _end_to_end(found)
    order = sorted(range(len(found)), key=lambda index: (offsets[index], index))
    figure = _figure(width=10, height=1.6 + 0.34 * len(order))
    where, when = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2])
    for row, index in enumerate(order):
        step = trace.steps[index]
        where.barh(row, step.span.nbytes, left=offsets[index], color=BLUE, height=0.6)
        _draw_life(when, row, step, trace.overwriters(step), named=len(order) <= NAMED_UP_TO)
    names = [f"{step.name}  {found[step.index]}, {step.span.nbytes} B" for step in trace.steps]
    where.set_yticks(range(len(order)), [names[index] for index in order])
    where.invert_yaxis()
    several = len({place.letter for place in found}) > 1
    where.set_xlabel("bytes, region after region" if several else "bytes of the buffer")
    when.set_xlabel("iterator step")
    when.set_xticks([index + 0.5 for index in range(len(order))], map(str, range(len(order))))
    when.set_xlim(0, max(len(order), 1))
    _explain_bars(figure)
    return _picture(title, _describe_stream(trace, found), figure)


def text_comparison(
    texts: Mapping[str, str],
    losses: Mapping[str, Sequence[float]],
    prompt_length: int,
    index_topk: int,
    title: str = "The same prompt, continued",
) -> Picture:
    """Texts under each other, letters that differ from the first marked; below, the losses.

    `losses`: nats for every character of prompt and true continuation but the first. The lines
    are running means; the dashed vertical is where the indexer begins to choose.
    """
    truth = next(iter(texts.values()))
    cuts = _line_cuts(truth)
    text_rows = [len(cuts) + 1.6] * len(texts)
    figure = _figure(width=10, height=0.21 * sum(text_rows) + 3.6)
    *panels, chart = figure.subplots(len(texts) + 1, 1, height_ratios=[*text_rows, 15])
    for panel, (name, text) in zip(panels, texts.items(), strict=True):
        _draw_text(panel, name, text, truth, cuts)
    _draw_losses(chart, losses, prompt_length, index_topk)
    return _picture(title, _describe_texts(texts, losses, prompt_length), figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _picture(title: str, description: str, figure: Figure) -> Picture:
    """Titles the figure and fixes its layout, so that every rendering of it is the same."""
    figure.suptitle(title, fontweight="bold")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return Picture(title, f"{title}. {description}", figure)


def _end_to_end(found: Sequence[Place]) -> list[int]:
    """Where each place lies when the regions are put next to each other, with a gap between."""
    sizes = {place.letter: place.region_nbytes for place in found}
    gap = sum(sizes.values()) // 50
    bases, base = {}, 0
    for letter, size in sizes.items():
        bases[letter] = base
        base += size + gap
    return [bases[place.letter] + place.offset for place in found]


def _draw_life(axes: Axes, row: int, step: Step, overwriters: Sequence[Step], named: bool) -> None:
    stop = step.last_held + 1
    seen = [later for later in overwriters if later.index < stop]
    turns = [*(later.index for later in seen), stop]
    axes.barh(row, turns[0] - step.index, left=step.index, color=BLUE, height=0.6)
    for later, (start, end) in zip(seen, pairwise(turns), strict=True):
        axes.barh(row, end - start, left=start, height=0.6, **STALE)
        if named:
            middle = (start + end) / 2
            axes.text(middle, row, later.name, ha="center", va="center", fontsize=8, bbox=PAPER)


def _explain_bars(figure: Figure) -> None:
    from matplotlib.patches import Patch

    held, stale = "held, the bytes are its own", "held, but the bytes belong to the one named"
    patches = [Patch(color=BLUE, label=held), Patch(label=stale, **STALE)]
    figure.legend(handles=patches, loc="outside lower right", ncols=2, frameon=False, fontsize=9)


def _draw_text(
    axes: Axes, name: str, text: str, truth: str, cuts: Sequence[tuple[int, int]]
) -> None:
    axes.set_axis_off()
    axes.set_ylim(len(cuts), -1.2)
    wrong = [letter != wanted for letter, wanted in zip(text, truth, strict=False)]
    note = "" if text is truth else f", {sum(wrong)} of {len(text)} letters differ"
    axes.text(0, -0.6, name + note, fontweight="bold", va="center")
    shown = text.replace("\n", "\u00b6")
    for number, (start, stop) in enumerate(cuts):
        line, marks = shown[start:stop], wrong[start:stop]
        _draw_letters(axes, number, _only(line, marks, False), color=BLACK)
        _draw_letters(axes, number, _only(line, marks, True), color=VERMILION, fontweight="bold")
        underline = _only("_" * len(line), marks, True)
        _draw_letters(axes, number + 0.12, underline, color=VERMILION)


def _draw_letters(axes: Axes, line: float, letters: str, **style: str) -> None:
    font = {"family": "DejaVu Sans Mono", "fontsize": 11.5, "parse_math": False}
    text = axes.text(0, line + 0.75, letters, **font, **style)  # type: ignore[arg-type]
    text.set_in_layout(False)  # a line may be as wide as the figure


def _only(line: str, chosen: Sequence[bool], wanted: bool) -> str:
    """The chosen letters in their columns, hard spaces elsewhere."""
    pairs = zip(line, chosen, strict=False)
    return "".join(a if choice is wanted and a != " " else "\u00a0" for a, choice in pairs)


def _draw_losses(
    axes: Axes, losses: Mapping[str, Sequence[float]], prompt_length: int, index_topk: int
) -> None:
    for (name, values), (colour, dash, width) in zip(losses.items(), LINE_STYLES, strict=False):
        positions = range(1, len(values) + 1)
        axes.plot(positions, _smoothed(values), dash, color=colour, lw=width, label=name)
    axes.axvline(index_topk, color=GREY, ls="--", lw=1)
    axes.axvline(prompt_length, color=GREY, ls="-.", lw=1)
    mark = {"transform": axes.get_xaxis_transform(), "va": "bottom", "fontsize": 9}
    axes.text(index_topk, 1.01, f"index_topk = {index_topk}", **mark)  # type: ignore[arg-type]
    axes.text(prompt_length, 1.01, "end of the prompt", **mark)  # type: ignore[arg-type]
    axes.set_xlabel("characters read")
    axes.set_ylabel(f"loss of the next character\n(nats, mean of {SMOOTHED_OVER})")
    axes.margins(x=0.01)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.2)  # room for the legend
    axes.legend(loc="upper right", ncols=len(losses), edgecolor="none", framealpha=1)


def _line_cuts(text: str) -> list[tuple[int, int]]:
    """Where lines of at most `TEXT_COLUMNS` letters begin and end, cut after a word."""
    cuts, start = [], 0
    while start < len(text):
        stop = min(start + TEXT_COLUMNS, len(text))
        if stop < len(text):
            stop = text.rfind(" ", start, stop) + 1 or stop
        cuts.append((start, stop))
        start = stop
    return cuts


def _smoothed(values: Sequence[float]) -> list[float]:
    half = SMOOTHED_OVER // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _describe_stream(trace: Trace, found: Sequence[Place]) -> str:
    sentences = [f"{len(trace.steps)} tensors in {len(trace.steps)} steps."]
    for step, place in zip(trace.steps, found, strict=True):
        life = f"yielded at step {step.index} and held to step {step.last_held}"
        seen = [later for later in trace.overwriters(step) if later.index <= step.last_held]
        fate = "never overwritten while held"
        if seen:
            names = ", then ".join(later.name for later in seen)
            fate = f"stale from step {seen[0].index}: its bytes belong to {names}"
        sentences.append(f"{step.name}, {step.span.nbytes} bytes at {place}: {life}, {fate}.")
    return " ".join(sentences)


def _describe_texts(
    texts: Mapping[str, str], losses: Mapping[str, Sequence[float]], prompt_length: int
) -> str:
    sentences = []
    for name, text in texts.items():
        later = losses[name][prompt_length - 1 :]
        mean = sum(later) / len(later)
        sentences.append(f"{name} (loss {mean:.2f} nats a character after the prompt): {text!r}.")
    return " ".join(sentences)
