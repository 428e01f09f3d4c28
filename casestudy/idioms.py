"""Ways to take tensors from an iterator, and which of them keep what was only lent.

Each idiom is run, not judged: it reports every tensor at the moment it uses it, and the bytes are
compared with a plain load. What the guard says of the same run stands beside it.
"""

from __future__ import annotations

import copy
import io
import itertools
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from casestudy.aliasing import tensor_bytes
from casestudy.guard import Stale, guard
from casestudy.loaders import borrowed, plain

Weights = Iterable[tuple[str, torch.Tensor]]
Use = Callable[[str, Any], None]
Consume = Callable[[Weights, Use], None]

WINDOW = 8


@dataclass(frozen=True)
class Idiom:
    """name: what is done. code: its one telling line.

    consume: takes (name, tensor) pairs and calls its second argument with a name and what stands
        for that tensor whenever it reads one.
    expected: what it must be given a tensor's right value, to compare.
    """

    name: str
    code: str
    consume: Consume
    expected: Callable[[torch.Tensor], Any] = lambda tensor: tensor


@dataclass(frozen=True)
class Answer:
    """wrong: names whose bytes were not their own when they were used. stale: the guard's word."""

    idiom: Idiom
    wrong: list[str]
    stale: list[Stale]

    @property
    def truth(self) -> str:
        return "stale" if self.wrong else "sound"

    @property
    def verdict(self) -> str:
        return "stale" if self.stale else "sound"

    @property
    def held_by(self) -> str:
        """The path of the first victim's holder, as far as it is known."""
        holder = self.stale[0].held_by if self.stale else None
        return holder.path if holder else ""


def answer(idiom: Idiom, weights: Weights, reference: dict[str, torch.Tensor]) -> Answer:
    """Runs an idiom on `weights`, guarded; `reference` holds every tensor's right value."""
    wrong: list[str] = []

    def use(name: str, thing: Any) -> None:  # noqa: ANN401, whatever an idiom makes of a tensor
        if _bytes(thing) != _bytes(idiom.expected(reference[name])):
            wrong.append(name)

    watched = guard(weights, on_stale="record")
    idiom.consume(watched, use)
    watched.close()
    return Answer(idiom, sorted(set(wrong)), watched.stale)


def answer_key(path: str | Path) -> list[Answer]:
    """Every idiom that this machine can run, on the streamer's own views at memory limit 0.

    path: a safetensors file of float32 matrices. Raises as a `Loader` does.
    """
    reference = {name: tensor.clone() for name, tensor in plain(path)}
    return [
        answer(idiom, borrowed(path, memory_limit=0), reference)
        for idiom in IDIOMS
        if idiom.name != PIN_MEMORY or torch.cuda.is_available()
    ]


def write_matrices(folder: str | Path) -> Path:
    """Writes `matrices.safetensors`, ten float32 [64, 64] with no value twice; returns its path."""
    path = Path(folder) / "matrices.safetensors"
    size = 64 * 64
    save_file(
        {f"t{n}": torch.arange(n * size, (n + 1) * size).float().view(64, 64) for n in range(10)},
        path,
    )
    return path


def _bytes(thing: Any) -> bytes:  # noqa: ANN401
    if isinstance(thing, torch.UntypedStorage):
        thing = torch.empty(0, dtype=torch.uint8).set_(thing)
    if not isinstance(thing, torch.Tensor):
        return np.asarray(thing, order="C").tobytes()
    return tensor_bytes(thing)


def _keeping(keep: Callable[[torch.Tensor], Any]) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        kept = {}
        for name, tensor in weights:
            kept[name] = keep(tensor)
        for name, thing in kept.items():
            use(name, thing)

    return consume


def _using(at_once: Callable[[torch.Tensor], Any]) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        for name, tensor in weights:
            use(name, at_once(tensor))

    return consume


def _view_at_once(weights: Weights, use: Use) -> None:
    for name, tensor in weights:
        shard = tensor[:2]
        use(name, shard)


def _collecting(collect: Callable[[Weights], Iterable[tuple[str, torch.Tensor]]]) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        kept = collect(weights)
        for name, tensor in kept:
            use(name, tensor)

    return consume


def _previous(weights: Weights, use: Use) -> None:
    before: tuple[str, torch.Tensor] | None = None
    for name, tensor in weights:
        if before is not None:
            use(*before)
        before = name, tensor
    if before is not None:
        use(*before)


