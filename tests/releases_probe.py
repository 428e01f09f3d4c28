"""Run under one streamer release by `test_releases`; prints what the loaders did, as JSON."""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from casestudy import course, loaders
from casestudy.consumers import collect, wrong_parameters
from casestudy.loaders import LOADERS, Loader, plain
from casestudy.reproduce import load, load_plain
from tests.contract import small_test, strong_test


def verdict(test: Callable[[Loader, Path], None], loader: Loader, path: Path) -> str:
    try:
        test(loader, path)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return "passes"


def library_default(path: Path) -> int:
    """How many of the kept tensors are wrong if the streamer is used as its own page shows."""
    from runai_model_streamer import SafetensorsStreamer

    with loaders.memory_limit_set(0), SafetensorsStreamer() as streamer:
        streamer.stream_files([str(path)])
        return len(wrong_parameters(collect(streamer.get_tensors()), dict(plain(path))))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = folder / "large.safetensors"
        save_file({f"t{i}": torch.full((4096,), float(i + 1)) for i in range(10)}, large)
        reference = load_plain(course.CHECKPOINT)
        found = {
            "release": loaders.streamer_version(),
            "lends_by_default": loaders.lends_by_default(),
            "wrong_by_default": library_default(large),
            "small_test": {n: verdict(small_test, each, folder) for n, each in LOADERS.items()},
            "strong_test": {n: verdict(strong_test, each, large) for n, each in LOADERS.items()},
            "wrong_layers": {
                n: len(wrong_parameters(load(course.CHECKPOINT, each), reference))
                for n, each in LOADERS.items()
            },
        }
    json.dump(found, sys.stdout)


main()
