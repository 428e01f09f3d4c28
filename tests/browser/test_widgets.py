"""The course's widgets in a real JupyterLab: what they show is what the module computes."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from casestudy import course
from casestudy.observe import Observation, Subject, observe, subject
from casestudy.plots import byte_grid, damage, stream_map
from tests.browser.notebook_page import NotebookPage

PLAYER, SLIDER, SWITCH = "StreamPlayer(", "slider = MemoryLimitSlider(", "LoaderSwitch("
TITLE = "Memory limit 0, step by step"
SHOWN_MS = 20_000
IN_THE_MIDDLE = """async each => {
    let still = 0;
    for (let tries = 0; tries < 300 && still < 20; ++tries) {
        each.scrollIntoView({ block: 'center' });
        await new Promise(requestAnimationFrame);
        const { top, height } = each.getBoundingClientRect();
        const middle = top + height / 2;
        still = height && middle > 0 && middle < window.innerHeight ? still + 1 : 0;
    }
    return still === 20;
}"""


@pytest.fixture(autouse=True)
def one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the notebooks: the order of arrival is the same on every run."""
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "1")


@pytest.fixture
def lesson(lesson_file: Path) -> Subject:
    return subject(lesson_file)


@pytest.fixture
def aliasing(page: NotebookPage) -> NotebookPage:
    """Notebook 20, run from top to bottom."""
    page.open("20-aliasing.ipynb")
    page.run_all()
    assert page.error_outputs() == []
    return page


def test_the_slider_loads_anew_and_shows_what_the_module_computes(
    aliasing: NotebookPage, lesson: Subject
) -> None:
    output = aliasing.output_of(SLIDER)
    _shows(output, observe(lesson, "borrowed", 0))
    for position in (9, len(lesson.limits()) - 1):
        output.get_by_role("slider").fill(str(position))
        _shows(output, observe(lesson, "borrowed", lesson.limits()[position]))
    _look_at(output.locator("img").first)
    aliasing.screenshot("slider")


def test_the_player_steps_back_and_plays(aliasing: NotebookPage, lesson: Subject) -> None:
    trace = observe(lesson, "borrowed", 0).trace
    drawn = stream_map(trace, TITLE)
    output = aliasing.output_of(PLAYER)
    for button, step in (("Step", 1), ("Step", 2), ("Back", 1)):
        output.get_by_role("button", name=button).click()
        expect(output.get_by_role("status")).to_have_text(drawn.moment(step))
        _shows_image(output.locator("img"), drawn.html_at(step))
        captions = _captions(byte_grid(trace.steps[0], step))
        expect(output.locator("caption")).to_have_text(captions)
    output.get_by_role("button", name="Play").click()
    last = drawn.moment(len(trace.steps) - 1)
    expect(output.get_by_role("status")).to_have_text(last, timeout=SHOWN_MS)
    expect(output.get_by_role("button", name="Play")).to_be_visible()  # it has stopped
    output.get_by_role("combobox", name="Bytes of").select_option("scale")
    grid = byte_grid(trace.steps[1], len(trace.steps) - 1)
    expect(output.locator("caption").last).to_have_text(_captions(grid)[-1])
    _look_at(output.locator("img").first)
    aliasing.screenshot("player")


def test_everything_can_be_done_from_the_keyboard(aliasing: NotebookPage, lesson: Subject) -> None:
    trace = observe(lesson, "borrowed", 0).trace
    drawn = stream_map(trace, TITLE)
    output, keyboard = aliasing.output_of(PLAYER), aliasing.page.keyboard
    cells = aliasing.page.locator(".jp-Notebook .jp-Cell").count()
    aliasing.cell_with(PLAYER).locator(".cm-content").click()
    keyboard.press("Escape")
    _tab_to(aliasing, output.get_by_role("slider"))
    keyboard.press("ArrowRight")
    expect(output.get_by_role("status")).to_have_text(drawn.moment(1))
    keyboard.press("b")  # in a notebook this inserts a cell, but not while a control has focus
    _tab_to(aliasing, output.get_by_role("button", name="Step"))
    keyboard.press("Enter")
    expect(output.get_by_role("status")).to_have_text(drawn.moment(2))
    _tab_to(aliasing, output.get_by_role("combobox", name="Bytes of"))
    keyboard.press("ArrowDown")
    grid = byte_grid(trace.steps[1], 2)
    expect(output.locator("caption").first).to_have_text(_captions(grid)[0])
    assert aliasing.page.locator(".jp-Notebook .jp-Cell").count() == cells


