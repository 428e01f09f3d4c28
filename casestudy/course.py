"""Where the course's own files lie, and the prompts that it uses."""

from __future__ import annotations

from pathlib import Path

from casestudy.errors import CaseStudyError

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
CHECKPOINT = DATA / "tiny-glm-dsa"
TALE = DATA / "tale.txt"
GPU_RECORD = DATA / "recorded" / "gpu.json"

PROMPT_OPENING = "What he did not know"  # the tale's turn: how a kept page is overwritten
LONG_PROMPT = 238  # characters; the checkpoint's index_topk is 64
SHORT_PROMPT = 24
LONG_CONTINUATION = 200
SHORT_CONTINUATION = 40  # with the short prompt this stays within index_topk


def tale() -> str:
    """The text that the tiny checkpoint recites. Raises `CaseStudyError` if it is not there."""
    try:
        return TALE.read_text(encoding="ascii")
    except OSError:
        raise CaseStudyError(
            f"{TALE} is missing: the course's data come with the repository, "
            f"so install from a clone (pip install -e .)."
        ) from None


def long_prompt() -> str:
    """A prompt well past `index_topk`: here a broken indexer decides what is seen."""
    start = tale().index(PROMPT_OPENING)
    return tale()[start : start + LONG_PROMPT]


def short_prompt() -> str:
    """A prompt that with its continuation stays within `index_topk`: nothing is left out."""
    return long_prompt()[:SHORT_PROMPT]


def continuation(prompt: str, length: int = LONG_CONTINUATION) -> str:
    """What comes after `prompt` in the tale."""
    start = tale().index(prompt) + len(prompt)
    return tale()[start : start + length]
