"""Layouts as safetensors writes them, damaged files told apart, FP8 blocks there and back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from casestudy import course
from casestudy.checkpoint import (
    FP8_MAX,
    INDEX_NAME,
    TensorEntry,
    checkpoint_entries,
    dequantise,
    quantise,
    read_layout,
    shard_paths,
)
from casestudy.errors import CheckpointError
from casestudy.loaders import plain


def test_a_layout_is_in_file_order_widest_dtype_first(lesson_file: Path) -> None:
    entries = read_layout(lesson_file)
    assert [e.name for e in entries] == ["embed", "scale", "bias", "norm", "head", "weight"]
    assert [e.dtype.itemsize for e in entries] == [4, 4, 2, 2, 1, 1]
    content = lesson_file.read_bytes()
    for entry, (name, tensor) in zip(entries, sorted_like(entries, lesson_file), strict=True):
        assert entry.name == name
        assert entry.shape == tuple(tensor.shape)
        assert content[entry.start : entry.stop] == tensor.view(torch.uint8).numpy().tobytes()


def test_the_halves_of_a_pair_are_never_neighbours() -> None:
    for path in shard_paths(course.CHECKPOINT):
        names = [entry.name for entry in read_layout(path)]
        for name in names:
            if name.endswith("indexer.wk.weight"):
                assert names.index(name) - names.index(name + "_scale_inv") > 10


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"^no\.safetensors does not exist; check the path"):
        read_layout("no.safetensors")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a file; give a \.safetensors file"):
        read_layout(tmp_path)


def test_a_file_cut_in_its_data_says_how_much_is_there(lesson_file: Path) -> None:
    content = lesson_file.read_bytes()
    lesson_file.write_bytes(content[:-100])
    expected = (
        f"{lesson_file} is cut off: {len(content) - 100} bytes, "
        f"its header promises {len(content)}; fetch it again."
    )
    with pytest.raises(CheckpointError) as caught:
        read_layout(lesson_file)
    assert str(caught.value) == expected


def test_a_file_cut_in_its_header_says_so(lesson_file: Path) -> None:
    lesson_file.write_bytes(lesson_file.read_bytes()[:40])
    with pytest.raises(CheckpointError, match="is cut off inside its header; fetch it again"):
        read_layout(lesson_file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        (9).to_bytes(8, "little") + b"not json!",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (9).to_bytes(8, "little") + b'{"a": {}}',
        (14).to_bytes(8, "little") + b'{"a": [1,2,3]}',
    ],
)
def test_a_malformed_file_is_not_a_safetensors_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"odd\.safetensors is not a safetensors file: "):
        read_layout(path)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (
            b'{"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,1]}}',
            "holds 'a' in the dtype Q7, which is not known here",
        ),
        (
            b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,1]}}',
            "'a' has other bytes than its shape and dtype need",
        ),
        (
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
            "there is a gap or an overlap before 'a'",
        ),
        (
            b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            "1 bytes at its end belong to no tensor",
        ),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, header: bytes, reason: str) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    with pytest.raises(CheckpointError, match=reason):
        read_layout(path)


def test_shards_come_in_the_order_of_their_names() -> None:
    names = [path.name for path in shard_paths(course.CHECKPOINT)]
    assert len(names) >= 3
    assert names == sorted(names)


def test_a_folder_without_index_gives_its_files(lesson_file: Path) -> None:
    assert shard_paths(lesson_file.parent) == [lesson_file]


def test_an_empty_folder_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        shard_paths(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder; give a checkpoint folder"):
        shard_paths(tmp_path / "nowhere")


def test_a_shard_that_the_index_names_must_be_there(lesson_file: Path) -> None:
    index = lesson_file.parent / INDEX_NAME
    index.write_text(
        json.dumps({"weight_map": {"embed": lesson_file.name, "b": "gone.safetensors"}})
    )
    with pytest.raises(CheckpointError, match=r"names gone\.safetensors, which is not in"):
        shard_paths(lesson_file.parent)


def test_a_shard_outside_the_folder_is_not_taken(lesson_file: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    outside = f"../{lesson_file.name}"
    (inner / INDEX_NAME).write_text(json.dumps({"weight_map": {"embed": outside}}))
    with pytest.raises(CheckpointError, match=r"names \.\./six-tensors\.safetensors, which is not"):
        shard_paths(inner)


def test_a_shard_must_hold_what_the_index_says(lesson_file: Path) -> None:
    index = lesson_file.parent / INDEX_NAME
    index.write_text(json.dumps({"weight_map": {"ghost": lesson_file.name}}))
    with pytest.raises(CheckpointError, match=r"says that ghost is in six-.*; it is not"):
        shard_paths(lesson_file.parent)


def test_an_index_that_is_a_folder_is_named(lesson_file: Path) -> None:
    (lesson_file.parent / INDEX_NAME).mkdir()
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        shard_paths(lesson_file.parent)


BAD_INDEXES = [
    "",
    "{}",
    "[]",
    "not json",
    "\udcff",
    '{"weight_map": 3}',
    '{"weight_map": {}}',
    '{"weight_map": ["a"]}',
    '{"weight_map": {"a": 1}}',
    '{"weight_map": {"a": null}}',
]


@pytest.mark.parametrize("content", BAD_INDEXES)
def test_an_index_without_a_weight_map_is_refused(lesson_file: Path, content: str) -> None:
    (lesson_file.parent / INDEX_NAME).write_text(content, errors="surrogateescape")
    with pytest.raises(CheckpointError, match="is not a safetensors index; it needs a weight_map"):
        shard_paths(lesson_file.parent)


@given(
    rows=st.integers(1, 70),
    tiles=st.integers(1, 3),
    block=st.sampled_from([8, 32]),
    seed=st.integers(0, 99),
)
def test_quantisation_is_as_near_as_fp8_allows(
    rows: int, tiles: int, block: int, seed: int
) -> None:
    weight = torch.randn(rows, tiles * block, generator=torch.Generator().manual_seed(seed))
    quantised, scale_inv = quantise(weight, block)
    assert (quantised.dtype, scale_inv.dtype) == (torch.float8_e4m3fn, torch.float32)
    assert scale_inv.shape == (-(-rows // block), tiles)
    back = dequantise(quantised, scale_inv)
    assert (back.dtype, back.shape) == (torch.bfloat16, weight.shape)
    largest = scale_inv.max() * FP8_MAX
    assert (back - weight).abs().max() <= largest * 0.04  # half a step of a 3-bit mantissa, BF16


def test_each_block_has_its_own_scale() -> None:
    weight = torch.ones(4, 4)
    weight[:2, 2:], weight[2:, :2] = 8.0, 64.0
    _, scale_inv = quantise(weight, 2)
    assert torch.equal(scale_inv * FP8_MAX, torch.tensor([[1.0, 8.0], [64.0, 1.0]]))


def test_zeros_survive_quantisation() -> None:
    assert torch.equal(dequantise(*quantise(torch.zeros(4, 4), 2)), torch.zeros(4, 4).bfloat16())


def test_columns_must_divide_into_blocks() -> None:
    for weight, block in ((torch.ones(4, 5), 2), (torch.ones(4), 2), (torch.ones(4, 4), 0)):
        with pytest.raises(ValueError, match=r"has no columns in blocks of \d"):
            quantise(weight, block)


@pytest.mark.parametrize("shape", [(2,), (2, 0), (2, 3), (1, 2), (3, 2), (2, 2, 1)])
def test_a_scale_must_fit_its_weight(shape: tuple[int, ...]) -> None:
    weight, _ = quantise(torch.ones(4, 4), 2)
    with pytest.raises(ValueError, match=r"does not fit a weight of \[4, 4\]"):
        dequantise(weight, torch.ones(shape))


def test_the_course_checkpoint_is_what_the_issue_asks_for() -> None:
    """Real names, FP8 with scales, BF16 norms and embeddings, at least three shards, small."""
    paths = shard_paths(course.CHECKPOINT)
    dtypes = {entry.name: entry.dtype for entry in checkpoint_entries(paths)}
    assert sum(path.stat().st_size for path in paths) <= 8 << 20
    assert dtypes["model.embed_tokens.weight"] == torch.bfloat16
    assert dtypes["model.norm.weight"] == torch.bfloat16
    fp8 = [name for name, dtype in dtypes.items() if dtype == torch.float8_e4m3fn]
    assert len(fp8) >= 20
    assert all(dtypes[name + "_scale_inv"] == torch.float32 for name in fp8)


def sorted_like(entries: list[TensorEntry], path: Path) -> list[tuple[str, torch.Tensor]]:
    tensors = dict(plain(path))
    return [(entry.name, tensors[entry.name]) for entry in entries]


def test_what_is_not_a_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.safetensors"
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match=r"pipe\.safetensors is not a file"):
        read_layout(path)


def test_a_text_is_not_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "text.safetensors"
    path.write_text("Beneath the coat, in the dark.")
    with pytest.raises(CheckpointError, match="does not begin with the length of a header"):
        read_layout(path)
