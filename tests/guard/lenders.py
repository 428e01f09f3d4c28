"""Iterators that lend or own in the ways that libraries do."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import torch

Pairs = Iterator[tuple[str, torch.Tensor]]


def tensors(count: int = 4, size: int = 64) -> dict[str, torch.Tensor]:
    """Float tensors with a value of their own each."""
    return {f"t{number}": torch.full((size,), number + 1.0) for number in range(count)}


def owned(named: dict[str, torch.Tensor]) -> Pairs:
    """A fresh tensor for every name: the allocator hands freed memory out again."""
    for name in named:
        yield name, named[name].clone()


def same_tensor(named: dict[str, torch.Tensor]) -> Pairs:
    """One tensor object, filled anew and yielded again and again."""
    buffer = torch.empty_like(next(iter(named.values())))
    for name, tensor in named.items():
        buffer.copy_(tensor)
        yield name, buffer


def staging(named: dict[str, torch.Tensor], batch: int = 2) -> Pairs:
    """One storage sliced for every yield and refilled a batch at a time, as in distributed staging.

    The first batch that is read overwrites all of the one before, ahead of its own yields.
    """
    size = next(iter(named.values())).numel()
    buffer = torch.empty(batch * size)
    items = list(named.items())
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        for place, (_, tensor) in enumerate(part):
            buffer[place * size : (place + 1) * size] = tensor
        for place, (name, _) in enumerate(part):
            yield name, buffer[place * size : (place + 1) * size]


def tied(named: dict[str, torch.Tensor]) -> Pairs:
    """Every tensor twice, under two names, on the same bytes; nobody overwrites anything."""
    for name, tensor in named.items():
        yield name, tensor
        yield f"{name}.tied", tensor


def freed_at_the_end(named: dict[str, torch.Tensor]) -> Pairs:
    """Tensors in mapped memory that is unmapped when the iterator ends, whoever looks."""
    size = next(iter(named.values())).nbytes
    mapped = mmap.mmap(-1, size * len(named))
    start = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
    for place, (name, tensor) in enumerate(named.items()):
        yield name, _at(start + place * size, tensor)
    _unmap(start, size * len(named))
    mapped.madvise  # noqa: B018, the object must outlive the mapping, or it would unmap again


def _at(address: int, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` at an address that torch does not own."""
    from ctypes import c_char

    memory = (c_char * tensor.nbytes).from_address(address)
    placed = torch.frombuffer(memory, dtype=tensor.dtype)
    placed.copy_(tensor)
    return placed


def _unmap(address: int, nbytes: int) -> None:
    from ctypes import CDLL, c_size_t, c_void_p

    libc = CDLL(None, use_errno=True)
    assert libc.munmap(c_void_p(address), c_size_t(nbytes)) == 0
