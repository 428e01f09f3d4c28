"""A guard for any loader: who kept a lent tensor, whose bytes were overwritten, and by whom.

watch     what both guards share: yields, findings, how they are told
exact     reads bytes: finds every tensor kept while its bytes changed
keep      reads none: finds what is held a full step later
loops     loops' own variables, which keep nothing
holders   by which variable, key or attribute something is held
rewrap    a storage of our own for every yield
memory    reading bytes that may be freed
liveness  which variables will be read again
check     `check_iterator` and `check_consumer`, with a report
target    what the command is pointed at
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from casestudy.errors import CaseStudyError
from casestudy.guard.check import Report, check_consumer, check_iterator
from casestudy.guard.exact import ExactGuard
from casestudy.guard.holders import Holder
from casestudy.guard.keep import KeepGuard
from casestudy.guard.memory import Digest
from casestudy.guard.watch import Guard, Item, OnStale, Stale, StaleTensorError, StaleTensorWarning

__all__ = [
    "Guard",
    "Holder",
    "Report",
    "Stale",
    "StaleTensorError",
    "StaleTensorWarning",
    "check_consumer",
    "check_iterator",
    "guard",
]

Mode = Literal["exact", "keep"]


def guard(
    iterator: Iterable[Item],
    *,
    on_stale: OnStale = "raise",
    mode: Mode = "exact",
    digest: Digest = "sampled",
) -> Guard[Item]:
    """Wraps any iterator of (name, tensor) or (name, tensor, extra); yields the same.

    on_stale: "raise" a `StaleTensorError`, at the latest when the iterator ends; "warn" with a
        `StaleTensorWarning`; "record" only, in `Guard.stale`.
    mode: "exact" finds every tensor that was kept, by any view of it, while its bytes changed;
        "keep" looks at no bytes and finds what is held a full step later, whether or not it was
        overwritten this time.
    digest: "sampled" reads 16 windows of 64 bytes of what is longer than 16 KiB, "full" all bytes.

    The tensors that it yields lie on the same bytes as the iterator's own, in storages of their
    own. Iterate inside `with guard(...) as weights:` if the loop may be left early.

    It cannot see a bare integer address, a device copy that is still in flight, nor bytes that
    change while the tensor is lent and not kept. A consumer that writes into a tensor through
    NumPy or `.data` and keeps it is reported, since nothing tells that write from the iterator's.

    Raises `CaseStudyError` for other settings and for an iterator that is guarded already.
    """
    for value, allowed in ((on_stale, OnStale), (mode, Mode), (digest, Digest)):
        if value not in get_args(allowed):
            choices = ", ".join(get_args(allowed))
            raise CaseStudyError(f"{value!r} is none of guard's settings; use one of {choices}.")
    if isinstance(iterator, Guard):
        raise CaseStudyError("this iterator is guarded already; guard it once.")
    if mode == "keep":
        return KeepGuard(iterator, on_stale)
    return ExactGuard(iterator, on_stale, digest)
