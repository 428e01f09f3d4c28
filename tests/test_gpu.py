"""The fixed loader with the model on a device."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from casestudy import course
from casestudy.errors import CaseStudyError
from casestudy.gpu import best_device, run_on_device
from casestudy.loaders import borrowed
from tests.test_consumers import FUSED_NAMES

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="torch sees no GPU on this machine"
        ),
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_the_fixed_loader_is_right_on_the_device(device: str) -> None:
    run = run_on_device(device)
    assert run.device == device
    assert run.wrong == []
    assert run.text == course.continuation(course.long_prompt())
    assert run.text_equal
    assert run.parameter_bytes > 1_000_000
    assert run.copy_seconds > 0
    assert (run.peak_bytes is None) == (device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_a_lending_loader_is_wrong_on_the_device_and_found(device: str) -> None:
    run = run_on_device(device, borrowed)
    assert run.wrong == FUSED_NAMES
    assert not run.text_equal


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_recorded() -> None:
    assert best_device() == "cpu"
    with pytest.raises(CaseStudyError, match="torch sees no GPU here"):
        run_on_device("cuda")
    before = course.GPU_RECORD.exists()
    tool = course.ROOT / "tools" / "record_gpu.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("nothing recorded: torch sees no GPU here")
    assert course.GPU_RECORD.exists() == before
