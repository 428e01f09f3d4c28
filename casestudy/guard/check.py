"""Two questions to ask of a loader: does this iterator lend, and does this consumer keep?"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from casestudy.aliasing import tensor_bytes
from casestudy.errors import CaseStudyError
from casestudy.guard.exact import ExactGuard, KeepingGuard
from casestudy.guard.watch import Stale
from casestudy.loaders import smallest_buffers, streamer_version
from casestudy.twin import POISON, OnRecycle, Order, lend

Verdict = Literal["owned", "lends", "corrupts", "keeps nothing", "keeps"]
NamedTensor = tuple[str, torch.Tensor]

MOST_SLOTS = 3
SHUFFLES = 2


@dataclass(frozen=True)
class Report:
    """What a check found.

    verdict: "owned", "lends" or "corrupts" of an iterator; "keeps nothing" or "keeps" of a
    consumer.
    evidence: a sentence for each run. stale: the tensors that were overwritten while they were
    kept, of the first run that shows any. different: names of what was yielded, or came out of a
    consumer, with other bytes than a plain load gives.
    """

    verdict: Verdict
    evidence: list[str]
    stale: list[Stale] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.verdict in ("owned", "keeps nothing")

    def as_json(self) -> dict[str, Any]:
        """`verdict`, `stale`, `different`, `evidence` and the installed `streamer`."""
        return {
            "verdict": self.verdict,
            "stale": [_plain(each) for each in self.stale],
            "different": self.different,
            "evidence": self.evidence,
            "streamer": streamer_version(),
        }

    def __str__(self) -> str:
        shown = [f"  {self._line(each)}" for each in self.stale[:5]]
        more = len(self.stale) - len(shown)
        return "\n".join(
            [f"{self.verdict}", *self.evidence, *shown, *([f"  and {more} more"] if more else [])]
        )

    def _line(self, stale: Stale) -> str:
        if self.verdict == "keeps":
            return str(stale)
        by = f" by {stale.overwriter}" if stale.overwriter else ""
        return f"{stale.victim} ({stale.nbytes} bytes), {stale.why}{by} while it was held"


def check_iterator(
    factory: Callable[[], Iterable[Sequence[Any]]],
    reference: Callable[[], Iterable[NamedTensor]] | None = None,
) -> Report:
    """Does the iterator that `factory` makes lend what it yields?

    Takes everything and keeps it, so the whole checkpoint must fit in memory; once as it is, and
    once with the streamer's buffers forced down to the smallest, since a small model in a large
    buffer looks owned. What a factory sets for itself, such as a memory limit of its own, stays.

    factory: makes a fresh iterator of (name, tensor) or (name, tensor, extra) at every call.
    reference: makes an iterator of the same tensors as they should be, if there is one: bytes that
        are wrong when they are yielded change no more, and only a comparison shows them.

    Raises `CaseStudyError` if nothing is yielded that can be watched.
    """
    right = {name: tensor_bytes(tensor) for name, tensor in (reference() if reference else ())}
    runs = [
        ("as it is", _keep_everything(factory, nullcontext(), right)),
        (
            "with the streamer's smallest buffers",
            _keep_everything(factory, smallest_buffers(), right),
        ),
    ]
    evidence = [_say(how, run) for how, run in runs]
    as_it_is, forced = (run.stale for _, run in runs)
    if not any(run.yielded - len(run.unwatched) for _, run in runs):
        raise CaseStudyError("the iterator yields no tensor, so there is nothing to check.")
    if forced and not as_it_is:
        evidence.append("It looks owned only because its buffer is larger than what is in it.")
    stale = [replace(each, held_by=None) for each in max(as_it_is, forced, key=len)]
    wrong = sorted({name for _, run in runs for name in run.wrong})
    verdict: Verdict = "lends" if stale else "corrupts" if wrong else "owned"
    return Report(verdict, evidence, stale, wrong)


def check_consumer(
    consume: Callable[[Iterator[NamedTensor]], Any],
    tensors: Mapping[str, torch.Tensor] | Iterable[NamedTensor],
) -> Report:
    """Does `consume` keep what it was lent?

    Feeds it from `twin.lend`, in file order and shuffled, with 1 to 3 slots, overwriting and in
    quarantine, and compares with what it makes of tensors that are all its own.

    consume: takes an iterator of (name, tensor), and does the same at every call. If it returns
        tensors, in a dict, a list or a module, their bytes are compared as well.
    tensors: what to feed; small ones will do.

    Raises `CaseStudyError` if there are none, and whatever `consume` raises on tensors of its own.
    """
    named = dict(tensors.items() if isinstance(tensors, Mapping) else tensors)
    if not named:
        raise CaseStudyError("there are no tensors to feed the consumer with.")
    runs: list[_Run] = []
    for setting in _settings():
        is_news = not any(run.stale for run in runs)  # one run with its holders is enough
        runs.append(_feed(consume, named, setting, looks_for_holders=is_news))
    stale = next((run.stale for run in runs if run.stale), [])
    taken = max(run.taken for run in runs)
    if not taken:
        raise CaseStudyError(
            "the consumer took no tensor; give a function that reads the iterator to its end."
        )
    different = sorted({name for run in runs for name in run.different})
    bad = [run for run in runs if run.stale or run.different or run.error]
    evidence = [run.sentence for run in bad] or [
        f"{len(runs)} runs over {len(named)} tensors in file order and shuffled, with 1 to "
        f"{MOST_SLOTS} slots: nothing was held longer than its own step."
    ]
    if taken < len(named):
        evidence.append(f"It took only {taken} of the {len(named)} tensors.")
    return Report("keeps" if bad else "keeps nothing", evidence, stale, different)


@dataclass(frozen=True)
class _Kept:
    yielded: int
    stale: list[Stale]
    unwatched: list[str]
    wrong: list[str]


def _keep_everything(
    factory: Callable[[], Iterable[Sequence[Any]]],
    buffers: AbstractContextManager[None],
    right: Mapping[str, bytes],
) -> _Kept:
    with buffers:
        watched = KeepingGuard(factory(), "record", "full")
        wrong = [
            name
            for name, tensor, *_ in watched
            if name in right and tensor_bytes(tensor) != right[name]
        ]
    return _Kept(watched.yielded, watched.stale, watched.unwatched, wrong)


def _say(how: str, run: _Kept) -> str:
    said = f"{how}: {len(run.stale)} of {run.yielded} kept tensors were overwritten"
    if run.unwatched:
        said += f", {len(run.unwatched)} could not be watched ({run.unwatched[0]})"
    if run.wrong:
        said += f", {len(run.wrong)} had wrong bytes when they were yielded ({run.wrong[0]})"
    return said[0].upper() + said[1:] + "."


class _Setting(NamedTuple):
    """The arguments of one `lend`."""

    slots: int
    order: Order
    seed: int = 0
    on_recycle: OnRecycle = "overwrite"

    def __str__(self) -> str:
        slots = f"{self.slots} slot{'s' if self.slots > 1 else ''}"
        order = "File order" if self.order == "file" else f"Shuffled by seed {self.seed}"
        return f"{order}, {slots}, {self.on_recycle}"


def _settings() -> Iterator[_Setting]:
    for slots in range(1, MOST_SLOTS + 1):
        yield _Setting(slots, "file")
        yield from (_Setting(slots, "shuffled", seed) for seed in range(SHUFFLES))
    yield _Setting(1, "file", on_recycle="quarantine")


@dataclass(frozen=True)
class _Run:
    sentence: str
    stale: list[Stale]
    different: list[str]
    error: str
    taken: int


def _feed(
    consume: Callable[[Iterator[NamedTensor]], Any],
    named: dict[str, torch.Tensor],
    setting: _Setting,
    *,
    looks_for_holders: bool,
) -> _Run:
    right = _results(consume(_owned(named, setting)))
    lent = lend(named, **setting._asdict())
    if setting.on_recycle == "quarantine":
        lent = _wiped_at_the_end(lent)
    watched = ExactGuard(lent, "record", "full", looks_for_holders=looks_for_holders)
    error, different = "", list[str]()
    try:
        made = _results(consume(watched))
        different = [name for name in right if right[name] != made.get(name)]
    except Exception as raised:  # whatever it is, it did not raise on tensors of its own
        error = f", and it raised {type(raised).__name__}: {raised}"
    watched.close()
    results = f", {len(different)} of {len(right)} results with wrong bytes" if right else ""
    sentence = (
        f"{setting}: {len(watched.stale)} of {len(named)} tensors kept past their step"
        f"{results}{error}."
    )
    return _Run(sentence, watched.stale, different, error, watched.yielded)


def _wiped_at_the_end(
    lent: Generator[NamedTensor, None, None],
) -> Generator[NamedTensor, None, None]:
    """A borrowed tensor is valid until the iterator advances, ends, or is closed: the last too."""
    last = None
    try:
        for name, tensor in lent:
            last = tensor
            yield name, tensor
    finally:
        if last is not None and last.numel():
            torch.empty(0, dtype=torch.uint8).set_(last.untyped_storage()).fill_(POISON)


def _owned(named: dict[str, torch.Tensor], setting: _Setting) -> Iterator[NamedTensor]:
    """The pairs in the order in which `lend` would yield them, each a tensor of its own."""
    for name, _ in lend(named, **setting._asdict()):
        yield name, named[name].clone()


def _results(made: Any) -> dict[str, bytes]:  # noqa: ANN401, whatever a consumer returns
    """The bytes of every tensor in what a consumer returned, by name."""
    if isinstance(made, torch.nn.Module):
        made = made.state_dict()
    if isinstance(made, torch.Tensor):
        made = [made]
    if isinstance(made, Mapping):
        parts = [(str(name), part) for name, part in made.items()]
    elif isinstance(made, Sequence) and not isinstance(made, str | bytes):
        parts = [(f"[{index}]", part) for index, part in enumerate(made)]
    else:
        return {}
    return {name: tensor_bytes(part) for name, part in parts if isinstance(part, torch.Tensor)}


def _plain(stale: Stale) -> dict[str, Any]:
    return {
        "victim": stale.victim,
        "overwriter": stale.overwriter,
        "bytes": stale.nbytes,
        "steps": stale.steps,
        "held_by": str(stale.held_by) if stale.held_by else None,
    }
