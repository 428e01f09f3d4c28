"""What holds for every picture: it can be read, by whomever and wherever."""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from casestudy.errors import CaseStudyError
from casestudy.plots import Picture, stream_map
from casestudy.plots.picture import BLACK, BLUE, GREY, PALE, VERMILION, WHITE, YELLOW, shorten
from tests.plots.conftest import trace_of_many

SVG = "{http://www.w3.org/2000/svg}"
OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
KINDS = [
    "map",
    "map of copies",
    "map of a checkpoint",
    "map of many",
    "map of odd names",
    "storage",
    "F32 bytes",
    "BF16 bytes",
    "FP8 bytes",
    "strip",
    "damage",
    "damage of few",
    "text",
]


@pytest.fixture(params=KINDS)
def picture(request: pytest.FixtureRequest, pictures: dict[str, Picture]) -> Picture:
    return pictures[request.param]


def test_every_kind_is_looked_at(pictures: dict[str, Picture]) -> None:
    assert list(pictures) == KINDS


def test_the_svg_has_title_and_description_and_words_that_are_words(picture: Picture) -> None:
    root = ElementTree.fromstring(picture.svg())
    assert (root[0].tag, root[0].text) == (f"{SVG}title", picture.title)
    assert (root[1].tag, root[1].text) == (f"{SVG}desc", picture.alt)
    assert (root.get("role"), root.get("aria-label")) == ("img", picture.alt)
    assert picture.title in [text.text for text in root.iter(f"{SVG}text")]
    assert picture.alt.startswith(f"{picture.title}. ")


def test_it_shows_itself_wherever_a_notebook_is_read(picture: Picture) -> None:
    bundle = picture._repr_mimebundle_()
    assert bundle["text/plain"] == picture.text()
    assert bundle["image/svg+xml"] == picture.svg()
    assert str(bundle["text/html"]).startswith('<img alt="')
    assert picture.png().startswith(b"\x89PNG")


def test_the_table_says_every_cell_in_full(picture: Picture) -> None:
    packed = "".join(picture.text().split())
    assert "".join(picture.title.split())[:60] in packed
    lines = picture.text(width=400)
    for row in picture.rows:
        assert len(row) == len(picture.columns)
        for cell in row:
            assert all(word in lines for word in cell.split())
    assert max(map(len, picture.text(100).splitlines())) <= 100
    assert picture.text(60).count("…") == picture.title.count("…")  # folded, not cut off


def test_every_axis_with_numbers_says_what_they_count(picture: Picture) -> None:
    for axes in picture.figure.axes:
        for axis in _axes_of(axes):
            label, neighbours = axis.get_label_text(), axes.get_shared_y_axes().get_siblings(axes)
            if [text for text in _labels(axis) if text is not axis.label]:
                assert label or any(each.get_ylabel() for each in neighbours)


def test_no_label_lies_on_another(picture: Picture) -> None:
    boxes = list(_words(picture.figure))
    for (one, box), (other, other_box) in combinations(boxes, 2):
        shared = Bbox.intersection(box, other_box)
        if shared is not None and shared.width > 1 and shared.height > 2:
            pytest.fail(f"{one!r} lies on {other!r}")


def test_nothing_is_cut_off_at_the_edge(picture: Picture) -> None:
    width, height = picture.figure.bbox.width, picture.figure.bbox.height
    for words, box in _words(picture.figure):
        assert box.x0 >= -1 and box.x1 <= width + 1, words
        assert box.y0 >= -1 and box.y1 <= height + 1, words


def test_whatever_is_drawn_can_be_told_from_what_it_lies_on(picture: Picture) -> None:
    """Fill or outline against the paper, hatches against their fill, words against either."""
    for artist in picture.figure.findobj(_is_mark):
        fill, edge = _colours(artist)
        assert max(_contrast(fill, WHITE), _contrast(edge, WHITE)) >= 3, artist
        if artist.get_hatch():  # type: ignore[attr-defined]
            assert _contrast(edge, fill) >= 3, artist
    for text in _texts(picture.figure):
        below = WHITE if text.get_color() != WHITE else BLUE
        strong = text.get_fontweight() == "bold" or not text.get_text().strip("_\u00a0")
        least = 3 if strong else 4.5
        assert _contrast(str(text.get_color()), below) >= least, text


@pytest.mark.parametrize(
    ("one", "other"),
    [(BLUE, YELLOW), (BLUE, BLACK), (YELLOW, BLACK), (VERMILION, PALE), (VERMILION, WHITE)],
)
def test_colours_that_touch_can_be_told_apart(one: str, other: str) -> None:
    assert _contrast(one, other) >= 3


def test_the_palette_is_safe_for_colour_blind_eyes() -> None:
    assert {BLUE, VERMILION, YELLOW, BLACK} <= OKABE_ITO
    neutral = {GREY, WHITE}
    assert all(len(set(to_rgb(colour))) == 1 for colour in neutral)


