"""The rules that every notebook of the course keeps; each finding is a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from nbformat import NotebookNode

CODE_LINES = 12
WORDS = 120
FORBIDDEN_CODE = {
    r"^\s*[!%]\s*(pip|conda|apt)": "installs something",
    r"\bsys\.path\b": "changes sys.path",
    r"[\"'](/|~/|[A-Z]:\\)\w": "names an absolute path",
}
ADDRESS = re.compile(r"\b0x[0-9a-f]{7,}\b|\b\d{13,}\b")
# not prose: code spans, links, issue and PR numbers, list markers, dtypes, the year of the record
NOT_PROSE = re.compile(
    r"`[^`]*`|\[[^\]]*\]\([^)]*\)|#\d+|^\d+\. |\b(FP8|BF16|F32)\b|May of 2026", re.MULTILINE
)
OPENING = ("**You will see**", "**You will learn**", "**You need**", "**Minutes:**")
CLOSING = ("**You have seen**", "**You have learned**", "**Three questions**")


def findings(notebook: NotebookNode) -> Iterator[str]:
    """Everything in `notebook` that breaks a rule."""
    for number, cell in enumerate(notebook.cells):
        rules = code_findings if cell.cell_type == "code" else text_findings
        for finding in rules(cell):
            yield f"cell {number} {finding}"
    yield from frame_findings(notebook)
    yield from sequence_findings(notebook)


def code_findings(cell: NotebookNode) -> Iterator[str]:
    if len(cell.source.splitlines()) > CODE_LINES:
        yield f"has more than {CODE_LINES} lines"
    for pattern, words in FORBIDDEN_CODE.items():
        if re.search(pattern, cell.source, re.MULTILINE):
            yield words
    if not cell.outputs and "print" in cell.source:
        yield "is stored without its output"
    if any(ADDRESS.search(text) for text in output_texts(cell)):
        yield "stores a raw address"
    if any(output.output_type == "error" for output in cell.outputs):
        yield "stores an error"
    if any("application/vnd.jupyter.widget" in str(output) for output in cell.outputs):
        yield "stores widget state"


def text_findings(cell: NotebookNode) -> Iterator[str]:
    if len(cell.source.split()) > WORDS:
        yield f"has more than {WORDS} words"
    if len(re.findall(r"^#+ ", cell.source, re.MULTILINE)) > 1:
        yield "has more than one heading"
    prose = NOT_PROSE.sub("", re.sub(r"^- \*\*Minutes:\*\* \d+", "", cell.source, flags=re.M))
    if re.search(r"\d", prose):
        yield "has a number in its prose that no cell computes"
    if re.search(r"\b(TODO|FIXME)\b", cell.source):
        yield "has a loose end"


def frame_findings(notebook: NotebookNode) -> Iterator[str]:
    first, last = notebook.cells[0].source, notebook.cells[-1].source
    if not re.match(r"# \D+$", first.splitlines()[0]):
        yield "the title is missing or numbered"
    yield from (f"the opening lacks {part}" for part in OPENING if part not in first)
    yield from (f"the closing lacks {part}" for part in CLOSING if part not in last)
    for opened, closed in zip(OPENING[:2], CLOSING[:2], strict=True):
        if promise(first, opened) != promise(last, closed):
            yield f"the closing does not mirror {opened}"
    if len(re.findall(r"^\d\. ", last, re.MULTILINE)) != 3:
        yield "the closing does not ask three questions"
    total = sum(cell.metadata.get("casestudy", {}).get("minutes", 0) for cell in notebook.cells)
    if f"**Minutes:** {total}" not in first:
        yield f"the opening does not say the sum of the minutes, {total}"


def sequence_findings(notebook: NotebookNode) -> Iterator[str]:
    for number, (before, after) in enumerate(pairwise(notebook.cells)):
        if before.cell_type == after.cell_type == "code":
            yield f"cell {number + 1} comes without a sentence before it"


def promise(source: str, lead: str) -> str:
    """What follows `lead` on its line."""
    return source.partition(lead)[2].partition("\n")[0].strip()


def output_texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        yield output.get("text", "") + output.get("data", {}).get("text/plain", "")
