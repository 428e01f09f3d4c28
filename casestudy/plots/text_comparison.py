"""What models wrote, letter by letter, and what the true text would have cost them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from casestudy.plots.continuations import Continuations, draw_losses
from casestudy.plots.picture import (
    BLACK,
    VERMILION,
    Picture,
    drawn_in_style,
    finish,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT_COLUMNS = 96
COLUMNS = ("load", "letters that differ", "loss after the prompt", "text")


@drawn_in_style
def text_comparison(told: Continuations, title: str = "The same prompt, continued") -> Picture:
    """Texts under each other, letters that differ from the first marked; below, the losses.

    The losses are those of the true continuation, so the texts need not be alike for them.
    """
    if not told.outcomes:
        raise ValueError("there is nothing to compare; give at least one outcome.")
    texts = {name: outcome.text for name, outcome in told.outcomes.items()}
    truth = next(iter(texts.values()))
    cuts = _line_cuts(truth)
    text_rows = [len(cuts) + 1.6] * len(texts)
    figure = new_figure(width=10, height=0.21 * sum(text_rows) + 3.6)
    *panels, chart = figure.subplots(len(texts) + 1, 1, height_ratios=[*text_rows, 15])
    for panel, (name, text) in zip(panels, texts.items(), strict=True):
        _draw_text(panel, name, text, truth, cuts)
    draw_losses(chart, told)
    finish(figure, title)
    return Picture(title, f"{title}. {_describe(told)}", figure, COLUMNS, _table(told, truth))


def _draw_text(
    axes: Axes, name: str, text: str, truth: str, cuts: Sequence[tuple[int, int]]
) -> None:
    axes.set_axis_off()
    axes.set_ylim(len(cuts), -1.2)
    wrong = _differing(text, truth)
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
    text = axes.text(0, line + 0.75, letters, family="monospace", fontsize=11.5, **style)  # type: ignore[arg-type]
    text.set_in_layout(False)  # a line may be as wide as the figure


def _only(line: str, chosen: Sequence[bool], wanted: bool) -> str:
    """The chosen letters in their columns, hard spaces elsewhere."""
    pairs = zip(line, chosen, strict=False)
    return "".join(a if choice is wanted and a != " " else "\u00a0" for a, choice in pairs)


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


def _differing(text: str, truth: str) -> list[bool]:
    return [letter != wanted for letter, wanted in zip(text, truth, strict=False)]


def _table(told: Continuations, truth: str) -> list[tuple[str, ...]]:
    return [
        (name, str(sum(_differing(each.text, truth))), f"{each.loss:.2f} nats", each.text)
        for name, each in told.outcomes.items()
    ]


def _describe(told: Continuations) -> str:
    return " ".join(
        f"{name} (loss {each.loss:.2f} nats a character after the prompt): {each.text!r}."
        for name, each in told.outcomes.items()
    )
