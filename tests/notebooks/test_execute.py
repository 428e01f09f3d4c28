"""Every notebook runs from top to bottom and prints what is stored in it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from refresh_notebooks import canonical

from casestudy.notebooks import course_notebooks, differing_cells, execute

WIDGET_CELL = """
import torch
from casestudy import record
from casestudy.widgets import StreamPlayer

stream, trace = record([("one", torch.ones(4))])
kept = dict(stream)
StreamPlayer(trace, "Nothing changes")
"""


@pytest.mark.parametrize("path", course_notebooks(), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_printed(path: Path) -> None:
    before = path.read_bytes()
    run = execute(path)
    assert run.verdict == "as stored"
    assert path.read_bytes() == before


def test_a_changed_output_is_noticed() -> None:
    assert differing_cells(_printing("five wrong"), _printing("none wrong")) == [1]
    assert differing_cells(_printing("five wrong"), _printing("five wrong")) == []


def test_an_output_that_varies_is_let_be() -> None:
    assert differing_cells(_printing("3 ms", "varies"), _printing("4 ms", "varies")) == []


def test_an_error_is_a_verdict_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("x / 0")]), path)
    assert execute(path).verdict == "ZeroDivisionError in code cell 2: division by zero"


def _printing(text: str, *tags: str) -> nbformat.NotebookNode:
    output = new_output("stream", name="stdout", text=text)
    return new_notebook(cells=[new_code_cell("x", outputs=[output], metadata={"tags": [*tags]})])


def test_a_widget_leaves_its_static_picture_and_no_state(tmp_path: Path) -> None:
    path = tmp_path / "widget.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(WIDGET_CELL)]), path)
    run = execute(path)
    assert run.error == ""
    (output,) = run.notebook.cells[0].outputs
    assert set(output.data) == {"text/plain", "text/html", "image/svg+xml", "image/png"}
    assert output.data["text/plain"].lstrip().startswith("Nothing")
    assert "widgets" not in run.notebook.metadata
    stored = nbformat.reads(canonical(run.notebook), as_version=4)
    assert set(stored.cells[0].outputs[0].data) == {"text/plain", "image/svg+xml", "image/png"}
