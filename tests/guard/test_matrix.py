"""Seven consumers on eight iterators, under every release: truth and guard agree."""

from __future__ import annotations

from typing import Any

import pytest

from casestudy.releases import RELEASES
from tests import test_releases
from tests.guard.matrix_probe import CONSUMERS

LENDS = {"borrowed, limit 0", "borrowed, limit 256 MiB", "staging", "the same tensor"}
OWNS = {"cloned", "safetensors", "tied"}
BY_RELEASE = "the library's default, limit 0"


def probe(release: str) -> dict[str, Any]:
    return test_releases.probe(release, "tests.guard.matrix_probe")


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_missed_and_nothing_is_alarmed_at(release: str) -> None:
    cells = probe(release)["cells"]
    assert len(cells) == len(CONSUMERS) * (len(LENDS) + len(OWNS) + 1)
    assert {cell: stale for cell, (_, stale) in cells.items()} == {
        cell: wrong for cell, (wrong, _) in cells.items()
    }


@pytest.mark.parametrize("release", RELEASES)
def test_the_matrix_has_both_kinds_of_cells(release: str) -> None:
    cells = {cell: wrong for cell, (wrong, _) in probe(release)["cells"].items()}
    for keeper in ("keep all", "view", "numpy", "window", "thread pool", "pair"):
        assert len(cells[f"{keeper}, borrowed, limit 0"]) >= 6, keeper
        assert cells[f"{keeper}, borrowed, limit 256 MiB"] == []
        assert len(cells[f"{keeper}, the same tensor"]) >= 6, keeper
        assert all(cells[f"{keeper}, {owner}"] == [] for owner in OWNS)
    assert all(cells[f"drop, {lender}"] == [] for lender in LENDS | OWNS | {BY_RELEASE})


@pytest.mark.parametrize("release", RELEASES)
def test_the_check_gives_every_iterator_its_verdict(release: str) -> None:
    lends_by_default = release in RELEASES[:2]
    assert probe(release)["verdicts"] == {
        **dict.fromkeys(LENDS, "lends"),
        "borrowed, limit 256 MiB": "owned",  # it sets its own limit, which the check cannot undo
        **dict.fromkeys(OWNS, "owned"),
        BY_RELEASE: "lends" if lends_by_default else "owned",
    }
