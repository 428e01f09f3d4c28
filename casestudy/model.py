"""The tiny GLM-MoE-DSA model: build it from parameters, let it write, measure its loss.

The only file that imports transformers, and only when a model is built.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from casestudy.checkpoint import SCALE_SUFFIX, dequantise
from casestudy.consumers import FUSED, WEIGHTS_PROJ, WK, Parameters
from casestudy.errors import CaseStudyError, CheckpointError

if TYPE_CHECKING:
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

UNPRINTABLE = "\ufffd"
K_NORM = "indexer.k_norm.weight"


def build(
    directory: str | Path, parameters: Parameters, device: str = "cpu"
) -> GlmMoeDsaForCausalLM:
    """transformers' own class, unmodified, with `parameters` dequantised into it, in float32.

    `directory` holds `config.json`; `parameters` are a consumer's result, fused or not.
    Raises `CheckpointError` if the config is missing or not of this architecture, or if the
    parameters are not exactly those of the model that it describes.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; never ask a hub
    from transformers import GlmMoeDsaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what is missing or left over is an error here, not a report
    config = _read_config(Path(directory) / "config.json")
    try:
        model, report = GlmMoeDsaForCausalLM.from_pretrained(
            None,
            config=config,
            state_dict=state_dict(parameters),
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report
        )
    except (KeyError, RuntimeError, ValueError) as error:
        raise _misfit(directory, str(error)) from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            raise _misfit(directory, f"{kind.replace('_', ' ')}: {min(report[kind])}")
    return model.eval().to(device)


def check_device(device: str) -> None:
    """Raises `CaseStudyError` unless a model can live on `device`: cpu, or cuda where it is."""
    if device not in ("cpu", "cuda"):
        raise CaseStudyError(f"the device {device} is unknown; use cpu or cuda.")
    if device == "cuda" and not torch.cuda.is_available():
        raise CaseStudyError("torch sees no GPU here; use the device cpu.")


def state_dict(parameters: Parameters) -> Parameters:
    """The names, shapes and dtypes of the published model: fused ones taken apart, FP8 undone.

    Floating tensors come back as bfloat16, or float32 where the checkpoint has them so.
    Raises `CheckpointError` if a fused parameter comes without the norm that tells its rows.
    """
    plain: Parameters = {}
    for name, tensor in parameters.items():
        if name.endswith(FUSED):
            norm = name.replace(FUSED, K_NORM)
            if norm not in parameters:
                raise CheckpointError(f"the checkpoint holds {name} but not {norm}.")
            rows = parameters[norm].shape[0]
            plain[name.replace(FUSED, WK)] = tensor[:rows]
            plain[name.replace(FUSED, WEIGHTS_PROJ)] = tensor[rows:]
        elif name + SCALE_SUFFIX in parameters:
            plain[name] = dequantise(tensor, parameters[name + SCALE_SUFFIX])
        elif not name.endswith(SCALE_SUFFIX):
            plain[name] = tensor
    return plain


@torch.inference_mode()
def generate(model: GlmMoeDsaForCausalLM, prompt: str, characters: int) -> str:
    """Greedy continuation of `prompt`, exactly so many characters (one byte a token)."""
    tokens = _encode(prompt, model)
    written = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=characters,
        min_new_tokens=characters,
        do_sample=False,
        pad_token_id=0,
    )
    return decode(written[0, tokens.shape[1] :].tolist())


@torch.inference_mode()
def losses(model: GlmMoeDsaForCausalLM, text: str) -> list[float]:
    """Cross-entropy in nats of every character of `text` but the first, given those before it."""
    tokens = _encode(text, model)
    logits = model(tokens, use_cache=False).logits[0, :-1]
    return cross_entropy(logits.float(), tokens[0, 1:], reduction="none").tolist()


def decode(tokens: list[int]) -> str:
    """One printable character a token, so that broken text cannot upset a terminal."""
    return "".join(
        chr(token) if 32 <= token < 127 or token == 10 else UNPRINTABLE for token in tokens
    )


def _read_config(path: Path) -> GlmMoeDsaConfig:
    """The config without its quantisation: the weights are dequantised before they get there."""
    from transformers import GlmMoeDsaConfig

    if not path.is_file():
        raise CheckpointError(f"{path} is missing; give a whole checkpoint folder.")
    try:
        fields = json.loads(path.read_text())
        architecture = fields.pop("model_type")
        fields.pop("quantization_config", None)
        if architecture == GlmMoeDsaConfig.model_type:
            return GlmMoeDsaConfig(**fields)
    except Exception as error:  # whatever transformers makes of a config that it cannot use
        raise CheckpointError(f"{path} is not a config that can be used: {error}") from error
    raise CheckpointError(
        f"{path} is of the architecture {architecture}; it must be {GlmMoeDsaConfig.model_type}."
    )


def _misfit(directory: str | Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the weights in {directory} are not those of the model in its config.json: {reason}"
    )


def _encode(text: str, model: GlmMoeDsaForCausalLM) -> torch.Tensor:
    return torch.tensor([list(text.encode("ascii"))], device=model.device)
