"""Every picture can be had by name, of the course's files and of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from casestudy import course
from casestudy.errors import CaseStudyError
from casestudy.gallery import GALLERY, Wish, draw


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("map", "6 tensors in 6 steps, 5 of them stale"),
        ("storage", "borrowed: 6 tensors, 3,968 bytes of tensors in 768 bytes of memory"),
        ("storage", "cloned: 6 tensors, 3,968 bytes of tensors in 3,968 bytes of memory"),
        ("bytes", "The first bytes of embed. embed, float32, 64 of its 768 bytes"),
        ("strip", "model-00002-of-00003.safetensors, from front to back. 76 tensors"),
        ("damage", "4 of 133 parameters wrong. 4 of the 4 parameters shown are wrong"),
    ],
)
def test_the_courses_own_files_are_drawn_by_default(picture: str, words: str) -> None:
    assert words in draw(picture, Wish()).alt


def test_ones_own_files_are_drawn(equal_file: Path) -> None:
    assert "10 tensors in 10 steps, 9 of them stale" in draw("map", Wish(equal_file)).alt
    assert "0 of them stale" in draw("map", Wish(equal_file, loader="cloned")).alt
    assert "0 of them stale" in draw("map", Wish(equal_file, memory_limit=-1)).alt
    assert "9 of 10 parameters wrong" in draw("damage", Wish(equal_file)).alt
    assert draw("bytes", Wish(equal_file, tensor="t3")).title == "The first bytes of t3"
    assert "141 tensors in 141 steps" in draw("map", Wish(course.CHECKPOINT)).alt


def test_a_tensor_that_is_not_there_is_refused_with_a_near_name(equal_file: Path) -> None:
    with pytest.raises(CaseStudyError, match=r"there is no tensor t33; did you mean t3\?"):
        draw("bytes", Wish(equal_file, tensor="t33"))


def test_the_course_has_a_picture_of_every_name() -> None:
    assert list(GALLERY) == ["map", "storage", "bytes", "strip", "damage", "text"]
