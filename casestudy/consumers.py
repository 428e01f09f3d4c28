"""Who keeps: consumers that fill a model's parameters from an iterator of (name, tensor).

vLLM's loader copies every tensor into its parameter as it comes. PR #38928 made one exception:
each layer's `indexer.wk` arrives as two tensors, an FP8 weight and its scale, and whichever comes
first waits in a dict for the other, so that both become one BF16 parameter. Three versions:

* `copies_at_once`: before that PR; nothing waits.
* `keeps_the_pair`: the PR; the waiting half is the tensor as the loader yielded it.
* `clones_the_pair`: the repair in the model that the report offered and upstream did not choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from casestudy.checkpoint import SCALE_SUFFIX, TensorEntry, checkpoint_entries, dequantise
from casestudy.errors import CheckpointError

WK = "indexer.wk.weight"
WK_SCALE = WK + SCALE_SUFFIX
WEIGHTS_PROJ = "indexer.weights_proj.weight"
FUSED = "indexer.wk_weights_proj.weight"

Parameters = dict[str, torch.Tensor]
NamedTensors = Iterable[tuple[str, torch.Tensor]]


class Consumer(Protocol):
    """Reads `weights` to the end and returns the parameters that it filled, on `device`.

    Raises `CheckpointError` if the shards `paths` do not hold what the consumer needs, or if
    `weights` does not yield every tensor of theirs once.
    """

    def __call__(
        self, weights: NamedTensors, paths: list[Path], device: str = "cpu"
    ) -> Parameters: ...


def collect(weights: NamedTensors, paths: Sequence[Path] = (), device: str = "cpu") -> Parameters:
    """`dict(weights)`: keeps every tensor as it was yielded, wherever it lies."""
    return dict(weights)


def copies_at_once(weights: NamedTensors, paths: list[Path], device: str = "cpu") -> Parameters:
    """Copies each tensor into a parameter of its own name, dtype and shape."""
    entries = checkpoint_entries(paths)
    parameters = _allocate(entries, device)
    for name, tensor in _complete(weights, entries):
        parameters[name].copy_(tensor)
    return parameters


def load_weights(
    weights: NamedTensors, paths: list[Path], device: str, *, clone_waiting: bool
) -> Parameters:
    """The incident's loader; `clone_waiting` is the one difference between its two versions."""
    entries = checkpoint_entries(paths)
    parameters = _allocate_fused(entries, device)
    waiting: Parameters = {}
    for name, tensor in _complete(weights, entries):
        if name.endswith((WK, WK_SCALE)):
            partner = _partner(name)
            if partner in waiting:
                _fuse(parameters, {name: tensor, partner: waiting.pop(partner)})
            else:
                waiting[name] = tensor.clone() if clone_waiting else tensor
        elif name.endswith(WEIGHTS_PROJ):
            fused = parameters[name.replace(WEIGHTS_PROJ, FUSED)]
            fused[-tensor.shape[0] :].copy_(tensor)
        else:
            parameters[name].copy_(tensor)
    return parameters


def keeps_the_pair(weights: NamedTensors, paths: list[Path], device: str = "cpu") -> Parameters:
    """Copies at once, but the half of a `wk` pair that comes first waits as it was yielded."""
    return load_weights(weights, paths, device, clone_waiting=False)


def clones_the_pair(weights: NamedTensors, paths: list[Path], device: str = "cpu") -> Parameters:
    """Copies at once, and the half of a `wk` pair that comes first waits as a copy."""
    return load_weights(weights, paths, device, clone_waiting=True)


CONSUMERS: dict[str, Consumer] = {
    "copies_at_once": copies_at_once,
    "keeps_the_pair": keeps_the_pair,
    "clones_the_pair": clones_the_pair,
}


class Difference(NamedTuple):
    """How far a parameter is from the reference's.

    wrong: whether any byte differs.
    relative_error: the norm of the difference over the norm of the reference; 0.0 if no byte
        differs, infinite if the parameter holds an infinity or NaN, if it has another shape, or if
        the reference is all zeros.
    """

    name: str
    wrong: bool
    relative_error: float


