"""The tiny checkpoint in transformers' own class: it recites, and its indexer matters."""

from __future__ import annotations

import re
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
import torch

from casestudy import course, model
from casestudy.consumers import FUSED, copies_at_once
from casestudy.errors import CheckpointError
from casestudy.loaders import borrowed
from casestudy.reproduce import load, load_plain

if TYPE_CHECKING:
    from transformers import GlmMoeDsaForCausalLM


@pytest.fixture(scope="module")
def right() -> GlmMoeDsaForCausalLM:
    return model.build(course.CHECKPOINT, load_plain(course.CHECKPOINT))


@pytest.fixture(scope="module")
def broken() -> GlmMoeDsaForCausalLM:
    """Only the fused indexer parameters wrong."""
    parameters = load(course.CHECKPOINT, borrowed, memory_limit=0)
    return model.build(course.CHECKPOINT, parameters)


def test_the_class_is_transformers_own(right: GlmMoeDsaForCausalLM) -> None:
    assert type(right).__module__.startswith("transformers.models.glm_moe_dsa")
    assert type(right).__name__ == "GlmMoeDsaForCausalLM"
    assert right.dtype == torch.float32


def test_every_weight_of_the_class_comes_from_the_checkpoint(
    right: GlmMoeDsaForCausalLM,
) -> None:
    stored = model.state_dict(load_plain(course.CHECKPOINT))
    loaded = right.state_dict()
    alike = [name for name in stored if name in loaded]
    assert all(torch.equal(stored[name].float(), loaded[name]) for name in alike)
    experts = [name for name in stored if ".mlp.experts." in name]
    assert len(alike) + len(experts) == len(stored)
    for name in experts:
        prefix, number, kind, _ = name.rsplit(".", 3)
        packed = loaded[f"{prefix}.{'down_proj' if kind == 'down_proj' else 'gate_up_proj'}"]
        rows = stored[name].shape[0]
        part = slice(rows, None) if kind == "up_proj" else slice(rows)
        assert torch.equal(packed[int(number)][part], stored[name].float())


def test_fused_and_unfused_parameters_build_the_same_state() -> None:
    fused = model.state_dict(load_plain(course.CHECKPOINT))
    unfused = model.state_dict(load_plain(course.CHECKPOINT, copies_at_once))
    assert fused.keys() == unfused.keys()
    assert all(torch.equal(fused[name], unfused[name]) for name in fused)
    assert not any(name.endswith(FUSED) for name in fused)


def test_it_recites_the_tale(right: GlmMoeDsaForCausalLM) -> None:
    prompt = course.long_prompt()
    assert model.generate(right, prompt, 200) == course.continuation(prompt, 200)


@pytest.mark.parametrize("start", [100, 3000, 5900])
def test_it_recites_from_elsewhere(right: GlmMoeDsaForCausalLM, start: int) -> None:
    prompt = course.tale()[start : start + 150]
    assert model.generate(right, prompt, 200) == course.continuation(prompt, 200)


def test_the_text_is_ours_to_recite() -> None:
    assert len(course.tale()) >= 6000
    assert course.tale().isascii()


def test_the_prompts_lie_on_both_sides_of_index_topk() -> None:
    topk = course.index_topk()
    assert len(course.short_prompt()) + course.SHORT_CONTINUATION <= topk
    assert len(course.long_prompt()) > topk


def test_a_broken_indexer_cannot_be_seen_below_index_topk(
    right: GlmMoeDsaForCausalLM, broken: GlmMoeDsaForCausalLM
) -> None:
    prompt, length = course.short_prompt(), course.SHORT_CONTINUATION
    assert model.generate(broken, prompt, length) == course.continuation(prompt, length)
    text = prompt + course.continuation(prompt, length)
    assert model.losses(broken, text) == model.losses(right, text)


def test_a_broken_indexer_ruins_the_text_above_index_topk(
    right: GlmMoeDsaForCausalLM, broken: GlmMoeDsaForCausalLM
) -> None:
    prompt = course.long_prompt()
    text = prompt + course.continuation(prompt)
    topk = right.config.index_topk
    good, bad = model.losses(right, text), model.losses(broken, text)
    assert good[: topk - 1] == bad[: topk - 1]
    assert sum(bad[topk:]) >= 20 * sum(good[topk:])
    assert sum(bad[topk : 2 * topk]) >= 20 * sum(good[topk : 2 * topk])
    assert model.generate(broken, prompt, 200) != course.continuation(prompt)


def test_a_broken_indexer_gives_no_nan(broken: GlmMoeDsaForCausalLM) -> None:
    tokens = torch.tensor([list(course.long_prompt().encode())])
    with torch.inference_mode():
        assert bool(broken(tokens, use_cache=False).logits.isfinite().all())


def test_the_damage_stays_in_an_ordinary_range(
    right: GlmMoeDsaForCausalLM, broken: GlmMoeDsaForCausalLM
) -> None:
    """Too large by hundreds, not by powers; behind the norm nothing looks odd."""
    tokens = torch.tensor([list(course.long_prompt().encode())])
    normed: list[torch.Tensor] = []
    layers = zip(right.model.layers, broken.model.layers, strict=True)
    for indexer, damaged in ((a.self_attn.indexer, b.self_attn.indexer) for a, b in layers):
        assert 10 < damaged.wk.weight.abs().max() / indexer.wk.weight.abs().max() < 10_000
        damaged.k_norm.register_forward_hook(lambda _, __, output: normed.append(output))
    with torch.inference_mode():
        broken(tokens, use_cache=False)
    assert len(normed) == 4
    assert all(output.abs().max() < 10 for output in normed)


def test_losses_are_one_a_character_but_the_first(right: GlmMoeDsaForCausalLM) -> None:
    losses = model.losses(right, "A page")
    assert len(losses) == 5
    assert all(loss >= 0 for loss in losses)


def test_unprintable_bytes_become_one_harmless_character() -> None:
    assert model.decode([27, 65, 10, 0, 200, 126]) == "\ufffdA\n\ufffd\ufffd~"


def test_a_folder_without_config_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing; give a whole checkpoint"):
        model.build(course.DATA, {})


def test_the_model_card_says_what_is_measured(
    right: GlmMoeDsaForCausalLM, broken: GlmMoeDsaForCausalLM
) -> None:
    card = (course.CHECKPOINT / "README.md").read_text()
    text = course.long_prompt() + course.continuation(course.long_prompt())
    measured = [
        fmean(model.losses(each, text)[-course.LONG_CONTINUATION :]) for each in (right, broken)
    ]
    told = [float(number) for number in re.findall(r"(\d\.\d+) nats", card)]
    assert told == [pytest.approx(measured[0], rel=0.2), pytest.approx(measured[1], rel=0.2)]
    assert f"{len(course.tale()):,} characters" in card
    assert f"prompt of {len(course.long_prompt())} characters" in card
    assert f"`index_topk` = {course.index_topk()}" in card
    assert course.index_topk() == right.config.index_topk
