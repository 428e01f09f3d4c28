"""Who yields: loaders over the RunAI Model Streamer that differ only in who owns what they yield.

`borrowed` hands out the streamer's own views: the bug of vLLM issue #43163.
`cloned` copies each tensor at the yield: the fix of vLLM PR #43464.
Supports streamer 0.15.8 to 0.17.x. On the host path up to 0.16.1 the streamer always lends; from
0.17 it lends only when asked to (`owned=False`), and `borrowed` asks.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Protocol

import torch

from casestudy.checkpoint import HEADER_LENGTH, TensorEntry, read_layout
from casestudy.errors import StreamError

_ENVIRONMENT = RLock()
MEMORY_LIMIT_VARIABLE = "RUNAI_STREAMER_MEMORY_LIMIT"
PADS_VARIABLE = "RUNAI_STREAMER_MAX_PADS_PER_BUFFER"

NamedTensor = tuple[str, torch.Tensor]
Weights = Generator[NamedTensor, None, None]
Paths = str | Path | Sequence[str | Path]


class Loader(Protocol):
    """Yields the (name, tensor) pairs of safetensors files.

    paths: files, local or in object storage, each once.
    memory_limit: bytes of the streamer's buffer; `None` leaves the streamer's own default, `0` is
        the smallest that works (the largest tensor), `-1` everything at once.
    device: where the yielded tensors lie. On the host path the streamer's views lie in its
        buffer; on any other device they are copies already.
    distributed: share the reading among the ranks of `torch.distributed`.
    progress: show a bar, a tick a tensor.

    Raises `CheckpointError` for a missing or damaged local file and `StreamError` for whatever
    the streamer cannot do, at the first `next()`.
    """

    def __call__(
        self,
        paths: Paths,
        *,
        memory_limit: int | None = None,
        device: str = "cpu",
        distributed: bool = False,
        progress: bool = False,
    ) -> Weights: ...


def borrowed(
    paths: Paths,
    *,
    memory_limit: int | None = None,
    device: str = "cpu",
    distributed: bool = False,
    progress: bool = False,
) -> Weights:
    """Yields the streamer's views: each is valid until the iterator advances. See `Loader`."""
    files = _files(paths)
    layouts = _local_layouts(files)
    _check_limit(memory_limit, layouts)
    total = sum(map(len, layouts.values()))
    seen = 0
    for name, tensor in _with_progress(
        _stream(files, memory_limit, device, distributed), total or None, progress
    ):
        seen += 1
        yield name, tensor
        del tensor  # a lent view must not live on in here
    if seen < total:
        raise StreamError(
            f"the streamer delivered only {seen} of the {total} tensors of "
            f"{', '.join(files)}; do not use what was loaded."
        )


def cloned(
    paths: Paths,
    *,
    memory_limit: int | None = None,
    device: str = "cpu",
    distributed: bool = False,
    progress: bool = False,
) -> Weights:
    """Yields copies: each is valid for as long as it is held. See `Loader`."""
    views = borrowed(
        paths,
        memory_limit=memory_limit,
        device=device,
        distributed=distributed,
        progress=progress,
    )
    for name, tensor in views:
        yield name, tensor.clone()


LOADERS: dict[str, Loader] = {"borrowed": borrowed, "cloned": cloned}


def runai_safetensors_weights_iterator(
    hf_weights_files: list[str], use_tqdm_on_load: bool, is_distributed: bool = False
) -> Weights:
    """The fixed loader under the name and signature it has in vLLM (PR #43464)."""
    return cloned(hf_weights_files, distributed=is_distributed, progress=use_tqdm_on_load)


def plain(paths: Paths) -> Weights:
    """The same pairs by safetensors alone: what every loader is compared with."""
    from safetensors import safe_open

    for path in _files(paths):
        read_layout(path)
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, not a mapping
                yield name, file.get_tensor(name)


def requests(paths: Paths, memory_limit: int | None = None) -> list[list[str]]:
    """Which tensors the streamer fetches together: their names, a list for every request.

    The streamer refills its buffer a request at a time, with as many tensors in file order as
    fit. Asks its own planner, that of 0.15 and 0.16; nothing is read but headers.

    Raises as a `Loader` does, and `StreamError` from 0.17 on, where a ring of slots took the
    place of the one buffer.
    """
    if not lends_by_default():
        raise StreamError(
            f"runai-model-streamer {streamer_version()} fills a ring of slots; "
            f"requests are known up to 0.16.1."
        )
    from runai_model_streamer.file_streamer.requests_iterator import (
        FileChunks,
        FilesRequestsIteratorWithBuffer,
    )

    files = _files(paths)
    if not all(map(_is_local, files)):
        raise StreamError(f"{', '.join(files)}: requests are planned for local files only.")
    layouts = _local_layouts(files)
    _check_limit(memory_limit, layouts)
    chunks = [
        FileChunks(file, file, 0, [entry.nbytes for entry in layout])
        for file, layout in layouts.items()
    ]
    with _named_errors(files), memory_limit_set(memory_limit):
        planner = FilesRequestsIteratorWithBuffer.with_memory_mode(chunks)
    names = {file: iter([entry.name for entry in layout]) for file, layout in layouts.items()}
    found = []
    while request := planner.next_request():
        found.append([next(names[part.path]) for part in request.files for _ in part.chunks])
    return found


