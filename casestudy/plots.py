"""Pictures of plain data. Each knows its title and an alt text written from the data it shows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from casestudy.aliasing import label
from casestudy.trace import Step, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe-Ito; every meaning carried by a colour is carried by a hatch, a dash or a word as well
BLUE, VERMILION, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#009E73", "#767676", "#000000"
PALE = "#F7D9C4"
LINE_STYLES = ((BLUE, "-", 2.5), (VERMILION, "-", 1.5), (BLACK, ":", 1.5))
STYLE = {"svg.hashsalt": "casestudy", "font.family": "DejaVu Sans", "font.size": 10}
TEXT_COLUMNS = 72
SMOOTHED_OVER = 9  # characters


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
        return f'{head} role="img" aria-label="{escape(self.alt)}">{described}{tail}'

    def png(self) -> bytes:
        """The figure as PNG, 120 dots an inch."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=120, metadata={"Description": self.alt})
        return buffer.getvalue()

    def save(self, path: str | Path) -> None:
        """Writes an `.svg` or `.png` file. Raises `ValueError` for any other ending."""
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg())
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
    its bytes belong to another one, who is named.
    """
    steps = sorted(trace.steps, key=lambda step: (step.span, step.index))
    labels = dict(zip(map(id, trace.steps), label(s.span for s in trace.steps), strict=True))
    row_names = [f"{step.name}  {labels[id(step)]}, {step.span.nbytes} B" for step in steps]
    figure = _figure(width=10, height=1.3 + 0.34 * len(steps))
    where, when = figure.subplots(1, 2, sharey=True, width_ratios=[1, 2])
    _draw_places(where, steps)
    for row, step in enumerate(steps):
        _draw_life(when, row, step, trace.overwriter(step))
    where.set_yticks(range(len(steps)), row_names)
    where.invert_yaxis()
    where.set_xlabel("bytes from the lowest address")
    when.set_xlabel("iterator step")
    when.set_xticks([i + 0.5 for i in range(len(steps))], [str(i) for i in range(len(steps))])
    when.set_xlim(0, max(len(steps), 1))
    figure.suptitle(title, fontweight="bold")
    return Picture(title, f"{title}. {_describe_stream(trace, labels)}", figure)


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
    lines = {name: _wrapped(text) for name, text in texts.items()}
    text_rows = [len(wrapped) + 1.6 for wrapped in lines.values()]
    figure = _figure(width=10, height=0.21 * sum(text_rows) + 3.6)
    *panels, chart = figure.subplots(len(texts) + 1, 1, height_ratios=[*text_rows, 15])
    truth = next(iter(texts.values()))
    for panel, (name, text) in zip(panels, texts.items(), strict=True):
        _draw_text(panel, name, text, truth)
    _draw_losses(chart, losses, prompt_length, index_topk)
    figure.suptitle(title, fontweight="bold")
    alt = f"{title}. {_describe_texts(texts, losses, prompt_length)}"
    return Picture(title, alt, figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _draw_places(axes: Axes, steps: list[Step]) -> None:
    lowest = min((step.span.start for step in steps), default=0)
    for row, step in enumerate(steps):
        axes.barh(row, step.span.nbytes, left=step.span.start - lowest, color=BLUE, height=0.6)


def _draw_life(axes: Axes, row: int, step: Step, overwriter: Step | None) -> None:
    stop = step.last_held + 1
    stale_from = min(overwriter.index if overwriter else stop, stop)
    axes.barh(row, stale_from - step.index, left=step.index, color=BLUE, height=0.6)
    if overwriter and stale_from < stop:
        axes.barh(
            row,
            stop - stale_from,
            left=stale_from,
            height=0.6,
            facecolor=PALE,
            edgecolor=VERMILION,
            hatch="///",
        )
        words = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        middle = (stale_from + stop) / 2
        axes.text(
            middle, row, f"now {overwriter.name}", ha="center", va="center", fontsize=8, bbox=words
        )


def _draw_text(axes: Axes, name: str, text: str, truth: str) -> None:
    axes.set_axis_off()
    lines = _wrapped(text)
    axes.set_xlim(0, TEXT_COLUMNS)
    axes.set_ylim(len(lines), -1.2)
    differing = sum(a != b for a, b in zip(text, truth, strict=False))
    note = "" if text is truth else f", {differing} of {len(text)} letters differ"
    axes.text(0, -0.55, name + note, fontweight="bold", va="center")
    for number, (line, right) in enumerate(zip(lines, _wrapped(truth), strict=False)):
        for column, (letter, wanted) in enumerate(zip(line, right, strict=False)):
            wrong = letter != wanted
            if wrong:
                axes.plot([column + 0.1, column + 0.9], [number + 0.9] * 2, VERMILION, lw=1)
            axes.text(
                column + 0.5,
                number + 0.5,
                letter,
                family="DejaVu Sans Mono",
                ha="center",
                va="center",
                parse_math=False,
                color=VERMILION if wrong else BLACK,
                fontweight="bold" if wrong else "normal",
            )


def _draw_losses(
    axes: Axes, losses: Mapping[str, Sequence[float]], prompt_length: int, index_topk: int
) -> None:
    for (name, values), (colour, dash, width) in zip(losses.items(), LINE_STYLES, strict=False):
        positions = range(1, len(values) + 1)
        axes.plot(positions, _smoothed(values), dash, color=colour, lw=width, label=name)
    axes.axvline(index_topk, color=GREY, ls="--", lw=1)
    axes.axvline(prompt_length, color=GREY, ls="-.", lw=1)
    top = axes.get_ylim()[1]
    axes.text(index_topk, top, f" index_topk = {index_topk}", va="top", fontsize=9)
    axes.text(prompt_length, top, " end of the prompt", va="top", fontsize=9)
    axes.set_xlabel("characters read")
    axes.set_ylabel("loss of the next character (nats)")
    axes.legend(loc="center left", frameon=False)
    axes.margins(x=0.01)


def _wrapped(text: str) -> list[str]:
    shown = text.replace("\n", "\u00b6")
    return [shown[i : i + TEXT_COLUMNS] for i in range(0, len(shown), TEXT_COLUMNS)]


def _smoothed(values: Sequence[float]) -> list[float]:
    half = SMOOTHED_OVER // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _describe_stream(trace: Trace, labels: dict[int, str]) -> str:
    sentences = [f"{len(trace.steps)} tensors in {len(trace.steps)} steps."]
    stale = {id(step) for step in trace.stale()}
    for step in trace.steps:
        place = f"{step.name}, {step.span.nbytes} bytes at {labels[id(step)]}"
        held = f"yielded at step {step.index} and held to step {step.last_held}"
        fate = "never overwritten while held"
        if id(step) in stale and (overwriter := trace.overwriter(step)):
            fate = f"stale from step {overwriter.index}: its bytes belong to {overwriter.name}"
        sentences.append(f"{place}: {held}, {fate}.")
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
