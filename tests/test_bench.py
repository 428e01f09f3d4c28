"""The bench runs, compares like with like, and says what it compared; no figure is judged here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch

from casestudy.bench import guard_overhead, ratios, write_large, write_tiny
from casestudy.checkpoint import read_layout
from casestudy.loaders import plain


def test_ratios_are_of_the_same_round_and_of_the_first_pass() -> None:
    calls: list[str] = []
    found = ratios({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert found["a"] == 1.0
    assert found.keys() == {"a", "b"}
    assert sorted(calls) == ["a"] * 4 + ["b"] * 4
    assert all(set(calls[at : at + 2]) == {"a", "b"} for at in range(0, 8, 2))


def test_the_checkpoints_are_what_the_table_calls_them(tmp_path: Path) -> None:
    write_large(tmp_path / "large.safetensors", 0.01, 5)
    large = read_layout(tmp_path / "large.safetensors")
    assert len(large) == 5
    assert abs(sum(entry.nbytes for entry in large) / 0.01 / 2**30 - 1) < 0.01
    write_tiny(tmp_path / "tiny.safetensors", 50)
    tiny = read_layout(tmp_path / "tiny.safetensors")
    assert [
        sum(entry.dtype == dtype for entry in tiny) for dtype in (torch.float32, torch.bfloat16)
    ] == [20, 20]
    assert max(entry.nbytes for entry in tiny) < 16_384


def test_all_three_passes_are_timed(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.safetensors", 20)
    found = guard_overhead(lambda: plain(tmp_path / "tiny.safetensors"), rounds=1)
    assert found.keys() == {"plain", "exact", "keep"}
    assert all(ratio > 0 for ratio in found.values())


def test_it_prints_a_row_for_every_iterator(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "casestudy.bench", "--gib", "0.01", "--tensors", "4"]
    done = subprocess.run(
        [*command, "--tiny", "40", "--rounds", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"(large|tiny) +│ +(borrowed|safetensors)", done.stdout)) == 6
    assert "streamer 0.15.8" in done.stdout


def test_no_room_is_told_in_a_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "casestudy.bench", "--gib", "1e9"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "set TMPDIR" in done.stderr
    assert "Traceback" not in done.stderr
