"""One load, watched: what was yielded and when, what came out of it, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from casestudy.checkpoint import TensorEntry, checkpoint_entries, read_layout, shard_paths
from casestudy.consumers import (
    FUSED,
    WK,
    Consumer,
    Difference,
    Parameters,
    collect,
    differences,
    keeps_the_pair,
)
from casestudy.errors import CaseStudyError, CheckpointError
from casestudy.loaders import LOADERS, plain, smallest_limit
from casestudy.trace import Trace, record

SLIDER_STEPS = 24


@dataclass(frozen=True)
class Subject:
    """Files and the consumer that fills parameters from them.

    directory: the checkpoint's, if the files are a model's.
    """

    paths: Sequence[Path]
    consumer: Consumer
    directory: Path | None = None

    @cached_property
    def reference(self) -> Parameters:
        """What the consumer makes of the files by safetensors alone."""
        return self.consumer(plain(self.paths), list(self.paths))

    @cached_property
    def _entries(self) -> list[TensorEntry]:
        return checkpoint_entries(self.paths)

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest tensor: what a memory limit of 0 gives room for.

        Raises `CheckpointError` if there is no tensor with a byte in it.
        """
        largest = max((entry.nbytes for entry in self._entries), default=0)
        if not largest:
            raise CheckpointError(f"{', '.join(map(str, self.paths))}: there are no bytes to load.")
        return largest

    def limits(self) -> list[int]:
        """Memory limits worth a look: 0, evenly up to everything, and -1."""
        layouts = {str(path): read_layout(path) for path in self.paths}
        least = max(self.largest, smallest_limit(layouts))
        total = sum(entry.nbytes for entry in self._entries)
        stride = max((total - least) // SLIDER_STEPS, 1)
        return [0, *range(least + stride, total, stride), -1]

    def spell(self, memory_limit: int | None) -> str:
        """The buffer that a memory limit makes, in bytes and in tensors as large as the largest."""
        if memory_limit is None:
            return "the streamer's own size"
        if memory_limit == -1:
            return "any size, room for everything"
        if memory_limit == 0:
            return f"{self.largest:,} bytes, room for the largest tensor"
        return f"{memory_limit:,} bytes, {memory_limit / self.largest:.1f} times the largest tensor"


@dataclass(frozen=True)
class Observation:
    """One load of a subject. `memory_limit` in bytes, as the loaders take it."""

    subject: Subject
    loader: str
    memory_limit: int | None
    trace: Trace
    parameters: Parameters
    differences: list[Difference]

    @property
    def wrong(self) -> list[str]:
        """Sorted names of the parameters that are not the reference's."""
        return [each.name for each in self.differences if each.wrong]

    @property
    def telling(self) -> list[Difference]:
        """The fused parameters, if there are any, and whatever else is wrong; else all."""
        chosen = [each for each in self.differences if each.wrong or each.name.endswith(FUSED)]
        fused = any(each.name.endswith(FUSED) for each in self.differences)
        return chosen if fused else self.differences

    @property
    def summary(self) -> str:
        """Loader, buffer, and how many parameters are wrong."""
        buffer = self.subject.spell(self.memory_limit)
        return (
            f"{self.loader}, a buffer of {buffer}: "
            f"{len(self.wrong)} of {len(self.differences)} parameters wrong"
        )

    @property
    def verdict(self) -> str:
        """The summary and which parameters are wrong, in a sentence."""
        names = ": " + ", ".join(self.wrong) if self.wrong else ""
        return f"{self.summary}{names}."


def subject(target: str | Path) -> Subject:
    """A checkpoint folder with `indexer.wk` pairs for the incident's consumer; else all is kept.

    Raises `CheckpointError` if `target` is neither a checkpoint folder nor a file.
    """
    target = Path(target)
    if not target.is_dir():
        return Subject([target], collect)
    paths = shard_paths(target)
    if any(entry.name.endswith(WK) for entry in checkpoint_entries(paths)):
        return Subject(paths, keeps_the_pair, target)
    return Subject(paths, collect)


def observe(subject: Subject, loader: str, memory_limit: int | None) -> Observation:
    """Loads the subject through `LOADERS[loader]` and compares with safetensors alone.

    Raises as `Loader` and `Consumer` do, and `CaseStudyError` for a loader that is not there.
    """
    if loader not in LOADERS:
        raise CaseStudyError(f"there is no loader {loader}; use {' or '.join(LOADERS)}.")
    paths = list(subject.paths)
    stream, trace = record(LOADERS[loader](paths, memory_limit=memory_limit))
    parameters = subject.consumer(stream, paths)
    found = differences(parameters, subject.reference)
    return Observation(subject, loader, memory_limit, trace, parameters, found)
