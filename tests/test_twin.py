"""The lending contract, held by the twin and by the real streamer alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from casestudy.aliasing import byte_span, overlaps
from casestudy.checkpoint import DTYPES, read_layout
from casestudy.consumers import wrong_parameters
from casestudy.errors import CaseStudyError
from casestudy.loaders import borrowed
from casestudy.twin import lend

Pairs = Iterator[tuple[str, torch.Tensor]]
Lender = Callable[[dict[str, torch.Tensor]], Pairs]


def equal_tensors() -> dict[str, torch.Tensor]:
    """Ten of 16 KiB, with a value of their own each: large enough for every release."""
    return {f"t{number}": torch.full((4096,), float(number + 1)) for number in range(10)}


def mixed_tensors() -> dict[str, torch.Tensor]:
    """Three dtypes and sizes in the file's own order, and any two too large for one request."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "wide": (torch.float32, (24, 8)),
        "scale": (torch.float32, (20, 8)),
        "norm": (torch.bfloat16, (352,)),
        "weight": (torch.float8_e4m3fn, (23, 32)),
    }
    return {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, (dtype, shape) in shapes.items()
    }


@pytest.fixture(params=["the twin", "the streamer"])
def lender(request: pytest.FixtureRequest, tmp_path: Path) -> Lender:
    def stream(named: dict[str, torch.Tensor]) -> Pairs:
        path = tmp_path / "lent.safetensors"
        save_file(named, path)
        return borrowed(path, memory_limit=0)

    return lend if request.param == "the twin" else stream


# the contract


@pytest.mark.parametrize("make", [equal_tensors, mixed_tensors])
def test_every_tensor_is_right_during_its_own_step(
    lender: Lender, make: Callable[[], dict[str, torch.Tensor]]
) -> None:
    named = make()
    seen = {name: tensor.clone() for name, tensor in lender(named)}
    assert wrong_parameters(seen, named) == []


def test_every_kept_tensor_but_the_last_is_overwritten(lender: Lender) -> None:
    named = equal_tensors()
    kept = dict(lender(named))
    assert wrong_parameters(kept, named) == sorted(named)[:-1]


def test_kept_tensors_of_several_sizes_are_overwritten_from_the_front(lender: Lender) -> None:
    named = mixed_tensors()
    kept = dict(lender(named))
    last = list(kept)[-1]
    assert wrong_parameters(kept, named) == sorted(named.keys() - {last})
    assert len({byte_span(tensor).start for tensor in kept.values()}) == 1


def test_each_has_a_storage_of_its_own_over_the_same_bytes(lender: Lender) -> None:
    kept = dict(lender(mixed_tensors()))
    assert len({tensor.untyped_storage()._cdata for tensor in kept.values()}) == len(kept)
    assert {tensor.storage_offset() for tensor in kept.values()} == {0}
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in kept.values())
    assert len(overlaps(kept)) == len(kept) * (len(kept) - 1) // 2


def test_the_order_is_that_of_a_file(lender: Lender) -> None:
    assert [name for name, _ in lender(mixed_tensors())] == ["scale", "wide", "norm", "weight"]


def test_a_second_iterator_brings_right_tensors_again(lender: Lender) -> None:
    named = equal_tensors()
    dict(lender(named))
    assert wrong_parameters({n: t.clone() for n, t in lender(named)}, named) == []


def test_leaving_early_is_allowed(lender: Lender) -> None:
    named = equal_tensors()
    for name, tensor in lender(named):
        assert torch.equal(tensor, named[name])
        break


# what the twin adds


def test_file_order_is_that_of_safetensors_for_every_dtype(tmp_path: Path) -> None:
    named = {
        f"{letter}.{name}": torch.zeros(2).to(dtype)
        for letter in "ba"
        for name, dtype in DTYPES.items()
    }
    path = tmp_path / "every.safetensors"
    save_file(named, path)
    assert [name for name, _ in lend(named)] == [entry.name for entry in read_layout(path)]


