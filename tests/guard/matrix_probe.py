"""Run under one streamer release by `test_matrix`: seven consumers on nine lenders, as JSON."""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from casestudy.guard import check_iterator
from casestudy.idioms import IDIOMS, answer, write_matrices
from casestudy.loaders import borrowed, cloned, plain
from tests.guard import lenders
from tests.guard.lenders import Pairs
from tests.releases_probe import unfixed

CONSUMERS = {
    "drop": "use at once",
    "keep all": "keep the tensor",
    "view": "keep another dtype",
    "numpy": "keep `.numpy()`",
    "pair": "hold the previous one",
    "window": "a window",
    "thread pool": "a thread pool",
}
LARGE = 256 << 20


def matrix(path: Path) -> dict[str, Callable[[], Pairs]]:
    named = dict(plain(path))
    flat = {name: tensor.flatten() for name, tensor in named.items()}
    return {
        "borrowed, limit 0": partial(borrowed, path, memory_limit=0),
        "borrowed, limit 256 MiB": partial(borrowed, path, memory_limit=LARGE),
        "the library's default, limit 0": partial(unfixed, path, memory_limit=0),
        "cloned": partial(cloned, path, memory_limit=0),
        "safetensors": partial(plain, path),
        "tied": partial(lenders.tied, named),
        "staging": lambda: reshaped(lenders.staging(flat, batch=3), named),
        "the same tensor": partial(lenders.same_tensor, named),
    }


def reshaped(pairs: Pairs, named: dict[str, torch.Tensor]) -> Pairs:
    for name, tensor in pairs:
        yield name, tensor.view(named[name].shape)
        del tensor


def main() -> None:
    idioms = {idiom.name: idiom for idiom in IDIOMS}
    with tempfile.TemporaryDirectory() as folder:
        path = write_matrices(folder)
        reference = {name: tensor.clone() for name, tensor in plain(path)}
        reference |= {f"{name}.tied": tensor for name, tensor in reference.items()}
        found = {
            f"{consumer}, {lender}": (each.wrong, sorted(stale.victim for stale in each.stale))
            for lender, weights in matrix(path).items()
            for consumer, idiom in CONSUMERS.items()
            for each in [answer(idioms[idiom], weights(), reference)]
        }
        verdicts = {
            lender: check_iterator(weights).verdict for lender, weights in matrix(path).items()
        }
    json.dump({"cells": found, "verdicts": verdicts}, sys.stdout)


if __name__ == "__main__":
    main()
