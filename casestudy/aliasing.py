"""Which bytes a tensor covers, and where two tensors cover the same ones.

Each tensor the streamer yields has a storage object of its own, so comparing storages, storage
pointers or `data_ptr` for equality does not show that bytes overlap; address intervals do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import torch


class ByteSpan(NamedTuple):
    """The bytes [start, stop) on a device; `start` and `stop` are addresses."""

    device: str
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    def overlap(self, other: ByteSpan) -> int:
        """How many bytes lie in both spans; none if they are on different devices."""
        if self.device != other.device:
            return 0
        return max(0, min(self.stop, other.stop) - max(self.start, other.start))


class Overlap(NamedTuple):
    """Two tensors by name, and how many bytes lie in the spans of both."""

    first: str
    second: str
    n_bytes: int


def byte_span(tensor: torch.Tensor) -> ByteSpan:
    """The smallest [start, stop) that holds every element of a strided `tensor`.

    Any dtype, FP8 and packed ones included; an empty tensor has `start == stop`. For a tensor
    with gaps (`t[::2]`, `t.T` of a slice) the gaps are inside the span.

    Raises `ValueError` for tensors without addresses: sparse ones and the meta device.
    """
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_nested:
        raise ValueError(f"a {tensor.layout} tensor on {tensor.device} has no byte span.")
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return ByteSpan(str(tensor.device), start, start)
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    stop = start + (last + 1) * tensor.element_size()
    return ByteSpan(str(tensor.device), start, stop)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """All bytes of its elements, in order."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def overlaps(
    named_tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
) -> list[Overlap]:
    """Every pair of tensors whose spans share bytes, in order of address.

    Takes n log n for the sort, plus the number of pairs found. It looks at addresses at this
    moment: it shows and explains, but it does not tell whether bytes were overwritten in between.
    """
    pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
    spans = sorted(((byte_span(tensor), name) for name, tensor in pairs), key=itemgetter(0))
    found: list[Overlap] = []
    open_spans: list[tuple[ByteSpan, str]] = []
    for span, name in spans:
        if span.nbytes == 0:
            continue
        # sorted by start: what this span does not reach, no later one will
        open_spans = [
            (other, other_name) for other, other_name in open_spans if other.overlap(span)
        ]
        found += [
            Overlap(other_name, name, other.overlap(span)) for other, other_name in open_spans
        ]
        open_spans.append((span, name))
    return found


def first_overwriters(written: Sequence[tuple[ByteSpan, object]]) -> list[int | None]:
    """For each span the index of the first later one that shares bytes with it.

    written: spans in the order in which they were filled, each with something that stands for its
        content. The same span with the same content, as tied weights have, overwrites nothing.

    A sweep over who still owns all of its own bytes: whoever is overwritten once owns nothing any
    more, so those who do never overlap.
    """
    found: list[int | None] = [None] * len(written)
    owners: list[tuple[str, int, int, list[int]]] = []  # device, start, stop, indices; sorted
    for index, ((device, start, stop), content) in enumerate(written):
        if start == stop:
            continue
        low = bisect_left(owners, (device, start))
        if low and owners[low - 1][0] == device and owners[low - 1][2] > start:
            low -= 1
        high = bisect_left(owners, (device, stop), low)
        taken = [victim for *_, victims in owners[low:high] for victim in victims]
        again = [each for each in taken if written[each] == ((device, start, stop), content)]
        for victim in taken:
            if victim not in again:
                found[victim] = index
        owners[low:high] = [(device, start, stop, [*again, index])]
    return found


class Place(NamedTuple):
    """Where a span lies: its region's letter, the region's size, and the offset in it, in bytes."""

    letter: str
    region_nbytes: int
    offset: int

    def __str__(self) -> str:
        return f"{self.letter}+{self.offset:#x}"


def places(spans: Iterable[ByteSpan]) -> list[Place]:
    """A stable place for each span, in the order given.

    Spans that touch or overlap form a region, and regions are lettered by first appearance; so
    places, unlike addresses, are the same on every run.
    """
    spans = list(spans)
    regions = _regions(spans)
    starts = [(region.device, region.start) for region in regions]
    letters: dict[int, str] = {}
    found = []
    for span in spans:
        number = bisect_right(starts, (span.device, span.start)) - 1
        region = regions[number]
        letter = letters.setdefault(number, _letters(len(letters)))
        found.append(Place(letter, region.nbytes, span.start - region.start))
    return found


def label(spans: Iterable[ByteSpan]) -> list[str]:
    """A stable name for the start of each span, such as `A+0x40`; see `places`."""
    return [str(place) for place in places(spans)]


def end_to_end(found: Sequence[Place]) -> list[int]:
    """Where each place lies, in bytes, when its regions are put next to each other."""
    sizes = {place.letter: place.region_nbytes for place in found}
    bases, base = {}, 0
    for letter, size in sizes.items():
        bases[letter] = base
        base += size
    return [bases[place.letter] + place.offset for place in found]


def _regions(spans: list[ByteSpan]) -> list[ByteSpan]:
    """The spans merged where they touch or overlap, sorted."""
    regions: list[ByteSpan] = []
    for span in sorted(spans):
        last = regions[-1] if regions else None
        if last and last.device == span.device and span.start <= last.stop:
            regions[-1] = last._replace(stop=max(last.stop, span.stop))
        else:
            regions.append(span)
    return regions


def _letters(number: int) -> str:
    """0 → A, 25 → Z, 26 → AA, as spreadsheets count."""
    name = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name
