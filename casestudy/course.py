"""Where the course's own files lie, and the prompts that it uses."""

from __future__ import annotations

import json
from pathlib import Path

from casestudy.errors import CaseStudyError

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
NOTEBOOKS = ROOT / "notebooks"
PICTURES = [  # of the README and the project's page; `tools/refresh_pictures.py` draws them
    ROOT / "docs" / "pictures" / f"{name}.svg"
    for name in ("the-cliff", "the-buffer", "the-bytes", "the-strip")
]
CHECKPOINT = DATA / "tiny-glm-dsa"
TALE = DATA / "tale.txt"
GPU_RECORD = DATA / "recorded" / "gpu.json"
RELEASES_RECORD = DATA / "recorded" / "releases.json"

PROMPT_OPENING = "What he did not know"  # the tale's turn: how a kept page is overwritten
LONG_PROMPT = 238  # characters; the checkpoint's index_topk is 64
SHORT_PROMPT = 24
LONG_CONTINUATION = 200
SHORT_CONTINUATION = 40  # with the short prompt this stays within index_topk


def tale() -> str:
    """The text that the tiny checkpoint recites. Raises `CaseStudyError` if it is not there."""
    try:
        text = TALE.read_text(encoding="ascii")
    except OSError:
        raise CaseStudyError(
            f"{TALE} is missing: the course's data come with the repository, "
            f"so install from a clone (pip install -e .)."
        ) from None
    except UnicodeDecodeError:
        text = ""
    if len(text.partition(PROMPT_OPENING)[2]) < LONG_PROMPT + LONG_CONTINUATION:
        raise CaseStudyError(f"{TALE} is not the tale that the model knows: git checkout -- data")
    return text


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


def index_topk() -> int:
    """How many positions an indexer of the tiny checkpoint selects."""
    return int(json.loads((CHECKPOINT / "config.json").read_text())["index_topk"])


def write_lesson_file(folder: str | Path) -> Path:
    """Writes `six-tensors.safetensors`, a file made for looking at, and returns its path.

    Six tensors of three dtypes and six sizes whose values cannot be right by chance. The largest
    has 768 bytes; any two of them together have more, so with the smallest buffer each travels
    alone.
    """
    import torch
    from safetensors.torch import save_file

    shapes = {
        "embed": (torch.float32, (24, 8)),
        "scale": (torch.float32, (20, 8)),
        "bias": (torch.bfloat16, (288,)),
        "norm": (torch.bfloat16, (352,)),
        "head": (torch.float8_e4m3fn, (17, 32)),
        "weight": (torch.float8_e4m3fn, (23, 32)),
    }
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, (dtype, shape) in shapes.items()
    }
    path = Path(folder) / "six-tensors.safetensors"
    save_file(tensors, path)
    return path
