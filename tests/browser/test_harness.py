"""The harness sees what it is there to see: a check that cannot fail is worse than none."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser.conftest import Lab
from tests.browser.notebook_page import NotebookPage

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
UNNAMED = "import ipywidgets as widgets\nwidgets.IntSlider()"
FAR_BELOW = "print('line\\n' * 60)"
PALE = "widgets.HTML('<p style=\"color: #777; background: #888\">hardly to be read</p>')"


def test_axe_sees_what_is_wrong_even_if_it_is_scrolled_away(lab: Lab, page: NotebookPage) -> None:
    _write(lab.root / "axe.ipynb", UNNAMED, FAR_BELOW, PALE)
    page.open("axe.ipynb")
    page.run_all()
    found = page.axe(".jp-OutputArea-output")
    assert {each["rule"] for each in found} == {"aria-input-field-name", "color-contrast"}
    assert page.page.viewport_size == {"width": 1024, "height": 768}


def test_an_error_is_seen(lab: Lab, page: NotebookPage) -> None:
    _write(lab.root / "error.ipynb", "1 / 0")
    page.open("error.ipynb")
    page.run_all()
    assert page.error_outputs() == ["ZeroDivisionError: division by zero"]


def _write(path: Path, *sources: str) -> None:
    """Without a kernel's name JupyterLab would ask for one."""
    cells = [new_code_cell(source) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
