"""The course keeps its own rules, and the rules can be broken."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from refresh_notebooks import canonical

from casestudy.notebooks import course_notebooks
from tests.notebooks.linter import code_findings, findings, text_findings

# finding -> why it is allowed; an entry that is no longer needed fails
EXEMPT: dict[str, str] = {}


@pytest.mark.parametrize("path", course_notebooks(), ids=lambda path: path.stem)
def test_a_notebook_keeps_the_rules(path: Path) -> None:
    found = [f"{path.stem}: {each}" for each in findings(nbformat.read(path, as_version=4))]
    assert [each for each in found if each not in EXEMPT] == []


def test_no_exemption_is_left_over() -> None:
    found = {
        f"{path.stem}: {each}"
        for path in course_notebooks()
        for each in findings(nbformat.read(path, as_version=4))
    }
    assert EXEMPT.keys() <= found


@pytest.mark.parametrize("path", course_notebooks(), ids=lambda path: path.stem)
def test_a_notebook_is_stored_in_canonical_form(path: Path) -> None:
    assert path.read_text() == canonical(nbformat.read(path, as_version=4))


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("\n".join("x = 1" for _ in range(13)), "has more than 12 lines"),
        ("%pip install torch", "installs something"),
        ("import sys\nsys.path.insert(0, 'x')", "changes sys.path"),
        ("open('/mnt/model')", "names an absolute path"),
        ("print(1)", "is stored without its output"),
    ],
)
def test_the_linter_finds_bad_code(source: str, finding: str) -> None:
    assert finding in list(code_findings(new_code_cell(source)))


@pytest.mark.parametrize("address", ["0x7f12ab34cd56", "140051234567890"])
def test_the_linter_finds_a_raw_address(address: str) -> None:
    cell = new_code_cell("x", outputs=[new_output("stream", name="stdout", text=address)])
    assert "stores a raw address" in list(code_findings(cell))


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("word " * 121, "has more than 120 words"),
        ("# One\n\n# Two", "has more than one heading"),
        ("It is 3 times faster.", "has a number in its prose that no cell computes"),
        ("TODO: write", "has a loose end"),
    ],
)
def test_the_linter_finds_bad_text(source: str, finding: str) -> None:
    assert finding in list(text_findings(new_markdown_cell(source)))


def test_the_linter_misses_a_frame() -> None:
    bare = nbformat.v4.new_notebook(
        cells=[new_markdown_cell("# 10 Title"), new_code_cell("x"), new_code_cell("y")]
    )
    found = list(findings(bare))
    assert "the title is missing or numbered" in found
    assert "cell 2 comes without a sentence before it" in found
    assert any("Three questions" in each for each in found)
