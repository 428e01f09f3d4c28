"""A case study of one bug: a loader lends views of a buffer it reuses, and someone keeps one.

loaders     who yields: `borrowed` (the bug), `cloned` (the fix)
consumers   who keeps: the incident's loader in three versions
guard       for any loader: who kept a tensor, who overwrote it; checks with a report
twin        a lending iterator in plain Python, for tests of consumers
idioms      which ways of taking a tensor keep it, and which copy
aliasing    byte spans and overlaps
trace       what was yielded, where, and how long it was held
checkpoint  safetensors layout, FP8 blocks
model       the tiny GLM-MoE-DSA model
reproduce   the incident from end to end
plots       pictures

The names below are imported when they are first used: the pytest plugin is loaded by every pytest
that finds this package, and must not bring torch along.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casestudy.aliasing import byte_span, label, overlaps
    from casestudy.consumers import collect
    from casestudy.errors import CaseStudyError
    from casestudy.guard import check_consumer, check_iterator
    from casestudy.loaders import LOADERS, borrowed, cloned, runai_safetensors_weights_iterator
    from casestudy.trace import record
    from casestudy.twin import lend

_HOMES = {
    "aliasing": ("byte_span", "label", "overlaps"),
    "consumers": ("collect",),
    "errors": ("CaseStudyError",),
    "guard": ("check_consumer", "check_iterator"),
    "loaders": ("LOADERS", "borrowed", "cloned", "runai_safetensors_weights_iterator"),
    "trace": ("record",),
    "twin": ("lend",),
}

__all__ = [
    "LOADERS",
    "CaseStudyError",
    "borrowed",
    "byte_span",
    "check_consumer",
    "check_iterator",
    "cloned",
    "collect",
    "label",
    "lend",
    "overlaps",
    "record",
    "runai_safetensors_weights_iterator",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401, any of the names above
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"casestudy.{home}"), name)
    raise AttributeError(f"module 'casestudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
