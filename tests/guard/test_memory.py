"""Marks of bytes, and reading memory that may be gone."""

from __future__ import annotations

import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from casestudy.guard.memory import WHOLE_NBYTES, WINDOWS, mark, read
from casestudy.guard.rewrap import region
from tests.guard.lenders import _unmap


@given(st.binary(min_size=1, max_size=300))
def test_what_is_read_is_what_is_there(octets: bytes) -> None:
    tensor = torch.frombuffer(bytearray(octets), dtype=torch.uint8)
    assert read("cpu", tensor.data_ptr(), len(octets)) == octets


def test_unmapped_memory_is_told_and_not_read() -> None:
    mapped = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    tensor = torch.frombuffer(mapped, dtype=torch.uint8)
    where = region(tensor)
    assert mark(where, "full") is not None
    _unmap(tensor.data_ptr() + mmap.PAGESIZE, mmap.PAGESIZE)
    assert read("cpu", tensor.data_ptr(), mmap.PAGESIZE) == bytes(mmap.PAGESIZE)
    assert read("cpu", tensor.data_ptr(), 2 * mmap.PAGESIZE) is None
    assert mark(where, "full") is None
    assert read("cpu", 1, 1) is None


@pytest.mark.parametrize("digest", ["sampled", "full"])
@pytest.mark.parametrize("size", [1, WHOLE_NBYTES, WHOLE_NBYTES + 1, 3_000_000])
def test_a_mark_changes_with_the_first_and_with_the_last_byte(size: int, digest: str) -> None:
    tensor = torch.zeros(size, dtype=torch.uint8)
    marks = {mark(region(tensor), digest)}  # type: ignore[arg-type]
    for place in (0, -1):
        tensor[place] += 1
        marks.add(mark(region(tensor), digest))  # type: ignore[arg-type]
    assert len(marks) == 3
    tensor.zero_()
    assert mark(region(tensor), digest) in marks  # type: ignore[arg-type]


@given(st.data())
def test_a_sample_notices_every_change_longer_than_a_fifteenth(data: st.DataObject) -> None:
    size = data.draw(st.integers(WHOLE_NBYTES + 1, 200_000))
    longer = size // (WINDOWS - 1) + 1
    start = data.draw(st.integers(0, size - longer))
    tensor = torch.zeros(size, dtype=torch.uint8)
    before = mark(region(tensor), "sampled")
    tensor[start : start + longer] = 1
    assert mark(region(tensor), "sampled") != before


def test_the_gaps_of_a_strided_tensor_do_not_count() -> None:
    base = torch.zeros(6, 6)
    inner = base[1:5:2, ::3]
    before = mark(region(inner), "sampled")
    base[0] = 1
    base[1, 1] = 1
    assert mark(region(inner), "sampled") == before
    base[3, 3] = 1
    assert mark(region(inner), "sampled") != before