def differences(loaded: Parameters, reference: Parameters) -> list[Difference]:
    """Every parameter against the reference's, sorted by name.

    Raises `ValueError` if the two do not hold the same names.
    """
    if loaded.keys() != reference.keys():
        odd = sorted(loaded.keys() ^ reference.keys())
        raise ValueError(f"only one of the two holds {odd[0]}.")
    return [_difference(name, loaded[name], reference[name]) for name in sorted(loaded)]


def wrong_parameters(loaded: Parameters, reference: Parameters) -> list[str]:
    """Sorted names of the parameters whose bytes differ from the reference's; NaN counts as is.

    Raises `ValueError` if the two do not hold the same names.
    """
    return [each.name for each in differences(loaded, reference) if each.wrong]


def _complete(weights: NamedTensors, entries: list[TensorEntry]) -> NamedTensors:
    """The same pairs, and an error unless every tensor of the shards comes once."""
    missing = {entry.name for entry in entries}
    for name, tensor in weights:
        if name not in missing:
            raise CheckpointError(f"{name} was yielded twice, or is in none of the shards.")
        missing.remove(name)
        yield name, tensor
        del tensor  # a lent view must not live on in here
    if missing:
        raise CheckpointError(f"{min(missing)} is in the shards but was never yielded.")


def _partner(name: str) -> str:
    return name.removesuffix(SCALE_SUFFIX) if name.endswith(WK_SCALE) else name + SCALE_SUFFIX


def _fuse(parameters: Parameters, pair: Parameters) -> None:
    """Dequantises a complete pair into the first rows of its layer's fused parameter."""
    name = min(pair, key=len)
    weight = dequantise(pair[name], pair[name + SCALE_SUFFIX])
    parameters[name.replace(WK, FUSED)][: weight.shape[0]].copy_(weight)


def _allocate(entries: list[TensorEntry], device: str) -> Parameters:
    return {
        entry.name: torch.empty(entry.shape, dtype=entry.dtype, device=device) for entry in entries
    }


def _allocate_fused(entries: list[TensorEntry], device: str) -> Parameters:
    """As `_allocate`, each layer's `wk` and `weights_proj` as one BF16 [rows of both, hidden]."""
    parameters = _allocate(entries, device)
    for name in [name for name in parameters if name.endswith(WK)]:
        missing = {name + SCALE_SUFFIX, name.replace(WK, WEIGHTS_PROJ)} - parameters.keys()
        if missing:
            raise CheckpointError(f"the checkpoint holds {name} but not {min(missing)}.")
        wk = parameters.pop(name)
        del parameters[name + SCALE_SUFFIX]
        projection = parameters.pop(name.replace(WK, WEIGHTS_PROJ))
        if projection.ndim != 2 or projection.shape[1] != wk.shape[1]:
            raise CheckpointError(
                f"{name}, {list(wk.shape)}, and {WEIGHTS_PROJ}, {list(projection.shape)}, "
                f"cannot become one matrix: they need the same number of columns."
            )
        rows = wk.shape[0] + projection.shape[0]
        fused = torch.empty(rows, wk.shape[1], dtype=torch.bfloat16, device=device)
        parameters[name.replace(WK, FUSED)] = fused
    return parameters


def _difference(name: str, loaded: torch.Tensor, reference: torch.Tensor) -> Difference:
    if _same_bytes(loaded, reference):
        return Difference(name, False, 0.0)
    if loaded.shape != reference.shape:
        return Difference(name, True, inf)
    wide = torch.complex128 if reference.is_complex() else torch.double
    wrong, right = (tensor.detach().cpu().to(wide) for tensor in (loaded, reference))
    off, size = float((wrong - right).norm()), float(right.norm())
    error = off / size if size else (inf if off else 0.0)
    return Difference(name, True, error if error < inf else inf)


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(
        *(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (a, b))
    )
