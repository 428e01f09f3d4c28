"""What safety costs, as ratios within one run.

python -m casestudy.bench [--gib 2] [--tensors 300] [--tiny 20000] [--rounds 5]

Iterates over generated checkpoints plainly and through the guard, interleaved, and prints the
median over the rounds of each pass's time over the plain pass of the same round. The files lie in
a temporary folder (TMPDIR) and are read once before anything is timed.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import save_file

from casestudy.errors import CaseStudyError
from casestudy.guard import guard
from casestudy.loaders import borrowed, plain, streamer_version

GIB = 1 << 30
LARGE_LIMIT = 256 << 20


def ratios(passes: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median, over `rounds`, of each pass's time over that of the first in the same round.

    The passes of a round run in an order of its own; one round is run beforehand and not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in track(range(rounds + 1), "timing", console=Console(stderr=True), transient=True):
        for name in random.sample(list(passes), len(passes)):
            start = time.perf_counter()
            passes[name]()
            times[name].append(time.perf_counter() - start)
    reference = times[next(iter(passes))][1:]
    return {
        name: statistics.median(
            taken / plainly for taken, plainly in zip(each[1:], reference, strict=True)
        )
        for name, each in times.items()
    }


def guard_overhead(weights: Callable[[], Iterable[Any]], rounds: int) -> dict[str, float]:
    """Ratios of iterating and dropping: plainly, through the exact guard, in the keep mode."""
    return ratios(
        {
            "plain": lambda: _drop(weights()),
            "exact": lambda: _drop(guard(weights())),
            "keep": lambda: _drop(guard(weights(), mode="keep")),
        },
        rounds,
    )


def write_large(path: Path, gib: float, tensors: int) -> None:
    """`tensors` equal BF16 tensors, `gib` GiB in all."""
    each = max(int(gib * GIB) // tensors // 2, 1)
    part = torch.randn(min(each, 1 << 16)).to(torch.bfloat16)
    whole = part.repeat(-(-each // len(part)))[:each]
    save_file({f"layers.{number}.weight": whole.clone() for number in range(tensors)}, path)


def write_tiny(path: Path, tensors: int) -> None:
    """Two scales and two BF16 rows for every FP8 row, as in a quantised checkpoint."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for number in range(tensors):
        dtype, least, most = [
            (torch.float32, 1, 2),
            (torch.bfloat16, 64, 1024),
            (torch.float32, 1, 2),
            (torch.bfloat16, 64, 1024),
            (torch.float8_e4m3fn, 4096, 16384),
        ][number % 5]
        size = int(torch.randint(least, most, (), generator=generator))
        made[f"layers.{number}.weight"] = torch.randn(size, generator=generator).to(dtype)
    save_file(made, path)


def _drop(weights: Iterable[Any]) -> None:
    for _, _ in weights:
        pass


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _count(text: str) -> int:
    return math.ceil(_positive(text))


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m casestudy.bench", description=__doc__)
    take = parser.add_argument
    take("--gib", type=_positive, default=2, help="size of the large checkpoint")
    take("--tensors", type=_count, default=300, help="tensors in the large checkpoint")
    take("--tiny", type=_count, default=20_000, help="tensors in the tiny checkpoint")
    take("--rounds", type=_count, default=5, help="timed rounds")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    asked = _arguments(arguments)
    needed = int(asked.gib * GIB) + asked.tiny * 4096
    if shutil.disk_usage(tempfile.gettempdir()).free < needed:
        raise CaseStudyError(f"{tempfile.gettempdir()} has no room for {needed} bytes; set TMPDIR.")
    table = Table("checkpoint", "iterator", "exact / plain", "keep / plain")
    with tempfile.TemporaryDirectory() as folder:
        large, tiny = Path(folder) / "large.safetensors", Path(folder) / "tiny.safetensors"
        write_large(large, asked.gib, asked.tensors)
        write_tiny(tiny, asked.tiny)
        for path in (large, tiny):
            for name, weights in {
                "borrowed, limit 0": partial(borrowed, path, memory_limit=0),
                "borrowed, limit 256 MiB": partial(borrowed, path, memory_limit=LARGE_LIMIT),
                "safetensors": partial(plain, path),
            }.items():
                found = guard_overhead(weights, asked.rounds)
                table.add_row(path.stem, name, f"{found['exact']:.2f}", f"{found['keep']:.2f}")
    console = Console()
    console.print(table)
    console.print(f"streamer {streamer_version()}, torch {torch.__version__}, dropped at once")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CaseStudyError as error:
        sys.exit(str(error))
