"""The incident from end to end: load a checkpoint through a loader, compare, let it write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean

from casestudy import course, model
from casestudy.checkpoint import shard_paths
from casestudy.consumers import Consumer, Parameters, keeps_the_pair, wrong_parameters
from casestudy.errors import CheckpointError
from casestudy.loaders import Loader, borrowed, cloned, plain, streamer_version


@dataclass
class Outcome:
    """What one way of loading led to.

    text: what the model wrote after the prompt.
    loss: mean over the true continuation, nats a character.
    wrong: sorted names of the parameters that differ from the reference's.
    losses: nats, for every character of prompt and true continuation but the first.
    """

    text: str
    loss: float
    wrong: list[str]
    losses: list[float]


@dataclass
class Reproduction:
    """One run of the incident; `reference` was loaded by safetensors alone."""

    streamer: str
    memory_limit: int | None
    device: str
    prompt: str
    reference: Outcome
    borrowed: Outcome
    cloned: Outcome

    @property
    def happened(self) -> bool:
        """Whether `borrowed` went wrong and `cloned` came out as the reference did."""
        return bool(self.borrowed.wrong) and self.fixed

    @property
    def fixed(self) -> bool:
        """Whether `cloned` came out as the reference did, to the bit and to the letter."""
        return not self.cloned.wrong and self.cloned.text == self.reference.text


def load(
    directory: str | Path,
    loader: Loader,
    consumer: Consumer = keeps_the_pair,
    *,
    memory_limit: int | None = 0,
    device: str = "cpu",
) -> Parameters:
    """The checkpoint's parameters on `device`, streamed through the host as vLLM does."""
    paths = shard_paths(directory)
    return consumer(loader(paths, memory_limit=memory_limit), paths, device)


def load_plain(
    directory: str | Path, consumer: Consumer = keeps_the_pair, device: str = "cpu"
) -> Parameters:
    """The same parameters by safetensors alone."""
    paths = shard_paths(directory)
    return consumer(plain(paths), paths, device)


def outcome(
    directory: str | Path,
    parameters: Parameters,
    reference: Parameters,
    prompt: str,
    characters: int,
    device: str = "cpu",
) -> Outcome:
    """Builds the model, lets it continue `prompt`, and measures the true continuation."""
    built = model.build(directory, parameters, device)
    truth = course.continuation(prompt, characters)
    losses = model.losses(built, prompt + truth)
    return Outcome(
        model.generate(built, prompt, characters),
        fmean(losses[-len(truth) :]),
        wrong_parameters(parameters, reference),
        losses,
    )


def reproduce(
    directory: str | Path = course.CHECKPOINT,
    *,
    memory_limit: int | None = 0,
    device: str = "cpu",
    on_outcome: Callable[[], None] = lambda: None,
) -> Reproduction:
    """Loads through `borrowed` and through `cloned`, and lets both continue the long prompt.

    `on_outcome` is called after each of the three models has written.
    Raises `CaseStudyError` if there is no such device, `CheckpointError` if `directory` is not a
    whole checkpoint of the tiny model's architecture.
    """
    model.check_device(device)
    prompt = course.long_prompt()
    reference = load_plain(directory, device=device)
    loaded = {
        "reference": reference,
        "borrowed": load(directory, borrowed, memory_limit=memory_limit, device=device),
        "cloned": load(directory, cloned, memory_limit=memory_limit, device=device),
    }
    outcomes = {}
    for name, parameters in loaded.items():
        outcomes[name] = outcome(
            directory, parameters, reference, prompt, course.LONG_CONTINUATION, device
        )
        on_outcome()
    if not isfinite(outcomes["reference"].loss):
        raise CheckpointError(
            f"the model in {directory} is broken before any loader touches it: its loss on the "
            f"tale is {outcomes['reference'].loss}; restore the checkpoint."
        )
    return Reproduction(streamer_version(), memory_limit, device, prompt, **outcomes)


def diagnosis(result: Reproduction) -> str:
    """Why the bug did not show, in a sentence that names the setting or the release."""
    if not result.fixed:
        return f"`cloned` is not what safetensors loads: {result.cloned.wrong or 'another text'}."
    if result.memory_limit != 0:
        limit = "the default" if result.memory_limit is None else str(result.memory_limit)
        return (
            f"The bug is there but did not show: with a memory limit of {limit} the buffer holds "
            f"each pair's first half until the second has come; use --memory-limit 0."
        )
    return (
        f"The bug did not show although the memory limit is 0: runai-model-streamer "
        f"{result.streamer} did not overwrite what it had lent; 0.15.8 does."
    )
