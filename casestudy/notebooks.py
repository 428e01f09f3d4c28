"""Execute the course's notebooks, compare what they print with what they printed, export them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from casestudy import course
from casestudy.errors import CaseStudyError
from casestudy.plots.picture import image_of

VARIES = "varies"  # tag of cells whose output depends on the machine
WIDGET = "application/vnd.jupyter.widget-view+json"
BUILD_MARK = ".casestudy-build"  # marks a folder that may be overwritten

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>casestudy: a page on loan</title>
<style>
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 1.1rem/1.5 sans-serif;
  color: #000; background: #fff; }}
figure {{ margin: 2rem 0; }}
</style>
</head>
<body>
<main>
<h1>casestudy: a page on loan</h1>
<p>A loader hands out a tensor. Somebody keeps it. The loader writes the next tensor onto the same
bytes. Nothing raises, and the model answers in gibberish.</p>
<ol>{way}</ol>
{pictures}
</main>
</body>
</html>
"""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Run:
    """One executed notebook. `error` tells what failed and where; empty if nothing did."""

    path: Path
    notebook: NotebookNode
    seconds: float
    error: str
    differing: list[int]

    @property
    def verdict(self) -> str:
        """`as stored`, `cells 3, 5 print something else`, or the error."""
        if self.error:
            return self.error
        if self.differing:
            return f"cells {', '.join(map(str, self.differing))} print something else"
        return "as stored"


def course_notebooks() -> list[Path]:
    """The course in reading order. Raises `CaseStudyError` if it is not there."""
    paths = sorted(course.NOTEBOOKS.glob("[0-9][0-9]-*.ipynb"))
    if not paths:
        raise CaseStudyError(
            f"{course.NOTEBOOKS} holds no notebook: the course comes with the repository, "
            f"so install from a clone (pip install -e .)."
        )
    return paths


def title(path: Path) -> str:
    """The heading with which a notebook begins."""
    first: str = _read(path).cells[0].source
    return first.splitlines()[0].removeprefix("# ")


def minutes(path: Path) -> int:
    """How long a notebook takes in class: the sum over its cells' metadata."""
    cells = _read(path).cells
    return sum(cell.metadata.get("casestudy", {}).get("minutes", 0) for cell in cells)


def cell_count(path: Path) -> int:
    """How many code cells a notebook has."""
    return len(_code_cells(_read(path)))


def execute(path: Path, on_cell: Callable[[], None] = lambda: None) -> Run:
    """Runs a notebook in a fresh kernel; the file itself is left as it is.

    Raises `CaseStudyError` if it is not a notebook.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    stored = _read(path)
    fresh = deepcopy(stored)
    client = NotebookClient(
        fresh,
        timeout=None,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=lambda **_: on_cell(),
        store_widget_state=False,
    )
    start = time.perf_counter()
    error = ""
    try:
        client.execute()
    except CellExecutionError as failure:
        error = f"{failure.ename} in {_failed_cell(fresh)}: {failure.evalue}"
    except Exception as failure:
        if hasattr(client, "_async_cleanup_kernel_future"):  # left by nbclient's Ctrl-C handler
            raise KeyboardInterrupt from None
        if not isinstance(failure, DeadKernelError):
            raise
        error = "the kernel died; is there enough memory?"
    seconds = time.perf_counter() - start
    return Run(path, _without_widgets(fresh), seconds, error, differing_cells(stored, fresh))


def differing_cells(stored: NotebookNode, fresh: NotebookNode) -> list[int]:
    """Numbers of the code cells (from 1) whose text output is not the stored one."""
    pairs = zip(_code_cells(stored), _code_cells(fresh), strict=True)
    return [
        number
        for number, (old, new) in enumerate(pairs, 1)
        if VARIES not in old.metadata.get("tags", []) and text_output(old) != text_output(new)
    ]


def text_output(cell: NotebookNode) -> str:
    """What a code cell printed, results and tables of pictures included."""
    return _ANSI.sub("", "".join(_texts(cell)))


def prepare_output_folder(folder: Path) -> None:
    """Makes `folder`, or takes one that an earlier run made.

    Raises `CaseStudyError` if it holds anything else or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / BUILD_MARK).exists():
            raise CaseStudyError(
                f"{folder} holds files that casestudy did not write; name another --out."
            )
        (folder / BUILD_MARK).touch()
    except OSError as error:
        raise CaseStudyError(
            f"{folder} cannot be written ({error.strerror}); name another --out."
        ) from None


def write_html(run: Run, folder: Path) -> Path:
    """Writes an executed notebook as one page that needs no network and returns its path.

    Pictures keep their alt texts, since they come as HTML; widgets show their static pictures.

    Raises `CaseStudyError` if the folder cannot be written.
    """
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    page, _ = exporter.from_notebook_node(
        run.notebook, resources={"metadata": {"name": title(run.path)}}
    )
    return _write(folder / f"{run.path.stem}.html", page)


def write_index(runs: list[Run], folder: Path) -> Path:
    """Writes the project's page, `index.html`: the way through the course, and its pictures.

    Raises `CaseStudyError` if the folder cannot be written.
    """
    way = "".join(
        f'<li><a href="{run.path.stem}.html">{escape(title(run.path))}</a>, '
        f"{minutes(run.path)} minutes</li>"
        for run in runs
    )
    shown = "".join(f"<figure>{image_of(path)}</figure>" for path in course.PICTURES)
    return _write(folder / "index.html", PAGE.format(way=way, pictures=shown))


def _write(target: Path, page: str) -> Path:
    try:
        target.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CaseStudyError(f"{target} cannot be written ({error.strerror}).") from None
    return target


def _read(path: Path) -> NotebookNode:
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        return notebook
    except Exception as error:  # whatever nbformat makes of a file that is no notebook
        raise CaseStudyError(
            f"{path} is not a notebook that can be read ({type(error).__name__}): "
            f"git checkout -- notebooks"
        ) from error


def _without_widgets(notebook: NotebookNode) -> NotebookNode:
    """The same notebook with each widget's static picture alone; a widget needs its kernel."""
    for cell in _code_cells(notebook):
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET, None)
    return notebook


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            yield output.text
        elif output.output_type in ("execute_result", "display_data"):
            yield output.data.get("text/plain", "") + "\n"


def _failed_cell(notebook: NotebookNode) -> str:
    for number, cell in enumerate(_code_cells(notebook), 1):
        if any(output.output_type == "error" for output in cell.outputs):
            return f"code cell {number}"
    return "a cell"
