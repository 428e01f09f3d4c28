"""A loader with the model on a device: is everything right, and what does the copy cost?"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from casestudy import course, model
from casestudy.consumers import Parameters, wrong_parameters
from casestudy.loaders import Loader, cloned
from casestudy.reproduce import load, load_plain


@dataclass
class DeviceRun:
    """What a run on `device` showed.

    wrong: parameters that differ from a plain safetensors load; empty as it should be.
    text_equal: whether the text is the tale's, to the letter.
    parameter_bytes: how much was copied from the host; copy_seconds: how long that took.
    peak_bytes: the most that torch held on the GPU at once; None on the CPU.
    """

    device: str
    wrong: list[str]
    text: str
    text_equal: bool
    parameter_bytes: int
    copy_seconds: float
    peak_bytes: int | None


def best_device() -> str:
    """`cuda` where torch sees a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def run_on_device(device: str, loader: Loader = cloned) -> DeviceRun:
    """Loads the course's checkpoint through `loader` onto `device`, at limit 0, and lets it write.

    Raises `CaseStudyError` if `device` is cuda and there is no GPU.
    """
    model.check_device(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    parameters = load(course.CHECKPOINT, loader, device=device)
    wrong = wrong_parameters(parameters, load_plain(course.CHECKPOINT))
    prompt = course.long_prompt()
    text = model.generate(
        model.build(course.CHECKPOINT, parameters, device), prompt, course.LONG_CONTINUATION
    )
    return DeviceRun(
        device=device,
        wrong=wrong,
        text=text,
        text_equal=text == course.continuation(prompt),
        parameter_bytes=sum(tensor.nbytes for tensor in parameters.values()),
        copy_seconds=_copy_seconds(load(course.CHECKPOINT, cloned), device),
        peak_bytes=torch.cuda.max_memory_allocated() if device == "cuda" else None,
    )


def _copy_seconds(on_host: Parameters, device: str) -> float:
    """How long a synchronous copy of every parameter from the host takes."""
    targets = {name: torch.empty_like(tensor, device=device) for name, tensor in on_host.items()}
    start = time.perf_counter()
    for name, tensor in on_host.items():
        targets[name].copy_(tensor)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
