"""The same bytes in a storage of our own, so that its end is the end of the last view.

A weak reference to a tensor dies while slices, `.numpy()` or a Parameter still read its bytes, and
loaders that slice one staging storage keep that storage alive for ever. A storage made here lives
as long as any view of it, and a weak reference to it tells when that ends; only then is the
original let go.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from casestudy.aliasing import ByteSpan, byte_span
from casestudy.guard.memory import Region


def rewrap(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor over the same elements, with a storage of its own that keeps `tensor` alive.

    Type, attributes and `requires_grad` carry over. None if there are no bytes to look after, or
    none that can be looked at: for empty and sparse tensors, devices other than CPU and CUDA,
    results of autograd, lazily conjugated ones, and subclasses that wrap other tensors.
    """
    if not _can_be_rewrapped(tensor):
        return None
    bare = tensor.detach() if tensor.requires_grad else tensor
    try:
        return _dressed(from_dlpack(to_dlpack(bare)), tensor)
    except (BufferError, RuntimeError):  # packed and quantised dtypes
        return None


def region(tensor: torch.Tensor) -> Region:
    """Where a strided tensor's elements lie."""
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return Region(ByteSpan(device, start, start + tensor.nbytes), None)
    return Region(byte_span(tensor), (tensor.shape, tensor.stride(), tensor.dtype))


def _can_be_rewrapped(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return (
        (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and tensor.grad_fn is None
        and not (tensor.is_conj() or tensor.is_neg())  # DLPack would drop that bit
        and (kind is torch.Tensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__)
    )


def _dressed(fresh: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    kind = type(original)
    if original.requires_grad and kind is torch.Tensor:
        fresh.requires_grad_()
    elif kind is not torch.Tensor:
        fresh = _of_kind(fresh, original, kind)
    if original.__dict__:
        fresh.__dict__.update(original.__dict__)
    return fresh


def _of_kind(fresh: torch.Tensor, original: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    if issubclass(kind, nn.Parameter):
        parameter = nn.Parameter(fresh, requires_grad=original.requires_grad)
        return parameter if kind is nn.Parameter else parameter.as_subclass(kind)
    return fresh.as_subclass(kind).requires_grad_(original.requires_grad)
