"""Write the table of idioms in `docs/ownership-contract.md` anew, from a run of every idiom.

    python tools/refresh_contract.py

The tests insist that the page shows what a run finds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

from casestudy import course
from casestudy.idioms import IDIOMS, Answer, answer_key, write_matrices

PAGE = course.ROOT / "docs" / "ownership-contract.md"
BEGINNING = "<!-- tools/refresh_contract.py writes from here -->"
ENDING = "<!-- to here -->"


def table(answers: Sequence[Answer]) -> str:
    """A Markdown table, a row an idiom; those that this machine cannot run are left open."""
    found = {each.idiom.name: each for each in answers}
    rows = [
        "| what is done | the telling line | a borrowed tensor is then | held by |",
        "|---|---|---|---|",
    ]
    for idiom in IDIOMS:
        answer = found.get(idiom.name)
        truth = "not run: needs a GPU" if answer is None else WORDS[answer.truth]
        held = f"`{answer.held_by}`" if answer and answer.held_by else ""
        rows.append(f"| {idiom.name} | `{idiom.code}` | {truth} | {held} |")
    return "\n".join(rows)


WORDS = {"stale": "**stale**", "sound": "sound"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = table(answer_key(write_matrices(folder)))
    before, _, rest = PAGE.read_text().partition(BEGINNING)
    PAGE.write_text(f"{before}{BEGINNING}\n{written}\n{ENDING}{rest.partition(ENDING)[2]}")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
