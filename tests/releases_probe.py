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
from casestudy.loaders import LOADERS, Loader, Weights, plain
from casestudy.reproduce import load, load_plain
from tests.contract import small_test, strong_test

Unchecked = Callable[..., Weights]


def verdict(test: Callable[[Loader, Path], None], loader: Unchecked, path: Path) -> str:
    try:
        test(loader, path)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return "passes"


def unfixed(paths: Path, *, memory_limit: int) -> Weights:
    """vLLM's iterator without its `clone()`: the streamer as its own page shows it."""
    from runai_model_streamer import SafetensorsStreamer

    with loaders.memory_limit_set(memory_limit), SafetensorsStreamer() as streamer:
        streamer.stream_files([str(paths)])
        yield from streamer.get_tensors()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = folder / "large.safetensors"
        save_file({f"t{i}": torch.full((4096,), float(i + 1)) for i in range(10)}, large)
        tested: dict[str, Unchecked] = {"unfixed": unfixed, **LOADERS}
        reference = load_plain(course.CHECKPOINT)
        found = {
            "release": loaders.streamer_version(),
            "lends_by_default": loaders.lends_by_default(),
            "wrong_by_default": len(
                wrong_parameters(collect(unfixed(large, memory_limit=0)), dict(plain(large)))
            ),
            "small_test": {n: verdict(small_test, each, folder) for n, each in tested.items()},
            "strong_test": {n: verdict(strong_test, each, large) for n, each in tested.items()},
            "wrong_layers": {
                n: len(wrong_parameters(load(course.CHECKPOINT, each), reference))
                for n, each in LOADERS.items()
            },
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