def streamer_version() -> str:
    """The installed release of runai-model-streamer."""
    from importlib.metadata import version

    return version("runai-model-streamer")


def lends_by_default() -> bool:
    """Whether the installed streamer hands out reusable memory unless told otherwise."""
    from runai_model_streamer import SafetensorsStreamer

    return "owned" not in inspect.signature(SafetensorsStreamer.stream_files).parameters


@contextmanager
def memory_limit_set(memory_limit: int | None) -> Iterator[None]:
    """Sets the streamer's memory-limit variable to so many bytes inside, and puts it back.

    One thread at a time: the variable belongs to the process.
    """
    limit = {} if memory_limit is None else {MEMORY_LIMIT_VARIABLE: str(memory_limit)}
    with _environment(limit):
        yield


@contextmanager
def smallest_buffers() -> Iterator[None]:
    """Forces streams that are set up inside into the smallest buffers that work.

    That is where lending shows: a large buffer is never used again. From 0.17 on a slot also has
    room between tensors, so that tiny ones miss each other; that is turned off as well.
    """
    with _environment({MEMORY_LIMIT_VARIABLE: "0", PADS_VARIABLE: "0"}):
        yield


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _stream(files: list[str], memory_limit: int | None, device: str, distributed: bool) -> Weights:
    """The streamer's own iterator, asked to lend, with its errors told in our words."""
    from runai_model_streamer import SafetensorsStreamer

    lend = {} if lends_by_default() else {"owned": False}
    with _named_errors(files), SafetensorsStreamer() as streamer:
        with memory_limit_set(memory_limit):  # read once, when the stream is set up
            streamer.stream_files(files, device=device, is_distributed=distributed, **lend)
        yield from streamer.get_tensors()


@contextmanager
def _named_errors(files: list[str]) -> Iterator[None]:
    from runai_model_streamer.file_streamer.requests_iterator import (
        RunaiStreamerMemoryLimitException,
    )

    try:
        yield
    except (ValueError, RunaiStreamerMemoryLimitException) as error:
        raise StreamError(f"{', '.join(files)}: {error}") from error


def _files(paths: Paths) -> list[str]:
    files = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not files:
        raise StreamError("no files were given; name at least one .safetensors file.")
    seen: set[str] = set()
    for file in files:
        place = str(Path(file).resolve()) if _is_local(file) else file
        if place in seen:
            raise StreamError(f"{file} is listed twice; list each shard once.")
        seen.add(place)
    return files


def _is_local(file: str) -> bool:
    return "://" not in file


def _local_layouts(files: list[str]) -> dict[str, list[TensorEntry]]:
    """The headers of local files, checked; object storage is left to the streamer."""
    layouts = {file: read_layout(file) for file in files if _is_local(file)}
    for file, layout in layouts.items():
        if not layout:
            raise StreamError(f"{file} holds no tensors; leave it out.")
    return layouts


def smallest_limit(layouts: Mapping[str, list[TensorEntry]]) -> int:
    """The smallest positive memory limit, in bytes, that the streamer takes for local files.

    It reads their headers through the same buffer, so it needs room for the longest one as well.
    """
    largest = max((entry.nbytes for layout in layouts.values() for entry in layout), default=0)
    return max([largest, *(layout[0].start - HEADER_LENGTH for layout in layouts.values())])


def _check_limit(memory_limit: int | None, layouts: Mapping[str, list[TensorEntry]]) -> None:
    if memory_limit is None or memory_limit in (0, -1) or not layouts:
        return
    if memory_limit < -1:
        raise StreamError(
            f"a memory limit of {memory_limit} bytes makes no sense; "
            f"use -1 for no limit, 0 for the smallest buffer that works, or a size."
        )
    least = smallest_limit(layouts)
    if memory_limit < least:
        entries = [entry for layout in layouts.values() for entry in layout]
        largest = max(entries, key=lambda entry: entry.nbytes)
        what = f"the largest tensor, {largest.name}"
        if largest.nbytes < least:
            longest = max(layouts, key=lambda file: layouts[file][0].start)
            what = f"the header of {longest}, which is read through the same buffer,"
        raise StreamError(
            f"a memory limit of {memory_limit} bytes is smaller than {what} with {least} bytes; "
            f"use at least that, 0 for the smallest buffer that works, or -1 for no limit."
        )


def _with_progress(weights: Weights, total: int | None, progress: bool) -> Iterable[NamedTensor]:
    if not progress:
        return weights
    from rich.console import Console
    from rich.progress import track

    title = "Loading safetensors with the RunAI Model Streamer"
    return track(weights, title, total, console=Console(stderr=True))
