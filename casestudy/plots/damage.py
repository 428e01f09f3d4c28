"""Which parameters are wrong and by how much, and what that costs along a text."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10
from typing import TYPE_CHECKING, Any

from casestudy.consumers import Difference
from casestudy.plots.continuations import Continuations, draw_losses
from casestudy.plots.picture import (
    BLUE,
    SMALL,
    STALE,
    Picture,
    counted,
    drawn_in_style,
    finish,
    new_figure,
    shorten,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, TALLEST = 0.4, 4.5  # inches: a parameter, all of them
LABEL_ROOM = 0.2  # inches
NAME_LETTERS = 44
BESIDE: dict[str, Any] = {
    "xytext": (8, 0),
    "textcoords": "offset points",
    "va": "center",
    "fontsize": SMALL,
}
COLUMNS = ("parameter", "verdict", "relative error")


@drawn_in_style
def damage(
    differences: Sequence[Difference],
    told: Continuations | None = None,
    title: str = "What went wrong, and by how much",
) -> Picture:
    """A bar for each parameter, as long as its error is large; below, the loss along a text.

    The error is relative: the norm of loaded minus right over the norm of right, on a log scale.
    """
    row = min(ROW, TALLEST / max(len(differences), 1))
    bars = max(row * len(differences), ROW)
    figure = new_figure(width=9.5, height=bars + 1.6 + (3.2 if told else 0))
    if told:
        chart, below = figure.subplots(2, 1, height_ratios=[bars, 2.4])
        draw_losses(below, told)
    else:
        chart = figure.subplots()
    _draw_errors(chart, differences, row)
    finish(figure, title)
    alt = f"{title}. {_describe(differences, told)}"
    return Picture(title, alt, figure, COLUMNS, _table(differences, told))


def _draw_errors(axes: Axes, differences: Sequence[Difference], row: float) -> None:
    errors = [log10(each.relative_error) for each in differences if _is_finite_error(each)]
    left = min([-3.0, *(error - 1 for error in errors)])
    right = max([3.0, *(error + 1 for error in errors)])
    for number, each in enumerate(differences):
        end = left
        if each.wrong:
            end = _end(each, left, right)
            width = 1 if row >= LABEL_ROOM else 0  # of thin bars one would see edges only
            axes.barh(number, end - left, left=left, height=0.6, linewidth=width, **STALE)
        else:
            axes.plot(left, number, marker="o", color=BLUE, clip_on=False)
        if row >= LABEL_ROOM:
            axes.annotate(_verdict(each), (end, number), **BESIDE)
    _label_errors(axes, differences, row, left, right)


def _label_errors(
    axes: Axes, differences: Sequence[Difference], row: float, left: float, right: float
) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(left, right + (right - left) * 0.3)
    axes.set_ylim(len(differences) - 0.4, -0.6)
    stride = max(1, round(LABEL_ROOM / row))
    shown = range(0, len(differences), stride)
    names = [shorten(differences[number].name, NAME_LETTERS) for number in shown]
    axes.set_yticks(list(shown), names, fontsize=SMALL)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(lambda power, _: f"1e{power:+.0f}")
    axes.set_xlabel("relative error, ‖loaded - right‖ / ‖right‖ (a ratio, log scale)")
    axes.set_ylabel("parameter")


def _end(difference: Difference, left: float, right: float) -> float:
    if difference.relative_error == 0:  # other bytes, the same number: -0.0 for 0.0
        return left
    return log10(difference.relative_error) if _is_finite_error(difference) else right


def _is_finite_error(difference: Difference) -> bool:
    return difference.relative_error > 0 and isfinite(difference.relative_error)


def _verdict(difference: Difference) -> str:
    if not difference.wrong:
        return "right to the bit"
    if not isfinite(difference.relative_error):
        return "wrong, not finite"
    return f"wrong, relative error {difference.relative_error:.3g}"


def _table(differences: Sequence[Difference], told: Continuations | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (each.name, "wrong" if each.wrong else "right", f"{each.relative_error:.3g}")
        for each in differences
    ]
    if told:
        for name, each in told.outcomes.items():
            rows.append((f"loss, {name}", f"{each.loss:.2g} nats a character", ""))
    return rows


def _describe(differences: Sequence[Difference], told: Continuations | None) -> str:
    wrong = [each for each in differences if each.wrong]
    sentences = [f"{len(wrong)} of the {counted(len(differences), 'parameter')} shown are wrong."]
    sentences += [f"{each.name} is {_verdict(each)}." for each in wrong]
    if told:
        sentences += [
            f"{name}: {each.loss:.2g} nats a character after the prompt."
            for name, each in told.outcomes.items()
        ]
        sentences.append(f"The cliff is at index_topk, {told.index_topk} characters.")
    return " ".join(sentences)
