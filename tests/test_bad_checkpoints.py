"""A checkpoint that is of another kind, or no longer whole, is a sentence that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from casestudy import course, model
from casestudy.checkpoint import INDEX_NAME, shard_paths
from casestudy.errors import CheckpointError
from casestudy.loaders import plain
from casestudy.reproduce import load_plain, reproduce

INDEXER = "model.layers.1.self_attn.indexer."
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The course's checkpoint, to be spoilt."""
    return Path(shutil.copytree(course.CHECKPOINT, tmp_path / "copy"))


def drop(name: str) -> Callable[[Tensors], None]:
    def spoil(tensors: Tensors) -> None:
        del tensors[name]

    return spoil


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            drop(INDEXER + "wk.weight_scale_inv"),
            f"holds {INDEXER}wk.weight but not {INDEXER}wk.weight_scale_inv",
        ),
        (drop(INDEXER + "wk.weight"), f"holds {INDEXER}wk.weight_scale_inv but not its weight"),
        (
            drop(INDEXER + "weights_proj.weight"),
            f"holds {INDEXER}wk.weight but not {INDEXER}weights_proj.weight",
        ),
        (drop(INDEXER + "k_norm.weight"), f"but not {INDEXER}k_norm.weight"),
        (put(INDEXER + "wk.weight_scale_inv", torch.ones(2)), "does not fit its weight"),
        (put(INDEXER + "wk.weight_scale_inv", torch.ones(2, 0)), "does not fit its weight"),
        (put(INDEXER + "wk.weight_scale_inv", torch.ones(2, 3)), "does not fit its weight"),
        (put(INDEXER + "wk.weight_scale_inv", torch.ones(9, 4)), "does not fit its weight"),
        (put(INDEXER + "wk.weight_scale_inv", torch.ones(2, 4).half()), "does not fit its weight"),
        (put(INDEXER + "weights_proj.weight", torch.ones(128)), "cannot become one matrix"),
        (drop("lm_head.weight"), "missing keys: lm_head.weight"),
        (put("ghost", torch.ones(1)), "unexpected keys: ghost"),
        (put("model.norm.weight", torch.ones(3)), "mismatched keys: ('model.norm.weight'"),
    ],
)
def test_spoilt_weights(copy: Path, spoil: Callable[[Tensors], None], sentence: str) -> None:
    tensors = dict(plain(shard_paths(copy)))
    for path in shard_paths(copy):
        path.unlink()
    (copy / INDEX_NAME).unlink()
    spoil(tensors)
    save_file(tensors, copy / "model.safetensors")
    _raises(copy, sentence)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("", "is not a config that can be used"),
        ("[]", "is not a config that can be used"),
        ("null", "is not a config that can be used"),
        ("{}", "is not a config that can be used: 'model_type'"),
        ('{"model_type": "llama"}', "is of the architecture llama; it must be glm_moe_dsa"),
        ('{"model_type": "glm_moe_dsa", "hidden_size": "128"}', "is not a config that can be used"),
    ],
)
def test_a_config_that_cannot_be_used(copy: Path, config: str, sentence: str) -> None:
    (copy / "config.json").write_text(config)
    _raises(copy, sentence)


def test_a_config_of_another_size(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vocab_size": 50}))
    _raises(copy, "are not those of the model in its config.json")


def test_a_config_without_quantisation_is_well(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    del config["quantization_config"]
    (copy / "config.json").write_text(json.dumps(config))
    model.build(copy, load_plain(copy))


def test_a_model_that_is_broken_already(copy: Path) -> None:
    tensors = dict(plain(shard_paths(copy)[-1]))
    tensors["model.norm.weight"] *= float("nan")
    save_file(tensors, shard_paths(copy)[-1])
    with pytest.raises(CheckpointError, match="is broken before any loader touches it"):
        reproduce(copy)


def test_a_tensor_in_two_shards(copy: Path) -> None:
    (copy / INDEX_NAME).unlink()
    shutil.copy(shard_paths(copy)[0], copy / "again.safetensors")
    _raises(copy, "which another shard holds too")


def test_a_shard_that_nobody_has(copy: Path) -> None:
    shard_paths(copy)[1].unlink()
    _raises(copy, "names model-00002-of-00003.safetensors, which is not in")


def _raises(checkpoint: Path, sentence: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        model.build(checkpoint, load_plain(checkpoint))
    assert sentence in str(caught.value)
