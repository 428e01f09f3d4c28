"""The same bytes in a storage of our own, so that its end is the end of the last view.

A weak reference to a tensor dies while slices, `.numpy()` or a Parameter still read its bytes, and
loaders that slice one staging storage keep that storage alive for ever. A storage made here lives
as long as any view of it, and a weak reference to it tells when that ends; only then is the
original let go.
"""

from __future__ import annotations

import torch
from torch import nn

from casestudy.aliasing import byte_span
from casestudy.guard.memory import Region


def rewrap(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor over the same elements, with a storage of its own that keeps `tensor` alive.

    Type, attributes and `requires_grad` carry over. None if there are no bytes to look after, or
    none that can be looked at: for empty and sparse tensors, devices other than CPU and CUDA,
    results of autograd, lazily conjugated ones, and subclasses that wrap other tensors.
    """
    if torch.is_inference_mode_enabled():  # torch would not count the writes into the result
        with torch.inference_mode(False):
            return rewrap(tensor)
    kind = type(tensor)
    if not (tensor.is_cpu or tensor.is_cuda) or tensor.is_conj() or tensor.is_neg():
        return None  # DLPack would drop the last two
    try:
        if kind is torch.Tensor and not tensor.requires_grad:
            fresh: torch.Tensor = torch._C._from_dlpack(torch._C._to_dlpack(tensor))
        elif tensor.grad_fn is None and kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__:
            bare = torch._C._to_dlpack(tensor.detach().as_subclass(torch.Tensor))
            fresh = _of_kind(torch._C._from_dlpack(bare), tensor, kind)
        else:
            return None
    except (BufferError, RuntimeError):  # no strided memory, or a packed or quantised dtype
        return None
    if tensor.__dict__:
        fresh.__dict__.update(tensor.__dict__)
    return fresh if tensor.numel() else None


def region(tensor: torch.Tensor) -> Region:
    """Where a strided tensor's elements lie."""
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return device, start, start + tensor.nbytes, None
    return device, start, byte_span(tensor).stop, (tensor.shape, tensor.stride(), tensor.dtype)


def _of_kind(fresh: torch.Tensor, original: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    if issubclass(kind, nn.Parameter):
        fresh = nn.Parameter(fresh, requires_grad=original.requires_grad)
        return fresh if kind is nn.Parameter else fresh.as_subclass(kind)
    return fresh.as_subclass(kind).requires_grad_(original.requires_grad)
