"""Every picture by name, of the course's own files or of anybody's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from casestudy import course
from casestudy.checkpoint import SCALE_SUFFIX, TensorEntry, read_layout
from casestudy.consumers import collect
from casestudy.errors import CaseStudyError
from casestudy.loaders import lends_by_default, requests
from casestudy.observe import Observation, Subject, observe, subject
from casestudy.plots import (
    Continuations,
    Picture,
    byte_view,
    checkpoint_strip,
    damage,
    storage_map,
    stream_map,
    text_comparison,
)
from casestudy.reproduce import reproduce
from casestudy.trace import Step, Trace


@dataclass(frozen=True)
class Wish:
    """What is to be drawn. `memory_limit` in bytes, as the loaders take it.

    target: a safetensors file or a checkpoint folder; the course's own, if None.
    tensor: whose bytes to show; if None, those of the first one that went stale.
    """

    target: Path | None = None
    loader: str = "borrowed"
    memory_limit: int = 0
    tensor: str | None = None


def draw(picture: str, wish: Wish) -> Picture:
    """Draws `GALLERY[picture]`, loading for real where the picture needs it.

    Raises `CaseStudyError` for what cannot be loaded or found.
    """
    with tempfile.TemporaryDirectory() as folder:
        if wish.target is None and picture in ("map", "storage", "bytes"):
            wish = replace(wish, target=course.write_lesson_file(folder))
        elif wish.target is None:
            wish = replace(wish, target=course.CHECKPOINT)
        return GALLERY[picture](wish)


def _map(wish: Wish) -> Picture:
    seen = _observe(wish)
    return stream_map(seen.trace, seen.summary)


def _storage(wish: Wish) -> Picture:
    """What lies where if everything is kept, through this loader and through the fixed one."""
    kept = Subject(_subject(wish).paths, collect)
    seen = {name: observe(kept, name, wish.memory_limit) for name in (wish.loader, "cloned")}
    held = {name: each.parameters for name, each in seen.items()}
    return storage_map(held, f"Everything kept, a buffer of {kept.spell(wish.memory_limit)}")


def _bytes(wish: Wish) -> Picture:
    seen = _observe(wish)
    step = _find(seen.trace, wish.tensor)
    return byte_view(step)


def _strip(wish: Wish) -> Picture:
    """The file, or of a folder the shard with the most pairs; cuts are known up to 0.16."""
    paths = _subject(wish).paths
    cuts = requests(paths, wish.memory_limit) if lends_by_default() else None
    shard = max(paths, key=lambda path: sum(_is_scale(entry) for entry in read_layout(path)))
    return checkpoint_strip(read_layout(shard), cuts, f"{shard.name}, from front to back")


def _is_scale(entry: TensorEntry) -> bool:
    return entry.name.endswith(SCALE_SUFFIX)


def _damage(wish: Wish) -> Picture:
    seen = _observe(wish)
    return damage(seen.telling, title=seen.summary)


def _text(wish: Wish) -> Picture:
    """The incident: texts and losses of a right, a wrong and a fixed load."""
    assert wish.target is not None
    result = reproduce(wish.target, memory_limit=wish.memory_limit)
    outcomes = {
        "loaded by safetensors": result.reference,
        "borrowed: the streamer's views, kept": result.borrowed,
        "cloned: the one-line fix": result.cloned,
    }
    told = Continuations(outcomes, len(result.prompt), course.index_topk())
    return text_comparison(told, "One checkpoint, one prompt, three loads")


GALLERY: dict[str, Callable[[Wish], Picture]] = {
    "map": _map,
    "storage": _storage,
    "bytes": _bytes,
    "strip": _strip,
    "damage": _damage,
    "text": _text,
}


def _subject(wish: Wish) -> Subject:
    assert wish.target is not None
    return subject(wish.target)


def _observe(wish: Wish) -> Observation:
    return observe(_subject(wish), wish.loader, wish.memory_limit)


def _find(trace: Trace, tensor: str | None) -> Step:
    steps = {step.name: step for step in trace.steps}
    if tensor is None:
        return next(iter(trace.stale()), trace.steps[0])
    if tensor not in steps:
        near = get_close_matches(tensor, steps, n=3)
        hint = f"there is {next(iter(steps))}, for one."
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        raise CaseStudyError(f"there is no tensor {tensor}; {hint}")
    return steps[tensor]
