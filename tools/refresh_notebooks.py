"""Execute notebooks in place, so that they are stored with today's outputs.

    python tools/refresh_notebooks.py [NOTEBOOK…]

Without arguments, the whole course. Writes the one canonical form that the tests insist on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from casestudy.notebooks import course_notebooks, execute

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def canonical(notebook: NotebookNode) -> str:
    """The text of a notebook without what differs from run to run or from editor to editor."""
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        kept = ("casestudy", "tags")
        cell.metadata = {key: cell.metadata[key] for key in kept if key in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs = [_stored(output) for output in cell.outputs if not _is_stderr(output)]
    return str(nbformat.writes(notebook)) + "\n"


def _stored(output: NotebookNode) -> NotebookNode:
    """Pictures as images only: a code host may show HTML in their place, stripped of the image."""
    if "image/svg+xml" in output.get("data", {}):
        output.data.pop("text/html", None)
    return output


def _is_stderr(output: NotebookNode) -> bool:
    return bool(output.output_type == "stream" and output.name == "stderr")


def main(paths: list[Path]) -> None:
    for path in paths or course_notebooks():
        run = execute(path)
        if run.error:
            sys.exit(f"{path}: {run.error}")
        path.write_text(canonical(run.notebook))
        print(f"{path.name}: {run.seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=Path, nargs="*", help="else the whole course")
    main(parser.parse_args().notebook)