@pytest.mark.parametrize("slots", [1, 2, 3, 10])
def test_a_tensor_lives_for_as_many_steps_as_there_are_slots(slots: int) -> None:
    named = equal_tensors()
    window: list[tuple[str, torch.Tensor]] = []
    for pair in lend(named, slots=slots):
        window = [*window, pair][-slots:]
        assert all(torch.equal(tensor, named[name]) for name, tensor in window)
    kept = dict(lend(named, slots=slots))
    assert wrong_parameters(kept, named) == sorted(named)[:-slots]


@given(st.integers(0, 1000), st.integers(1, 4))
def test_shuffling_is_decided_by_the_seed(seed: int, slots: int) -> None:
    named = {f"t{number}": torch.full((4,), float(number)) for number in range(6)}
    first, second = (
        [
            (name, tensor.tolist())
            for name, tensor in lend(named, slots=slots, order="shuffled", seed=seed)
        ]
        for _ in range(2)
    )
    assert first == second
    assert sorted(name for name, _ in first) == sorted(named)


def test_different_seeds_shuffle_differently() -> None:
    orders = {
        tuple(name for name, _ in lend(equal_tensors(), order="shuffled", seed=seed))
        for seed in range(5)
    }
    assert len(orders) == 5


@pytest.mark.parametrize(
    ("dtype", "stale"),
    [
        (torch.float32, torch.isnan),
        (torch.bfloat16, torch.isnan),
        (torch.float8_e4m3fn, lambda t: t.float().isnan()),
        (torch.float8_e5m2, lambda t: t.float().isnan()),
        (torch.int64, lambda t: t == -1),
        (torch.int8, lambda t: t == -1),
        (torch.uint8, lambda t: t == 255),
    ],
)
def test_quarantine_poisons_what_is_stale_and_nothing_else(
    dtype: torch.dtype, stale: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    named = {f"t{number}": torch.full((8,), number + 1).to(dtype) for number in range(4)}
    kept = dict(lend(named, on_recycle="quarantine"))
    assert [bool(stale(tensor).all()) for tensor in kept.values()] == [True, True, True, False]
    assert not stale(kept["t3"]).any()


def test_quarantine_is_seen_by_who_waits_for_a_pair() -> None:
    """An overwritten half looks like any tensor when its partner comes; a poisoned one does not."""
    named = {"a": torch.ones(8), "b": torch.full((8,), 2.0)}

    def waits(pairs: Pairs) -> torch.Tensor:
        waiting = None
        for _, tensor in pairs:
            if waiting is None:
                waiting = tensor
            else:
                return waiting * tensor
        raise AssertionError("no pair")

    assert torch.equal(waits(lend(named)), torch.full((8,), 4.0))
    assert waits(lend(named, on_recycle="quarantine")).isnan().all()


def test_a_quarantined_buffer_is_never_filled_again() -> None:
    kept = []
    for _, tensor in lend(equal_tensors(), on_recycle="quarantine"):
        kept.append(tensor)
        assert all(bool(each.isnan().all()) for each in kept[:-1])


def test_every_layout_can_be_lent_and_no_input_is_written() -> None:
    base = torch.arange(24.0).view(4, 6)
    named = {
        "transposed": base.T,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "expanded": torch.ones(1).expand(4),
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    for name, tensor in lend(named):
        assert torch.equal(tensor, named[name]), name
        assert tensor.shape == named[name].shape
        tensor.zero_()
    assert base.sum() == 276
    assert list(lend({})) == []


def test_pairs_will_do_and_are_read_at_the_first_next() -> None:
    read = []

    def pairs() -> Pairs:
        for name, tensor in equal_tensors().items():
            read.append(name)
            yield name, tensor

    lent = lend(pairs())
    assert read == []
    next(lent)
    assert len(read) == 10


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"slots": 0}, "use at least one"),
        ({"order": "sorted"}, "use file or shuffled"),
        ({"on_recycle": "poison"}, "use overwrite or quarantine"),
    ],
)
def test_settings_that_make_no_sense_are_told_at_the_call(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(CaseStudyError, match=told):
        lend({}, **settings)


def test_it_needs_torch_alone() -> None:
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(['runai_model_streamer', 'safetensors']))"
    )
    code = (
        f"{blocked}; import torch; from casestudy.twin import lend;"
        "print(len(dict(lend({'a': torch.ones(2)}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
