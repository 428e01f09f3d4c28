"""Marks that stand for the bytes of memory which may be freed, or another's, by now."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import cache
from typing import Literal

import torch

from casestudy.errors import CaseStudyError

Digest = Literal["sampled", "full"]

WHOLE_NBYTES = 16 * 1024  # up to here every byte is read, whatever the digest
WINDOWS, WINDOW_NBYTES = 16, 64
CHUNK_NBYTES = 1 << 20
NO_MEMORY = (
    "the exact guard reads memory through /proc/self/mem, which cannot be used here: {}; "
    'use mode="keep", which reads none.'
)


# where a tensor's elements lie: device, start and stop and, if there are gaps between them, how to
# leave those out; a plain tuple, since one is made for every yield
Region = tuple[str, int, int, tuple[torch.Size, tuple[int, ...], torch.dtype] | None]


def mark(region: Region, digest: Digest) -> int | None:
    """A number that stands for the bytes of `region` as they are now; None if they are freed.

    "sampled" reads 16 evenly spaced windows of what is longer than 16 KiB, and so notices every
    contiguous change longer than a fifteenth of it; "full" reads every byte. A tensor with gaps
    is read whole. Equal bytes have equal marks within one process.
    """
    device, start, stop, strided = region
    if strided:
        return _mark_of_elements(region)
    if stop - start <= WHOLE_NBYTES:
        seen = read(device, start, stop - start)
        return None if seen is None else hash(seen)
    pieces = _windows(start, stop) if digest == "sampled" else _chunks(start, stop)
    marks = []
    for piece_start, nbytes in pieces:
        seen = read(device, piece_start, nbytes)
        if seen is None:
            return None
        marks.append(hash(seen))
    return hash(tuple(marks))


def read(device: str, start: int, nbytes: int) -> bytes | None:
    """The bytes from an address on; None if there is no memory any more.

    Host memory is read through the kernel, which answers for an address that is not mapped with an
    error where a plain read would end the process.
    """
    if device != "cpu":
        return torch.as_tensor(_DeviceBytes(start, nbytes), device=device).cpu().numpy().tobytes()
    try:
        seen = os.pread(_own_memory(), nbytes, start)
    except OSError as error:
        if error.errno in (errno.EIO, errno.EFAULT):
            return None
        raise CaseStudyError(NO_MEMORY.format(error.strerror)) from None
    return seen if len(seen) == nbytes else None


def check_access() -> None:
    """Makes sure that `read` reads this process, whatever became of open files since it began.

    Raises `CaseStudyError` if it cannot.
    """
    known = os.urandom(16)
    address = id(known) + bytes.__basicsize__ - 1  # where CPython keeps the bytes themselves
    for _ in range(2):
        with suppress(CaseStudyError):
            if read("cpu", address, len(known)) == known:
                return
        _own_memory.cache_clear()
    raise CaseStudyError(NO_MEMORY.format("it does not show what is there"))


class _DeviceBytes:
    """Memory of a CUDA device by its address, for `torch.as_tensor`."""

    def __init__(self, start: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (start, False),
            "strides": None,
            "version": 3,
        }


@cache
def _own_memory() -> int:
    return os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)  # an OSError is told by `read`


# a forked child would go on reading its parent's memory
os.register_at_fork(after_in_child=_own_memory.cache_clear)


def _windows(start: int, stop: int) -> list[tuple[int, int]]:
    """The first window begins at `start`, the last ends at `stop`."""
    stride = (stop - start - WINDOW_NBYTES) / (WINDOWS - 1)
    return [(start + int(number * stride), WINDOW_NBYTES) for number in range(WINDOWS)]


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    return [(chunk, min(CHUNK_NBYTES, stop - chunk)) for chunk in range(start, stop, CHUNK_NBYTES)]


def _mark_of_elements(region: Region) -> int | None:
    device, start, stop, strided = region
    seen = read(device, start, stop - start)
    if seen is None or strided is None:
        return None
    shape, strides, dtype = strided
    elements = torch.frombuffer(bytearray(seen), dtype=torch.uint8).view(dtype)
    packed = elements.as_strided(shape, strides).contiguous().view(-1)
    return hash(packed.view(torch.uint8).numpy().tobytes())
