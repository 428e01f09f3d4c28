"""What lies in a checkpoint folder: shards, the order of tensors in a file, FP8 blocks.

Reads headers only. `loaders` brings the bytes, `model` gives them meaning.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from casestudy.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SCALE_SUFFIX = "_scale_inv"
HEADER_LENGTH = 8  # bytes in front of a header that tell its length
LONGEST_HEADER = 100_000_000  # bytes; safetensors reads no longer one
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max

DTYPES = {  # in the order in which safetensors writes them; within one, by name
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class TensorEntry(NamedTuple):
    """One tensor of a safetensors file; `start` and `stop` are byte offsets in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def read_layout(path: str | Path) -> list[TensorEntry]:
    """The tensors of one safetensors file in the order in which their bytes lie.

    safetensors sorts by dtype width, then by name: all F32 scales first, FP8 weights last. So in
    a shard with more than one pair the two halves of a pair are far apart.

    Raises `CheckpointError` if the file is missing, cut off or not a safetensors file.
    """
    path = Path(path)
    header, data_start = _read_header(path)
    entries = [
        _entry(path, name, fields, data_start)
        for name, fields in header.items()
        if name != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_coverage(path, entries, data_start)
    return entries


def shard_paths(directory: str | Path) -> list[Path]:
    """The shards of a checkpoint folder, sorted by name.

    Raises `CheckpointError` if the folder is missing or empty, or if its index is malformed or
    promises a shard, or a tensor in a shard, that is not there.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a folder; give a checkpoint folder.")
    index = directory / INDEX_NAME
    if index.exists():
        return _indexed_shards(index)
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{directory} holds no .safetensors file; give a checkpoint folder.")
    return paths


def checkpoint_entries(paths: Sequence[str | Path]) -> list[TensorEntry]:
    """The tensors of several shards, shard after shard, each in file order.

    Raises `CheckpointError` if two shards hold a tensor of the same name, or if a scale does not
    fit its weight.
    """
    entries: dict[str, TensorEntry] = {}
    for path in paths:
        for entry in read_layout(path):
            if entry.name in entries:
                raise CheckpointError(f"{path} holds {entry.name}, which another shard holds too.")
            entries[entry.name] = entry
    for name, scale in entries.items():
        if name.endswith(SCALE_SUFFIX):
            _check_pair(entries.get(name.removesuffix(SCALE_SUFFIX)), scale)
    return list(entries.values())


def quantise(weight: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a matrix to FP8 (e4m3) with one inverse scale per `block` x `block` tile.

    `weight`: floating, [rows, columns]; columns must be a multiple of `block`.
    Returns `(weight float8_e4m3fn [rows, columns], scale_inv float32 [tiles, tiles])`,
    so that `weight * scale_inv` is near the original.
    Raises `ValueError` if `weight` is no matrix or its columns do not divide.
    """
    if weight.ndim != 2 or block < 1 or weight.shape[1] % block:
        raise ValueError(f"{list(weight.shape)} has no columns in blocks of {block}.")
    rows, columns = weight.shape
    row_tiles = -(-rows // block)
    padded = weight.new_zeros(row_tiles * block, columns, dtype=torch.float32)
    padded[:rows] = weight
    tiles = padded.view(row_tiles, block, columns // block, block)
    scale_inv = tiles.abs().amax(dim=(1, 3)).clamp_min(1e-12) / FP8_MAX
    quantised = (padded[:rows] / _spread(scale_inv, block, rows)).clamp(-FP8_MAX, FP8_MAX)
    return quantised.to(torch.float8_e4m3fn), scale_inv


def dequantise(weight: torch.Tensor, scale_inv: torch.Tensor) -> torch.Tensor:
    """FP8 times inverse scale, as bfloat16 [rows, columns].

    The block size is weight columns / scale columns, as in vLLM's loader (PR #38928).
    Raises `ValueError` if the scale has not one value for every square block.
    """
    if not _blocks_fit(weight.shape, scale_inv.shape):
        raise ValueError(
            f"a scale of {list(scale_inv.shape)} does not fit a weight of {list(weight.shape)}."
        )
    rows, columns = weight.shape
    block = columns // scale_inv.shape[1]
    return (weight.float() * _spread(scale_inv, block, rows)).to(torch.bfloat16)


def _spread(scale_inv: torch.Tensor, block: int, rows: int) -> torch.Tensor:
    return scale_inv.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a file; give a .safetensors file.")
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(HEADER_LENGTH))
            if length > LONGEST_HEADER:
                raise _not_safetensors(path, "it does not begin with the length of a header")
            if length > path.stat().st_size - HEADER_LENGTH:
                raise CheckpointError(f"{path} is cut off inside its header; fetch it again.")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; check the path.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except (struct.error, ValueError):
        raise _not_safetensors(path, "its header cannot be read") from None
    if not isinstance(header, dict):
        raise _not_safetensors(path, "its header is not a table")
    return header, HEADER_LENGTH + length


def _entry(path: Path, name: str, fields: dict[str, Any], data_start: int) -> TensorEntry:
    if isinstance(fields, dict) and fields.get("dtype", "F32") not in DTYPES:
        raise CheckpointError(
            f"{path} holds {name!r} in the dtype {fields['dtype']}, which is not known here."
        )
    try:
        (start, stop), shape = fields["data_offsets"], tuple(fields["shape"])
        dtype = DTYPES[fields["dtype"]]
        right_length = stop - start == math.prod(shape) * dtype.itemsize
    except (KeyError, TypeError, ValueError):
        raise _not_safetensors(path, f"the entry of {name!r} is malformed: {fields}") from None
    if not right_length:
        raise _not_safetensors(path, f"{name!r} has other bytes than its shape and dtype need")
    return TensorEntry(name, dtype, shape, data_start + start, data_start + stop)


def _not_safetensors(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a safetensors file: {reason}; fetch it again.")


def _check_coverage(path: Path, entries: list[TensorEntry], data_start: int) -> None:
    """The tensors lie one after the other, from the header to the end of the file."""
    expected, actual = data_start, path.stat().st_size
    for entry in entries:
        if entry.start != expected:
            raise _not_safetensors(path, f"there is a gap or an overlap before {entry.name!r}")
        expected = entry.stop
    if actual < expected:
        raise CheckpointError(
            f"{path} is cut off: {actual} bytes, its header promises {expected}; fetch it again."
        )
    if actual > expected:
        raise _not_safetensors(path, f"{actual - expected} bytes at its end belong to no tensor")


def _check_pair(weight: TensorEntry | None, scale: TensorEntry) -> None:
    """A scale has a float32 for every square block of its weight."""
    if weight is None:
        raise CheckpointError(f"the checkpoint holds {scale.name} but not its weight.")
    if scale.dtype != torch.float32 or not _blocks_fit(weight.shape, scale.shape):
        raise CheckpointError(
            f"{scale.name}, {scale.dtype} {list(scale.shape)}, does not fit its weight, "
            f"{list(weight.shape)}: it needs a float32 for every square block."
        )


def _blocks_fit(weight: Sequence[int], scale: Sequence[int]) -> bool:
    if len(weight) != 2 or len(scale) != 2 or not scale[1] or weight[1] % scale[1]:
        return False
    block = weight[1] // scale[1]
    return block > 0 and scale[0] == -(-weight[0] // block)


def _indexed_shards(index: Path) -> list[Path]:
    promised: dict[str, set[str]] = {}
    for tensor, file in _weight_map(index).items():
        promised.setdefault(file, set()).add(tensor)
    for file, tensors in promised.items():
        path = index.parent / file
        if Path(file).name != file or not path.is_file():
            raise CheckpointError(
                f"{index} names {file}, which is not in {index.parent}; restore the shard."
            )
        missing = tensors - {entry.name for entry in read_layout(path)}
        if missing:
            raise CheckpointError(f"{index} says that {min(missing)} is in {file}; it is not.")
    return [index.parent / file for file in sorted(promised)]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text())["weight_map"]
    except OSError as error:
        raise CheckpointError(f"{index} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        found = None
    if not found or not isinstance(found, dict) or not _all_strings(found.values()):
        raise CheckpointError(f"{index} is not a safetensors index; it needs a weight_map.")
    return found


def _all_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)
