"""What a loader must keep to so that its tensors may be kept: the small test and the strong one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from casestudy.aliasing import overlaps
from casestudy.consumers import wrong_parameters
from casestudy.loaders import Loader, plain


def small_test(loader: Loader, folder: Path) -> None:
    """The regression test of vLLM PR #43464 in our words: two tensors of two elements, limit 0.

    The pointers are compared only because the sizes are equal; unequal ones can overlap with
    different pointers.
    """
    right = {"first": torch.tensor([1.0, 2.0]), "second": torch.tensor([3.0, 4.0])}
    path = folder / "two.safetensors"
    save_file(right, path)
    kept = dict(loader(path, memory_limit=0))
    assert kept["first"].data_ptr() != kept["second"].data_ptr(), "equal pointers"
    assert all(torch.equal(kept[name], right[name]) for name in right), "unequal values"


def strong_test(loader: Loader, path: Path, memory_limit: int = 0) -> None:
    """Every tensor of `path`, kept to the end, has its own bytes and shares them with none."""
    kept = dict(loader(path, memory_limit=memory_limit))
    assert wrong_parameters(kept, dict(plain(path))) == [], "unequal values"
    assert overlaps(kept) == [], "overlapping bytes"
