"""Spans and overlaps against NumPy's own answer, and labels that do not depend on the run."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from casestudy.aliasing import ByteSpan, Overlap, byte_span, label, overlaps, places

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_span_has_the_bytes_of_the_tensor(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 5).to(dtype)
    span = byte_span(tensor)
    assert (span.device, span.start) == ("cpu", tensor.data_ptr())
    assert span.nbytes == tensor.nbytes


def test_a_span_of_a_packed_dtype_counts_stored_bytes() -> None:
    packed = torch.zeros(6, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert byte_span(packed).nbytes == 6


def test_a_strided_tensor_spans_its_gaps() -> None:
    base = torch.zeros(4, 10)
    assert byte_span(base[:, ::3]).nbytes == (3 * 10 + 9 + 1) * 4
    assert byte_span(base.T[2:]) == byte_span(base.T[2:].T)
    assert byte_span(base[1:, 2:]).start == base.data_ptr() + 12 * 4


def test_an_expanded_tensor_spans_what_it_repeats() -> None:
    assert byte_span(torch.zeros(1).expand(100)).nbytes == 4


def test_an_empty_tensor_spans_nothing() -> None:
    base = torch.zeros(4, 10)
    assert byte_span(base[:0]).nbytes == 0
    assert overlaps({"empty": base[:0], "base": base}) == []


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"]
)
def test_a_tensor_without_addresses_has_no_span(tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="has no byte span"):
        byte_span(tensor)


def test_tensors_with_other_pointers_and_other_storages_can_share_bytes() -> None:
    memory = np.zeros(100, dtype=np.uint8)
    first, second = torch.from_numpy(memory[:60]), torch.from_numpy(memory[40:])
    assert first.data_ptr() != second.data_ptr()
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert overlaps({"first": first, "second": second}) == [Overlap("first", "second", 20)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_overlaps_are_those_numpy_sees(pieces: list[tuple[int, int]]) -> None:
    memory = np.zeros(80, dtype=np.uint8)
    arrays = {f"{i}": memory[start : start + size] for i, (start, size) in enumerate(pieces)}
    found = overlaps((name, torch.from_numpy(array)) for name, array in arrays.items())
    shared = {
        frozenset(pair)
        for pair in combinations(arrays, 2)
        if np.shares_memory(arrays[pair[0]], arrays[pair[1]])
    }
    assert {frozenset(each[:2]) for each in found} == shared
    assert len(found) == len(shared)
    for each in found:
        covered = [set(range(s, s + n)) for s, n in (pieces[int(i)] for i in each[:2])]
        assert each.n_bytes == len(covered[0] & covered[1])


def test_the_overlap_of_two_spans_is_what_lies_in_both() -> None:
    span = ByteSpan("cpu", 10, 20)
    others = {(0, 10): 0, (5, 12): 2, (12, 15): 3, (5, 30): 10, (19, 25): 1, (20, 30): 0}
    for (start, stop), shared in others.items():
        other = ByteSpan("cpu", start, stop)
        assert span.overlap(other) == other.overlap(span) == shared
        assert span.overlap(other._replace(device="cuda:0")) == 0


def test_spans_on_other_devices_do_not_overlap() -> None:
    assert [
        place.letter for place in places([ByteSpan("cpu", 0, 8), ByteSpan("cuda:0", 0, 8)])
    ] == ["A", "B"]


@given(st.integers(0, 1 << 40))
def test_labels_do_not_depend_on_addresses(base: int) -> None:
    offsets = [(4096, 4196), (0, 100), (100, 164), (64, 128), (4096, 4096)]
    spans = [ByteSpan("cpu", base + start, base + stop) for start, stop in offsets]
    assert label(spans) == ["A+0x0", "B+0x0", "B+0x64", "B+0x40", "A+0x0"]


def test_regions_after_z_have_two_letters() -> None:
    names = label([ByteSpan("cpu", i * 100, i * 100 + 1) for i in range(28)])
    assert names[25:] == ["Z+0x0", "AA+0x0", "AB+0x0"]
