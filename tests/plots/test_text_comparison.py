"""What models wrote: every letter once, wrong ones marked."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from casestudy.plots import Continuations, text_comparison
from casestudy.plots.picture import BLACK, VERMILION
from casestudy.reproduce import Outcome, Reproduction


def test_lines_are_cut_after_words_of_the_first_text() -> None:
    truth = "word " * 40
    texts = {"a": truth, "b": "x" * 200}
    outcomes = {name: Outcome(text, 1.0, [], [1.0]) for name, text in texts.items()}
    picture = text_comparison(Continuations(outcomes, 1, 1))
    first, second, _ = picture.figure.axes
    lines = [text.get_text() for text in first.texts[1::3]]
    assert [len(line) for line in lines] == [95, 95, 10]
    assert [len(text.get_text()) for text in second.texts[1::3]] == [95, 95, 10]


def test_the_comparison_shows_letters_and_losses(reproduction: Reproduction) -> None:
    names = ("reference", "borrowed", "cloned")
    outcomes = {name: getattr(reproduction, name) for name in names}
    picture = text_comparison(Continuations(outcomes, len(reproduction.prompt), 64))
    *panels, chart = picture.figure.axes
    headings = [panel.texts[0].get_text() for panel in panels]
    truth, broken = reproduction.reference.text, reproduction.borrowed.text
    wrong = sum(a != b for a, b in zip(truth, broken, strict=True))
    assert headings == [
        "reference",
        f"borrowed, {wrong} of {len(broken)} letters differ",
        f"cloned, 0 of {len(broken)} letters differ",
    ]
    _check_letters(panels[1], truth, broken)
    assert len(chart.lines) == 3 + 2
    verticals = [list(np.asarray(line.get_xdata())) for line in chart.lines[3:]]
    assert verticals == [[64, 64], [len(reproduction.prompt)] * 2]
    assert chart.get_xlabel() == "characters read"
    assert chart.get_ylabel() == "loss of the next character\n(nats, mean of 9)"
    assert all(repr(each.text) in picture.alt for each in outcomes.values())
    assert f"{reproduction.borrowed.loss:.2f} nats" in picture.alt
    assert [row[1] for row in picture.rows] == ["0", str(wrong), "0"]


def _check_letters(panel: Axes, truth: str, broken: str) -> None:
    """Right letters in black, wrong ones in vermilion and underlined, each once."""
    drawn = {BLACK: "", VERMILION: "", "_": ""}
    for text in panel.texts[1:]:
        letters = text.get_text().replace("\u00a0", "").replace("\u00b6", "\n")
        drawn["_" if letters.strip("_") == "" else str(text.get_color())] += letters
    pairs = list(zip(broken, truth, strict=True))
    assert drawn[BLACK] == "".join(a for a, b in pairs if a == b and a != " ")
    assert drawn[VERMILION] == "".join(a for a, b in pairs if a != b and a != " ")
    assert len(drawn["_"]) == sum(a != b for a, b in pairs)


def test_nothing_to_compare_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing to compare"):
        text_comparison(Continuations({}, 1, 1))