def test_a_picture_saves_as_svg_or_png_and_nothing_else(
    pictures: dict[str, Picture], tmp_path: Path
) -> None:
    picture = pictures["map"]
    picture.save(tmp_path / "map.svg")
    picture.save(tmp_path / "map.png")
    assert (tmp_path / "map.svg").read_text() == picture.svg()
    assert (tmp_path / "map.png").read_bytes() == picture.png()
    with pytest.raises(CaseStudyError, match=r"map\.gif ends in neither \.svg nor \.png"):
        picture.save(tmp_path / "map.gif")
    with pytest.raises(CaseStudyError, match=r"no.map\.png cannot be written \(No such file"):
        picture.save(tmp_path / "no" / "map.png")


def test_drawing_twice_gives_the_same_bytes(
    pictures: dict[str, Picture], draw_map: Callable[[], Picture]
) -> None:
    assert draw_map().svg() == pictures["map"].svg()


@pytest.mark.parametrize(
    ("letters", "short"),
    [
        (60, "model.layers.7.self_attn.indexer.wk.weight_scale_inv"),
        (45, "m.l.7.self_attn.indexer.wk.weight_scale_inv"),
        (30, "m.l.7.s.i.wk.weight_scale_inv"),
        (12, "m.l…ale_inv"),
    ],
)
def test_a_short_name_keeps_its_layer_and_its_end(letters: int, short: str) -> None:
    name = "model.layers.7.self_attn.indexer.wk.weight_scale_inv"
    assert shorten(name, letters) == short
    assert len(short) <= letters


def _is_mark(artist: Artist) -> bool:
    drawn = isinstance(artist, Rectangle | Collection) and artist.get_visible()
    backgrounds = [axes.patch for axes in artist.figure.axes] if drawn and artist.figure else []
    return drawn and artist not in backgrounds and artist is not getattr(artist.figure, "patch", 0)


def _colours(artist: Artist) -> tuple[str, str]:
    fill, edge = artist.get_facecolor(), artist.get_edgecolor()  # type: ignore[attr-defined]
    if isinstance(artist, Patch):
        return _spelled(fill), _spelled(edge) if fill != edge else _spelled(fill)
    return _spelled(fill[0]), _spelled(edge[0]) if len(edge) else _spelled(fill[0])


def _spelled(colour: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(channel * 255):02X}" for channel in colour[:3])


def _texts(figure: Figure) -> Iterator[Text]:
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip():
            yield text


def _words(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    """Every drawn word and its box; letters in columns (monospace) overlay each other by plan."""
    figure.draw_without_rendering()  # it may have been saved in other dots an inch
    every = [axis for axes in figure.axes for axis in _axes_of(axes)]
    ticks = {id(text) for axis in every for text in axis.findobj(Text)}
    free = [text for text in _texts(figure) if id(text) not in ticks]
    labels = [label for axis in every for label in _labels(axis)]
    for text in [*free, *labels]:
        if "monospace" not in text.get_fontfamily():
            yield text.get_text(), text.get_window_extent()


def _axes_of(axes: Axes) -> tuple[Axis, Axis]:
    return axes.xaxis, axes.yaxis


def _labels(axis: Axis) -> list[Text]:
    """The axis label and the tick labels that are drawn."""
    if not axis.axes.axison:
        return []
    ticks = axis._update_ticks()  # type: ignore[attr-defined]
    shown = [tick.label1 for tick in ticks if tick.label1.get_visible()]
    return [text for text in [axis.label, *shown] if text.get_text()]


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    channels = to_rgb(colour)
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    pictures: dict[str, Picture], tmp_path: Path
) -> None:
    path = tmp_path / "map.svg"
    path.write_text("mine")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # as on a full disk
    try:
        with pytest.raises(CaseStudyError, match=r"map\.svg cannot be written"):
            pictures["map"].save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert [each.name for each in tmp_path.iterdir()] == ["map.svg"]
    assert path.read_text() == "mine"


def test_in_a_narrow_terminal_the_table_is_a_list(pictures: dict[str, Picture]) -> None:
    lines = pictures["map"].text(30).splitlines()
    assert lines[0] == pictures["map"].title
    assert "tensor: embed" in lines
    assert lines.count("overwritten by: weight (step 5)") == 2


@pytest.mark.parametrize("name", ["a\x01b", "a\nb", "a\ud800b", "\u05d0\u05d1", "\U0001f999"])
def test_any_name_makes_a_picture_that_can_be_read(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = stream_map(trace_of_many(3, name))
        root = ElementTree.fromstring(picture.svg())
    assert len(root) > 2


def test_a_long_title_has_several_lines() -> None:
    title = "borrowed, a buffer of 98,304 bytes, room for the largest tensor: " * 3
    picture = stream_map(trace_of_many(3), title)
    test_nothing_is_cut_off_at_the_edge(picture)
    test_no_label_lies_on_another(picture)
    box = dict(_words(picture.figure))[picture.figure.get_suptitle()]
    assert all(box.y0 >= axes.get_window_extent().y1 for axes in picture.figure.axes)
    assert picture.figure.get_suptitle().split() == title.split()
