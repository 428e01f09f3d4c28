"""What several tests share: real files, and the incident run once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file

from casestudy import course
from casestudy.reproduce import Reproduction, reproduce

settings.register_profile("course", deadline=None, derandomize=True)  # no verdict by the clock
settings.load_profile("course")


@pytest.fixture
def lesson_file(tmp_path: Path) -> Path:
    """Six tensors, three dtypes, six sizes."""
    return course.write_lesson_file(tmp_path)


@pytest.fixture
def equal_file(tmp_path: Path) -> Path:
    """Ten tensors of 16 KiB with a different value in each: large enough for every release."""
    path = tmp_path / "equal.safetensors"
    save_file({f"t{i}": torch.full((4096,), float(i + 1)) for i in range(10)}, path)
    return path


@pytest.fixture(scope="session")
def reproduction() -> Reproduction:
    """The incident at limit 0."""
    return reproduce()
