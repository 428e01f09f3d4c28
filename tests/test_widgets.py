"""Widgets without a front end: moving a control loads and draws; `tests/browser` looks at them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from casestudy import course
from casestudy.errors import CaseStudyError
from casestudy.observe import Subject, observe, subject
from casestudy.plots import byte_grid, damage, stream_map
from casestudy.trace import Trace
from casestudy.widgets import LoaderSwitch, MemoryLimitSlider, Shown, StreamPlayer

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def lesson(lesson_file: Path) -> Subject:
    return subject(lesson_file)


@pytest.fixture
def player(lesson: Subject) -> StreamPlayer:
    return StreamPlayer(observe(lesson, "borrowed", 1843).trace, "Lent")


def test_the_player_follows_its_slider(player: StreamPlayer) -> None:
    drawn = stream_map(player.trace, "Lent")
    for step in (3, 0, 5):
        player.step.index = step
        assert drawn.moment(step) in player.moment.value
        assert player.map_shown.value == drawn.html_at(step)
        assert player.bytes_shown.value == byte_grid(player.trace.steps[0], step)
    player.watched.index = 2
    assert player.bytes_shown.value == byte_grid(player.trace.steps[2], 5)


def test_the_player_has_a_turn_for_every_step_and_a_choice_for_every_tensor(
    player: StreamPlayer,
) -> None:
    assert player.step.options == [f"{number} of 5" for number in range(6)]
    assert player.watched.options == ["embed", "scale", "bias", "norm", "head", "weight"]


def test_the_slider_loads_anew_at_every_move(lesson: Subject) -> None:
    slider = MemoryLimitSlider(lesson)
    for position, limit in list(enumerate(lesson.limits()))[::6]:
        slider.control.index = position
        seen = observe(lesson, "borrowed", limit)
        assert seen.verdict in slider.verdict.value
        assert slider.damage_shown.value == damage(seen.telling).html()
        assert _alt(slider.map_shown.value) == stream_map(seen.trace).alt
    assert slider.control.options == [lesson.spell(limit) for limit in lesson.limits()]


def test_the_switch_changes_the_loader_only(lesson: Subject) -> None:
    switch = LoaderSwitch(lesson, memory_limit=1843)
    assert switch.observation.wrong == ["bias", "embed", "norm", "scale"]
    switch.control.index = switch.control.options.index("cloned")
    assert switch.observation.wrong == []
    assert switch.observation.memory_limit == 1843
    assert "cloned, a buffer of 1,843 bytes" in switch.verdict.value


def test_a_model_writes_when_it_is_asked_to_and_the_text_goes_with_the_next_load() -> None:
    slider = MemoryLimitSlider(subject(course.CHECKPOINT))
    assert slider.text_shown.value == ""
    slider.control.index = len(slider.control.options) - 1
    slider.write.click()
    assert _alt(slider.text_shown.value).count(course.continuation(course.long_prompt())[:40]) == 2
    slider.control.index = 0
    assert slider.text_shown.value == ""


def test_only_a_model_is_asked_to_write(lesson: Subject) -> None:
    assert len(MemoryLimitSlider(lesson).children) == 4
    assert len(MemoryLimitSlider(subject(course.CHECKPOINT)).children) == 6


@pytest.mark.parametrize("kind", [MemoryLimitSlider, LoaderSwitch])
def test_a_widget_carries_the_picture_that_stands_in_for_it(
    kind: type[MemoryLimitSlider | LoaderSwitch], lesson: Subject
) -> None:
    _check_bundle(kind(lesson))


def test_the_player_carries_the_map_of_the_whole_trace(player: StreamPlayer) -> None:
    _check_bundle(player)
    title = "Lent (in JupyterLab: a player)"
    assert player.static.alt == stream_map(player.trace, title).alt


def test_a_checkpoint_that_breaks_meanwhile_is_told_in_the_widget(lesson_file: Path) -> None:
    slider = MemoryLimitSlider(subject(lesson_file))
    lesson_file.write_bytes(lesson_file.read_bytes()[:-1])
    slider.control.index = 3
    assert "six-tensors.safetensors is cut off" in slider.verdict.value
    assert "wrong" not in slider.verdict.value


def _check_bundle(widget: Shown) -> None:
    bundle = widget._repr_mimebundle_()
    assert WIDGET in bundle
    for kind in ("text/plain", "text/html", "image/svg+xml", "image/png"):
        assert bundle[kind] == widget.static._repr_mimebundle_()[kind]


def _alt(html: str) -> str:
    found = re.search('alt="(.*?)"', html, re.DOTALL)
    assert found
    return found[1].replace("&#x27;", "'")


def test_an_empty_trace_cannot_be_played() -> None:
    with pytest.raises(CaseStudyError, match="consume the recorded iterator first"):
        StreamPlayer(Trace())


def test_another_file_of_that_name_is_told_in_the_widget(
    lesson_file: Path, equal_file: Path
) -> None:
    slider = MemoryLimitSlider(subject(lesson_file))
    lesson_file.write_bytes(equal_file.read_bytes())
    slider.control.index = len(slider.limits) - 1
    assert "only one of the two holds" in slider.verdict.value


def test_a_model_that_cannot_be_built_is_told_in_the_widget(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(course.CHECKPOINT, folder)
    switch = LoaderSwitch(subject(folder))
    (folder / "config.json").unlink()
    switch.write.click()
    assert "config.json is missing" in switch.text_shown.value
