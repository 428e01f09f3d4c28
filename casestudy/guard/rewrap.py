"""The same bytes in a storage of our own, so that its end is the end of the last view.

A weak reference to a tensor dies while slices, `.numpy()` or a Parameter still read its bytes, and
loaders that slice one staging storage keep that storage alive for ever. A storage made here is
alive for as long as any view of it, and its anchor, which can be referred to weakly, dies with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from casestudy.aliasing import ByteSpan
from casestudy.guard.memory import Region

CARRIERS = {
    dtype: carrier
    for carrier, dtypes in {
        torch.uint8: (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
        torch.int16: (torch.bfloat16,),
    }.items()
    for dtype in dtypes
}  # of the same width, for dtypes that NumPy does not know


class Rewrapped(NamedTuple):
    """A tensor over the same elements, and the object that lives as long as its storage."""

    tensor: torch.Tensor
    anchor: Any
    region: Region


def rewrap(tensor: torch.Tensor) -> Rewrapped | None:
    """None if there are no bytes to look after, or none that can be looked at.

    The original is kept alive by the new storage. Type, attributes and `requires_grad` carry over.
    Left alone are empty and sparse tensors, those of devices other than CPU and CUDA, lazily
    conjugated ones, results of autograd, and subclasses that wrap other tensors.
    """
    if not _can_be_rewrapped(tensor):
        return None
    bare = tensor.detach() if tensor.requires_grad else tensor
    carrier = CARRIERS.get(tensor.dtype)
    known = bare if carrier is None else bare.view(carrier)
    try:
        anchor: Any = known.numpy() if bare.is_cpu else _OnDevice(known)
    except TypeError:  # packed dtypes and such
        return None
    fresh = torch.from_numpy(anchor) if bare.is_cpu else torch.as_tensor(anchor, device=bare.device)
    if carrier is not None:
        fresh = fresh.view(bare.dtype)
    return Rewrapped(_dressed(fresh, tensor), anchor, _region(bare))


class _OnDevice:
    """A CUDA tensor for `torch.as_tensor`, which keeps this object as long as its storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def _can_be_rewrapped(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor or _has_storage_of_its_own(type(tensor))
    return (
        plain
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.grad_fn is None
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


def _has_storage_of_its_own(kind: type[torch.Tensor]) -> bool:
    return bool(kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__)


def _dressed(fresh: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    kind = type(original)
    if issubclass(kind, nn.Parameter):
        fresh = nn.Parameter(fresh, requires_grad=original.requires_grad)
    elif original.requires_grad:
        fresh.requires_grad_()
    if kind is not torch.Tensor and kind is not nn.Parameter:
        fresh = fresh.as_subclass(kind)
    if original.__dict__:
        fresh.__dict__.update(original.__dict__)
    return fresh


def _region(tensor: torch.Tensor) -> Region:
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return Region(ByteSpan(device, start, start + tensor.nbytes), None)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    stop = start + (last + 1) * tensor.element_size()
    return Region(ByteSpan(device, start, stop), (tensor.shape, tensor.stride(), tensor.dtype))
