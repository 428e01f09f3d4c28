"""For pytest: `lending_iterator`, `guarded` and the marker `owned_iterator`.

It comes with the package; nothing needs to be switched on, and a test that does not use it pays
nothing for it: torch is not even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from casestudy.guard import Guard

MARKER = "owned_iterator"
SHOWN = 5  # as many findings are spelt out


@dataclass
class _Watched:
    """The guards of one test."""

    owned: bool
    guards: list[Guard[Any]] = field(default_factory=list)


_WATCHED = pytest.StashKey[_Watched]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}: what the iterators given to `guarded` yield must stay valid for as long as it "
        f"is held; all of it is kept, with the streamer's buffers forced down to the smallest.",
    )


@pytest.fixture
def lending_iterator() -> Callable[..., Iterator[tuple[str, Any]]]:
    """`casestudy.twin.lend`, in quarantine unless told otherwise: stale floats turn NaN.

    lending_iterator(tensors, slots=1, order="file", on_recycle="quarantine", seed=0) takes tensors
    by name, and yields (name, tensor) as a streamer does that uses its buffer again.
    """
    from casestudy.twin import lend

    return partial(lend, on_recycle="quarantine")


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[Callable[..., Iterator[Any]]]:
    """Wraps an iterator of (name, tensor); the test fails if a tensor is kept and overwritten.

    guarded(iterator, mode="exact", digest="full") takes the settings of `casestudy.guard.guard`.
    The streamer's buffers are forced down to the smallest. Under `@pytest.mark.owned_iterator`
    everything that is yielded is kept to the end of the test, and there are no settings.
    """
    from casestudy.guard import guard
    from casestudy.guard.exact import KeepingGuard
    from casestudy.loaders import smallest_buffers

    watched = _Watched(owned=_is_marked(request.node))
    request.node.stash[_WATCHED] = watched

    def wrap(iterator: Iterable[Any], **settings: Any) -> Iterator[Any]:  # noqa: ANN401
        if watched.owned:
            watched.guards.append(KeepingGuard(iterator, "record", "full", **settings))
        else:
            settings = {"digest": "full", **settings}
            watched.guards.append(guard(iterator, on_stale="record", **settings))
        return watched.guards[-1]

    with smallest_buffers():
        yield wrap


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    watched = item.stash.get(_WATCHED, None)
    if watched is not None:
        _judge(watched)
    elif _is_marked(item):
        pytest.fail(
            f"{MARKER} looks at what goes through the fixture `guarded`; use it.", pytrace=False
        )
    return result


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker(MARKER) is not None


def _judge(watched: _Watched) -> None:
    for each in watched.guards:
        each.close()
    stale = [found for each in watched.guards for found in each.stale]
    seen = sum(each.yielded - len(each.unwatched) for each in watched.guards)
    if watched.owned and not seen:
        pytest.fail(
            f"{MARKER}: no tensor went through `guarded`, so nothing was tested.", pytrace=False
        )
    if watched.owned and stale:
        names = ", ".join(found.victim for found in stale[:SHOWN]) + (" …" if stale[SHOWN:] else "")
        pytest.fail(
            f"the iterator lends: {len(stale)} of {seen} tensors were overwritten "
            f"while they were held ({names}). Yield a copy of each.",
            pytrace=False,
        )
    if stale:
        more = [f"and {len(stale) - SHOWN} more"] if stale[SHOWN:] else []
        lines = ["kept and overwritten:", *map(str, stale[:SHOWN]), *more]
        pytest.fail("\n".join(lines), pytrace=False)
