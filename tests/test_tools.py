"""The maintainer's scripts: what they write has the form of what the repository holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import lock
import pytest
import train_checkpoint
from refresh_pictures import DRAWERS

from casestudy import course
from casestudy.checkpoint import read_layout, shard_paths

TRAIN = course.ROOT / "tools" / "train_checkpoint.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real training, three steps of it."""
    out = tmp_path_factory.mktemp("training") / "new"
    done = subprocess.run(
        [sys.executable, TRAIN, "--out", out, "--steps", "3"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def test_training_writes_the_same_files_as_the_course_has(trained: Path) -> None:
    ours = {path.name for path in course.CHECKPOINT.iterdir()} - {"README.md"}
    assert {path.name for path in trained.iterdir()} == ours
    assert (trained / "config.json").read_text() == (course.CHECKPOINT / "config.json").read_text()
    for new, old in zip(shard_paths(trained), shard_paths(course.CHECKPOINT), strict=True):
        assert read_layout(new) == read_layout(old)


def test_training_does_not_write_over_anything(trained: Path) -> None:
    before = (trained / "config.json").read_bytes()
    done = subprocess.run(
        [sys.executable, TRAIN, "--out", trained, "--steps", "3"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "is not an empty folder; name a new one." in re.sub(r"[\s│]+", " ", done.stderr)
    assert (trained / "config.json").read_bytes() == before


def test_the_training_score_of_an_indexer_is_transformers_own() -> None:
    """The differentiable scores select the positions that the unmodified indexer selects."""
    import torch
    from transformers import GlmMoeDsaForCausalLM

    torch.manual_seed(0)
    config = train_checkpoint.tiny_config()
    model = GlmMoeDsaForCausalLM(config)
    indexer = model.model.layers[0].self_attn.indexer
    hidden, latent = torch.randn(1, 200, config.hidden_size), torch.randn(1, 200, 64)
    places = model.model.rotary_emb(hidden, torch.arange(200).unsqueeze(0))
    mask = torch.full((1, 200, 200), float("-inf")).triu(1)
    theirs = indexer(hidden, latent, places, mask, None)
    ours = train_checkpoint.index_scores(indexer, hidden, latent, places) + mask
    ours = ours.topk(config.index_topk).indices
    for row in range(config.index_topk, 200):
        assert set(ours[0, row].tolist()) == set(theirs[0, row].tolist())


def test_the_lock_keeps_pins_and_drops_build_tags() -> None:
    frozen = "torch==2.13.0+cpu\nzlib-ng==1.0\n-e git+file:///x#egg=y\nattrs==26.1.0\n"
    assert lock.pins_of(frozen) == ["attrs==26.1.0", "torch==2.13.0", "zlib-ng==1.0"]


def test_the_lock_is_made_from_all_requirements() -> None:
    names = {line.split(">")[0].split("<")[0] for line in lock.requirements()}
    assert {"torch", "runai-model-streamer", "pytest", "ruff"} <= names


def test_every_picture_of_the_readme_has_a_drawer() -> None:
    assert [path.stem for path in course.PICTURES] == list(DRAWERS)
    assert {path.name for path in course.PICTURES[0].parent.iterdir()} == {
        path.name for path in course.PICTURES
    }
    readme = (course.ROOT / "README.md").read_text()
    assert all(f"docs/pictures/{name}.svg" in readme for name in DRAWERS)


def test_the_index_maps_every_tensor_to_its_shard() -> None:
    index = json.loads((course.CHECKPOINT / "model.safetensors.index.json").read_text())
    there = {
        entry.name: path.name
        for path in shard_paths(course.CHECKPOINT)
        for entry in read_layout(path)
    }
    assert index["weight_map"] == there


def test_without_its_programs_the_browser_set_up_says_what_to_install(
    tmp_path: Path,
) -> None:
    script = course.ROOT / "tools" / "install_browser.py"
    done = subprocess.run(
        [sys.executable, script], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "sudo apt-get install chromium npm" in done.stderr
    assert "Traceback" not in done.stderr
