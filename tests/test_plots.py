"""Pictures carry what their data say: marks and words, not pixels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from casestudy.loaders import borrowed, cloned
from casestudy.plots import BLACK, BLUE, GREY, PALE, VERMILION, Picture, stream_map, text_comparison
from casestudy.reproduce import Reproduction
from casestudy.trace import record

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def lent(lesson_file: Path) -> Picture:
    stream, trace = record(borrowed(lesson_file, memory_limit=1843))
    kept = dict(stream)
    assert len(kept) == 6
    return stream_map(trace, "Lent")


def test_the_alt_text_names_every_stale_tensor_and_its_overwriter(lent: Picture) -> None:
    assert lent.alt.startswith("Lent. 6 tensors in 6 steps. embed, 768 bytes at A+0x0: ")
    for victim, overwriters, step in [
        ("embed", "bias, then norm, then weight", 2),
        ("scale", "norm, then head", 3),
        ("bias", "weight", 5),
        ("norm", "weight", 5),
    ]:
        sentence = next(s for s in lent.alt.split(". ") if s.startswith(victim))
        assert sentence.endswith(f"stale from step {step}: its bytes belong to {overwriters}")
    assert lent.alt.count("stale") == 4


def test_each_stale_life_is_hatched_and_names_whose_the_bytes_are(lent: Picture) -> None:
    _, when = lent.figure.axes
    hatched = [bar for bar in _bars(when) if bar.get_hatch()]
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in hatched)
    assert spans == [(2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (5, 6), (5, 6)]
    named = sorted((text.get_position()[0], text.get_text()) for text in when.texts)
    assert named == [
        (2.5, "bias"),
        (3.5, "norm"),
        (4.0, "norm"),
        (5.0, "head"),
        (5.5, "weight"),
        (5.5, "weight"),
        (5.5, "weight"),
    ]


def test_a_life_ends_when_the_tensor_is_let_go(lesson_file: Path) -> None:
    kept = []
    stream, trace = record(borrowed(lesson_file, memory_limit=0))
    for number, (_, tensor) in enumerate(stream):
        if number == 0:
            kept.append(tensor)
        if number == 3:
            kept.clear()
    _, when = stream_map(trace).figure.axes
    hatched = [bar for bar in _bars(when) if bar.get_hatch()]
    assert sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in hatched) == [
        (1, 2),
        (2, 3),
    ]
    assert sorted(text.get_text() for text in when.texts) == ["bias", "scale"]


def test_bars_lie_where_the_bytes_lie(lent: Picture) -> None:
    where, _ = lent.figure.axes
    bars = sorted((bar.get_x(), bar.get_width()) for bar in _bars(where))
    assert bars == [(0, 576), (0, 736), (0, 768), (576, 704), (768, 640), (1280, 544)]


def test_copies_are_drawn_apart_and_unhatched(lesson_file: Path) -> None:
    stream, trace = record(cloned(lesson_file, memory_limit=0))
    kept = dict(stream)
    assert len(kept) == 6
    picture = stream_map(trace)
    where, when = picture.figure.axes
    bars = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in _bars(where))
    assert all(left[1] < right[0] for left, right in pairwise(bars))
    assert not any(bar.get_hatch() for bar in _bars(when))
    assert "stale" not in picture.alt


def test_lines_are_cut_after_words_of_the_first_text() -> None:
    truth = "word " * 40
    picture = text_comparison({"a": truth, "b": "x" * 200}, {"a": [1.0], "b": [1.0]}, 1, 1)
    first, second, _ = picture.figure.axes
    lines = [text.get_text() for text in first.texts[1::3]]
    assert [len(line) for line in lines] == [95, 95, 10]
    assert [len(text.get_text()) for text in second.texts[1::3]] == [95, 95, 10]


def test_an_empty_trace_can_be_drawn() -> None:
    stream, trace = record([])
    assert list(stream) == []
    assert stream_map(trace).alt.endswith("0 tensors in 0 steps.")


def test_the_svg_has_a_title_and_a_description_and_no_date(lent: Picture) -> None:
    root = ElementTree.fromstring(lent.svg())
    assert (root[0].tag, root[0].text) == (f"{SVG}title", "Lent")
    assert (root[1].tag, root[1].text) == (f"{SVG}desc", lent.alt)
    assert (root.get("role"), root.get("aria-label")) == ("img", lent.alt)
    assert lent.svg() == lent.svg()


def test_a_picture_shows_itself_in_every_way_a_notebook_wants(lent: Picture) -> None:
    bundle = lent._repr_mimebundle_()
    assert bundle["text/plain"] == lent.alt
    assert str(bundle["image/svg+xml"]).startswith("<svg")
    assert bundle["image/png"] == lent.png()
    assert lent.png().startswith(b"\x89PNG")


def test_a_picture_saves_as_svg_or_png_and_nothing_else(lent: Picture, tmp_path: Path) -> None:
    lent.save(tmp_path / "map.svg")
    lent.save(tmp_path / "map.png")
    assert (tmp_path / "map.svg").read_text() == lent.svg()
    assert (tmp_path / "map.png").read_bytes() == lent.png()
    with pytest.raises(ValueError, match=r"map\.gif ends in neither \.svg nor \.png"):
        lent.save(tmp_path / "map.gif")


def test_the_comparison_shows_letters_and_losses(reproduction: Reproduction) -> None:
    names = ("reference", "borrowed", "cloned")
    outcomes = {name: getattr(reproduction, name) for name in names}
    picture = text_comparison(
        {name: each.text for name, each in outcomes.items()},
        {name: each.losses for name, each in outcomes.items()},
        len(reproduction.prompt),
        index_topk=64,
    )
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BLUE, "#FFFFFF"),
        (VERMILION, "#FFFFFF"),
        (VERMILION, PALE),
        (GREY, "#FFFFFF"),
        (BLACK, "#FFFFFF"),
    ],
)
def test_colours_used_together_can_be_told_apart(one: str, other: str) -> None:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 3


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


def _bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