def test_in_both_themes_the_widgets_can_be_read(aliasing: NotebookPage) -> None:
    pictures = []
    for theme in ("Light", "Dark"):
        aliasing.theme(theme)
        for name, source in (("player", PLAYER), ("slider", SLIDER)):
            _look_at(aliasing.output_of(source).locator("img").first)
            pictures.append(aliasing.screenshot(f"{name}-{theme.lower()}").read_bytes())
        assert aliasing.axe(".jp-OutputArea-output") == []
    assert len(set(pictures)) == 4


def test_the_switch_shows_the_fix(page: NotebookPage, lesson: Subject) -> None:
    page.open("30-the-fix.ipynb")
    page.run_all()
    assert page.error_outputs() == []
    output = page.output_of(SWITCH)
    for loader in ("cloned", "borrowed"):
        output.get_by_role("combobox", name="Loader").select_option(loader)
        seen = observe(lesson, loader, 0)
        expect(output.get_by_role("status")).to_have_text(seen.verdict, timeout=SHOWN_MS)
    _look_at(output.locator("img").first)
    page.screenshot("switch")
    assert page.axe(".jp-OutputArea-output") == []


def test_the_model_writes_when_it_is_asked_to(page: NotebookPage) -> None:
    page.open("10-garbled-output.ipynb")
    page.run_all()
    assert page.error_outputs() == []
    output = page.output_of("MemoryLimitSlider(")
    output.get_by_role("slider").fill(str(len(subject(course.CHECKPOINT).limits()) - 1))
    expect(output.get_by_role("status").first).to_contain_text(": 0 of ", timeout=SHOWN_MS)
    output.get_by_role("button", name="Let the model write").click()
    told = output.locator("img[alt*='The same prompt, continued']")
    expect(told).to_be_visible(timeout=10 * SHOWN_MS)
    prompt = course.long_prompt()
    assert str(told.get_attribute("alt")).count(repr(course.continuation(prompt))) == 2
    _look_at(told)
    page.screenshot("written")
    assert page.axe(".jp-OutputArea-output") == []


def _shows(output: Locator, seen: Observation) -> None:
    """The sentence, the damage and the map of one load."""
    expect(output.get_by_role("status")).to_have_text(seen.verdict, timeout=SHOWN_MS)
    drawn = [damage(seen.telling), stream_map(seen.trace)]
    for image, picture in zip(output.locator("img").all(), drawn, strict=True):
        _shows_image(image, picture.html())


def _shows_image(image: Locator, html: str) -> None:
    """The picture itself and its alt text, to the letter."""
    for attribute in ("alt", "src"):
        (value,) = re.findall(f'{attribute}="(.*?)"', html, re.DOTALL)
        expect(image).to_have_attribute(attribute, unescape(value))


def _captions(grid: str) -> list[str]:
    return re.findall("<caption.*?>(.*?)</caption>", grid)


def _look_at(target: Locator) -> None:
    """Scrolls there; JupyterLab draws only what is in sight, so things move while it does."""
    assert target.evaluate(IN_THE_MIDDLE), f"{target} does not come into sight"


def _tab_to(page: NotebookPage, target: Locator) -> None:
    """Presses Tab until `target` has the focus."""
    for _ in range(30):
        page.page.keyboard.press("Tab")
        if target.evaluate("each => each === document.activeElement"):
            return
    pytest.fail(f"Tab does not reach {target}")