def _window(weights: Weights, use: Use) -> None:
    window: deque[tuple[str, torch.Tensor]] = deque(maxlen=WINDOW)
    for pair in weights:
        if len(window) == WINDOW:
            use(*window[0])
        window.append(pair)
    for pair in window:
        use(*pair)


def _pair(weights: Weights, use: Use) -> None:
    waiting: dict[int, tuple[str, torch.Tensor]] = {}
    for number, (name, tensor) in enumerate(weights):
        partner = waiting.pop(number // 2, None)
        if partner is None:
            waiting[number // 2] = name, tensor
        else:
            use(*partner)
            use(name, tensor)


def _clone_too_late(weights: Weights, use: Use) -> None:
    waiting: list[tuple[str, torch.Tensor]] = []
    for name, tensor in weights:
        waiting.append((name, tensor))
        if len(waiting) == 2:
            pair = [(each, half.clone()) for each, half in waiting]
            waiting.clear()
            for each, half in pair:
                use(each, half)


def _clone_the_waiting(weights: Weights, use: Use) -> None:
    waiting: dict[int, tuple[str, torch.Tensor]] = {}
    for number, (name, tensor) in enumerate(weights):
        if number // 2 in waiting:
            use(*waiting.pop(number // 2))
            use(name, tensor)
        else:
            waiting[number // 2] = name, tensor.clone()


def _group(weights: Weights, use: Use) -> None:
    for _, group in itertools.groupby(weights, key=lambda pair: pair[0][0]):
        batch = list(group)
        for name, tensor in batch:
            use(name, tensor)


def _group_at_once(weights: Weights, use: Use) -> None:
    for _, group in itertools.groupby(weights, key=lambda pair: pair[0][0]):
        for name, tensor in group:
            use(name, tensor)


def _look_ahead(weights: Weights, use: Use) -> None:
    def one_behind() -> Iterator[tuple[str, torch.Tensor]]:
        held = None
        for pair in weights:
            if held is not None:
                yield held
            held = pair
        if held is not None:
            yield held

    for name, tensor in one_behind():
        use(name, tensor)


def _probe(weights: Weights, use: Use) -> None:
    """As a loader does that reads on until it knows which model the weights are for."""
    iterator = iter(weights)
    seen = deque(itertools.islice(iterator, 3))
    while seen:
        use(*seen.popleft())
    for name, tensor in iterator:
        use(name, tensor)


def _peek(weights: Weights, use: Use) -> None:
    iterator = iter(weights)
    first = iter([next(iterator)])  # an iterator lets go of what it has passed, a list does not
    for name, tensor in itertools.chain(first, iterator):
        use(name, tensor)


def _tee(weights: Weights, use: Use) -> None:
    names, tensors = itertools.tee(weights)
    every_name = [name for name, _ in names]
    for name, (_, tensor) in zip(every_name, tensors, strict=True):
        use(name, tensor)


def _pairwise(weights: Weights, use: Use) -> None:
    for before, after in itertools.pairwise(weights):
        use(*before)
        use(*after)


def _thread_pool(weights: Weights, use: Use) -> None:
    all_submitted = threading.Event()  # a slow copy, but the same one on every run

    def copy_later(name: str, tensor: torch.Tensor) -> None:
        all_submitted.wait()
        use(name, tensor)

    with ThreadPoolExecutor(2) as pool:
        for name, tensor in weights:
            pool.submit(copy_later, name, tensor)
        all_submitted.set()


def _thread_pool_of_copies(weights: Weights, use: Use) -> None:
    with ThreadPoolExecutor(2) as pool:
        for name, tensor in weights:
            pool.submit(use, name, tensor.clone())


def _deferred(defer: Callable[[Use, str, torch.Tensor], Callable[[], None]]) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        later = []
        for name, tensor in weights:
            later.append(defer(use, name, tensor))
        for call in later:
            call()

    return consume


def _cat_at_the_end(weights: Weights, use: Use) -> None:
    names, parts = [], []
    for name, tensor in weights:
        names.append(name)
        parts.append(tensor)
    for name, part in zip(names, torch.stack(parts), strict=True):
        use(name, part)


def _cat_as_it_goes(weights: Weights, use: Use) -> None:
    names, fused = [], None
    for name, tensor in weights:
        names.append(name)
        part = tensor[None]
        fused = part.clone() if fused is None else torch.cat([fused, part])
        del part  # a name that lives on is a hold as well
    for name, part in zip(names, fused if fused is not None else (), strict=True):
        use(name, part)


def _parameters(fill: Callable[[nn.Parameter, torch.Tensor], None]) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        model = nn.ParameterDict()
        for name, tensor in weights:
            model[name] = nn.Parameter(torch.empty(tensor.shape), requires_grad=False)
            fill(model[name], tensor)
        for name, parameter in model.items():
            use(name, parameter)

    return consume


def _set_data(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    parameter.data = tensor


def _copy_into(parameter: nn.Parameter, tensor: torch.Tensor) -> None:
    parameter.copy_(tensor)


def _load_state_dict(assign: bool) -> Consume:
    def consume(weights: Weights, use: Use) -> None:
        model = nn.ParameterDict()
        for name, tensor in weights:
            model[name] = nn.Parameter(torch.empty(tensor.shape), requires_grad=False)
            model.load_state_dict({name: tensor}, strict=False, assign=assign)
        for name, parameter in model.items():
            use(name, parameter)

    return consume


def _attribute(weights: Weights, use: Use) -> None:
    model = nn.Module()
    for name, tensor in weights:
        model.register_buffer(name, tensor)
    for name, tensor in model.named_buffers():
        use(name, tensor)


def _save(weights: Weights, use: Use) -> None:
    files = {}
    for name, tensor in weights:
        files[name] = io.BytesIO()
        torch.save(tensor, files[name])
    for name, file in files.items():
        file.seek(0)
        use(name, torch.load(file))


PIN_MEMORY = "keep `.pin_memory()`"

IDIOMS = [
    Idiom("use at once", "use(tensor)", _using(lambda t: t)),
    Idiom("keep the tensor", "kept[name] = tensor", _keeping(lambda t: t)),
    Idiom("keep a slice", "kept[name] = tensor[:2]", _keeping(lambda t: t[:2]), lambda t: t[:2]),
    Idiom("keep a transpose", "kept[name] = tensor.T", _keeping(lambda t: t.T), lambda t: t.T),
    Idiom(
        "keep another dtype",
        "kept[name] = tensor.view(torch.int16)",
        _keeping(lambda t: t.view(torch.int16)),
    ),
    Idiom("keep `.reshape`", "kept[name] = tensor.reshape(-1)", _keeping(lambda t: t.reshape(-1))),
    Idiom("keep `.detach()`", "kept[name] = tensor.detach()", _keeping(lambda t: t.detach())),
    Idiom("keep `.data`", "kept[name] = tensor.data", _keeping(lambda t: t.data)),
    Idiom(
        "keep `.contiguous()`",
        "kept[name] = tensor.contiguous()",
        _keeping(lambda t: t.contiguous()),
    ),
    Idiom(
        "keep `.to` the device", 'kept[name] = tensor.to("cpu")', _keeping(lambda t: t.to("cpu"))
    ),
    Idiom(
        "keep `.to`, non-blocking",
        'kept[name] = tensor.to("cpu", non_blocking=True)',
        _keeping(lambda t: t.to("cpu", non_blocking=True)),
    ),
    Idiom(
        "keep `.to` the same dtype",
        "kept[name] = tensor.to(tensor.dtype)",
        _keeping(lambda t: t.to(t.dtype)),
    ),
    Idiom(
        "keep `.to` another dtype",
        "kept[name] = tensor.to(torch.bfloat16)",
        _keeping(lambda t: t.to(torch.bfloat16)),
        lambda t: t.to(torch.bfloat16),
    ),
    Idiom(PIN_MEMORY, "kept[name] = tensor.pin_memory()", _keeping(lambda t: t.pin_memory())),
    Idiom("keep `.numpy()`", "kept[name] = tensor.numpy()", _keeping(lambda t: t.numpy())),
    Idiom(
        "keep a copy of `.numpy()`",
        "kept[name] = tensor.numpy().copy()",
        _keeping(lambda t: t.numpy().copy()),
    ),
    Idiom(
        "keep a memoryview",
        "kept[name] = memoryview(tensor.numpy())",
        _keeping(lambda t: memoryview(t.numpy())),  # type: ignore[arg-type]
    ),
    Idiom(
        "keep through DLPack",
        "kept[name] = np.from_dlpack(tensor)",
        _keeping(lambda t: np.from_dlpack(t)),
    ),
    Idiom(
        "keep the storage",
        "kept[name] = tensor.untyped_storage()",
        _keeping(lambda t: t.untyped_storage()),
    ),
    Idiom("keep `copy.copy`", "kept[name] = copy.copy(tensor)", _keeping(copy.copy)),
    Idiom("keep `copy.deepcopy`", "kept[name] = copy.deepcopy(tensor)", _keeping(copy.deepcopy)),
    Idiom("keep a clone", "kept[name] = tensor.clone()", _keeping(lambda t: t.clone())),
    Idiom("keep a sum", "kept[name] = tensor + 0", _keeping(lambda t: t + 0)),
    Idiom(
        "keep a list of numbers",
        "kept[name] = tensor.tolist()",
        _keeping(lambda t: t.tolist()),
        lambda t: t.double(),
    ),
    Idiom(
        "keep a Parameter of it",
        "kept[name] = nn.Parameter(tensor)",
        _keeping(lambda t: nn.Parameter(t, requires_grad=False)),
    ),
    Idiom("set `param.data`", "param.data = tensor", _parameters(_set_data)),
    Idiom(
        "copy into a parameter",
        "param.copy_(tensor)",
        _parameters(_copy_into),
    ),
    Idiom(
        "`load_state_dict`, assigning",
        "model.load_state_dict({name: tensor}, assign=True)",
        _load_state_dict(assign=True),
    ),
    Idiom(
        "`load_state_dict`, copying",
        "model.load_state_dict({name: tensor})",
        _load_state_dict(assign=False),
    ),
    Idiom("register a buffer", "model.register_buffer(name, tensor)", _attribute),
    Idiom("save at once", "torch.save(tensor, file)", _save),
    Idiom("collect in a dict", "kept = dict(weights)", _collecting(lambda w: dict(w).items())),
    Idiom("collect in a list", "kept = list(weights)", _collecting(list)),
    Idiom(
        "sort",
        "kept = sorted(weights, key=itemgetter(0))",
        _collecting(lambda w: sorted(w, key=operator.itemgetter(0))),
    ),
    Idiom("unpack with a star", "kept = (*weights,)", _collecting(lambda w: (*w,))),
    Idiom(
        "unzip",
        "names, tensors = zip(*weights)",
        _collecting(lambda w: zip(*zip(*w, strict=True), strict=True)),
    ),
    Idiom("hold the previous one", "before = tensor", _previous),
    Idiom("two at a time", "for before, after in pairwise(weights)", _pairwise),
    Idiom("a window", f"window = deque(maxlen={WINDOW})", _window),
    Idiom("wait for a partner", "waiting[layer] = tensor", _pair),
    Idiom(
        "wait for a partner, then clone both",
        "pair = [t.clone() for t in waiting]",
        _clone_too_late,
    ),
    Idiom("clone whoever waits", "waiting[layer] = tensor.clone()", _clone_the_waiting),
    Idiom("group, and list each group", "batch = list(group)", _group),
    Idiom("group, and use at once", "for name, tensor in group", _group_at_once),
    Idiom("a generator that looks ahead", "yield held; held = pair", _look_ahead),
    Idiom("probe a few, then go on", "seen = deque(islice(weights, 3))", _probe),
    Idiom("peek at one, then chain", "chain(iter([next(weights)]), weights)", _peek),
    Idiom("`itertools.tee`", "names, tensors = tee(weights)", _tee),
    Idiom("a thread pool", "pool.submit(copy, tensor)", _thread_pool),
    Idiom(
        "a thread pool, given copies", "pool.submit(copy, tensor.clone())", _thread_pool_of_copies
    ),
    Idiom(
        "`functools.partial`",
        "later.append(partial(use, tensor))",
        _deferred(lambda use, name, tensor: partial(use, name, tensor)),
    ),
    Idiom(
        "a closure",
        "later.append(lambda: use(tensor))",
        _deferred(lambda use, name, tensor: lambda: use(name, tensor)),
    ),
    Idiom("stack at the end", "torch.stack(parts)", _cat_at_the_end),
    Idiom("concatenate as it goes", "fused = torch.cat([fused, tensor])", _cat_as_it_goes),
    Idiom("use a view at once", "shard = tensor[:2]", _view_at_once, lambda t: t[:2]),
]
