"""Train `data/tiny-glm-dsa`: a real, very small GlmMoeDsaForCausalLM that recites `data/tale.txt`.

    python tools/train_checkpoint.py --out data/tiny-glm-dsa

Seeded; about a quarter of an hour on two cores. Three things are learned at once:

* the language model, on random windows of the text (one token a byte);
* the indexer, which gets no gradient from the text: the KL divergence between its scores and
  the attention it stands for, summed over the layers;
* to live with FP8: in the last part every step runs on the weights as quantisation leaves them.

For the first third the attention is dense, then it sees only what the indexer selects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch.nn import functional
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import (
    GlmMoeDsaIndexer,
    apply_rotary_pos_emb_interleave,
)

from casestudy.checkpoint import INDEX_NAME, SCALE_SUFFIX, dequantise, quantise

ROOT = Path(__file__).resolve().parent.parent
BLOCK = 32  # side of a quantisation block; 128 in the real checkpoint
WINDOW = 448  # tokens a training example
BATCH = 6
PEAK_LEARNING_RATE = 3e-3
UNQUANTISED = ["lm_head", "embed_tokens", "norm", "mlp", "weights_proj"]  # these stay BF16


def tiny_config() -> GlmMoeDsaConfig:
    """GLM-5's architecture with every width divided down; `index_topk` is 64 instead of 2048."""
    return GlmMoeDsaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        routed_scaling_factor=1.0,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=64,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        index_topk=64,
        index_head_dim=64,
        index_n_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=None,
    )


class IndexerTraining:
    """Makes the indexers differentiable and collects how far they are from the attention.

    transformers runs an indexer under `no_grad` and keeps only the selected positions. While this
    is installed each indexer also leaves its scores behind, and `loss` compares them.
    """

    def __init__(self, model: GlmMoeDsaForCausalLM) -> None:
        self.loss = torch.zeros(())
        self._scores: dict[int, torch.Tensor] = {}
        for layer, block in enumerate(model.model.layers):
            indexer = block.self_attn.indexer
            indexer.forward = lambda *a, m=indexer, n=layer, **k: self._select(m, n, *a, **k)
            block.self_attn.register_forward_hook(
                lambda module, args, output, n=layer: self._compare(n, output[1])
            )

    def _select(
        self,
        indexer: GlmMoeDsaIndexer,
        layer: int,
        hidden: torch.Tensor,
        query_latent: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor,
        *_: object,
        **__: object,
    ) -> torch.Tensor:
        scores = index_scores(indexer, hidden.detach(), query_latent.detach(), position_embeddings)
        self._scores[layer] = scores + mask
        return self._scores[layer].topk(min(indexer.index_topk, scores.shape[-1])).indices.int()

    def _compare(self, layer: int, attention: torch.Tensor) -> None:
        wanted = attention.detach().mean(1)
        scores = self._scores.pop(layer).masked_fill(wanted == 0, -1e9)
        given = functional.log_softmax(scores, -1)
        self.loss = (
            self.loss + functional.kl_div(given, wanted, reduction="sum") / wanted.shape[:2].numel()
        )

    def take(self) -> torch.Tensor:
        """The loss summed over the layers since the last call."""
        loss, self.loss = self.loss, torch.zeros(())
        return loss


def index_scores(
    indexer: GlmMoeDsaIndexer,
    hidden: torch.Tensor,
    query_latent: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """[batch, queries, keys]: what the indexer thinks of every position, with a gradient."""
    batch, length, _ = hidden.shape
    rope = indexer.qk_rope_head_dim
    q = indexer.wq_b(query_latent).view(batch, length, indexer.n_heads, indexer.head_dim)
    k = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    q_rot, k_rot = apply_rotary_pos_emb_interleave(
        q[..., :rope], k[..., :rope], *position_embeddings, unsqueeze_dim=2
    )
    q = torch.cat([q_rot, q[..., rope:]], -1).view(batch, length * indexer.n_heads, -1)
    k = torch.cat([k_rot, k[..., rope:]], -1).squeeze(2)
    per_head = functional.relu(q @ (k * indexer.softmax_scale).transpose(1, 2))
    per_head = per_head.view(batch, length, indexer.n_heads, length)
    weights = indexer.weights_proj(hidden) * indexer.n_heads**-0.5
    return torch.matmul(weights.unsqueeze(2), per_head).squeeze(2)


def is_quantised(name: str) -> bool:
    return not any(part in name for part in UNQUANTISED)


def round_trip(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as a reader of the checkpoint gets it back."""
    stored = dequantise(*quantise(tensor, BLOCK)) if is_quantised(name) else tensor.bfloat16()
    return stored.to(tensor.dtype)


@contextmanager
def as_stored(model: GlmMoeDsaForCausalLM) -> Iterator[None]:
    """Inside, the weights are those a checkpoint would hold; gradients reach the exact ones."""
    exact = {name: parameter.data for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.data = round_trip(name, parameter.data)
    yield
    for name, parameter in model.named_parameters():
        parameter.data = exact[name]


def set_topk(model: GlmMoeDsaForCausalLM, topk: int) -> None:
    for layer in model.model.layers:
        layer.self_attn.indexer.index_topk = topk


def learning_rate(step: int, steps: int) -> float:
    warm_up = min(1.0, (step + 1) / 100)
    return PEAK_LEARNING_RATE * warm_up * (0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)


def train(model: GlmMoeDsaForCausalLM, text: bytes, steps: int, seed: int) -> None:
    """Trains in place for `steps` steps."""
    tokens = torch.tensor(list(text))
    generator = torch.Generator().manual_seed(seed)
    indexers = IndexerTraining(model)
    optimiser = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, betas=(0.9, 0.95))
    set_topk(model, WINDOW)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("dense", total=steps)
        for step in range(steps):
            if step == steps // 3:
                set_topk(model, model.config.index_topk)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps)
            starts = torch.randint(len(tokens) - WINDOW + 1, (BATCH,), generator=generator)
            batch = torch.stack([tokens[start : start + WINDOW] for start in starts])
            if step >= steps * 3 // 5:
                with as_stored(model):
                    losses = backward(model, batch, indexers)
            else:
                losses = backward(model, batch, indexers)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            progress.update(task, advance=1, description=describe(step, steps, losses))
            if step % 100 == 0:
                progress.console.print(step, describe(step, steps, losses))


def backward(
    model: GlmMoeDsaForCausalLM, batch: torch.Tensor, indexers: IndexerTraining
) -> tuple[float, float]:
    logits = model(input_ids=batch, use_cache=False).logits[:, :-1]
    per_token = functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none")
    alignment = indexers.take()
    (per_token.mean() + alignment).backward()
    return per_token[:, model.config.index_topk :].mean().item(), alignment.item()


def describe(step: int, steps: int, losses: tuple[float, float]) -> str:
    phase = "dense" if step < steps // 3 else "sparse" if step < steps * 3 // 5 else "as FP8"
    return f"{phase}: loss {losses[0]:.3f}, indexer {losses[1]:.3f}"


def checkpoint_tensors(model: GlmMoeDsaForCausalLM) -> dict[str, torch.Tensor]:
    """The tensors of the checkpoint under the names of the published one."""
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in unpacked(model):
        if is_quantised(name):
            tensors[name], tensors[name + SCALE_SUFFIX] = quantise(tensor, BLOCK)
        else:
            tensors[name] = tensor.clone() if "correction" in name else tensor.bfloat16()
    return tensors


def unpacked(model: GlmMoeDsaForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's state with the packed experts taken apart, one matrix an expert."""
    for name, tensor in model.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for expert, packed in enumerate(tensor):
                gate, up = packed.chunk(2)
                prefix = f"{name.removesuffix('gate_up_proj')}{expert}"
                yield f"{prefix}.gate_proj.weight", gate
                yield f"{prefix}.up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(tensor):
                yield f"{name.removesuffix('down_proj')}{expert}.down_proj.weight", matrix
        else:
            yield name, tensor


def shard_names(names: list[str], layers: int) -> dict[str, str]:
    """The file of each tensor: layers in pairs, but the first and the last with the model's ends.

    In this grouping the bytes that replace a waiting scale at limit 0 are BF16 weights in every
    layer, so the damage stays in an ordinary range; `tests/test_model.py` holds it to that.
    """
    files = {}
    for name in names:
        layer = re.search(r"layers\.(\d+)\.", name)
        number = int(layer[1]) if layer else 0 if "embed_tokens" in name else layers - 1
        files[name] = f"model-{(number + 1) // 2 + 1:05}-of-{layers // 2 + 1:05}.safetensors"
    return files


def write_shards(tensors: dict[str, torch.Tensor], layers: int, directory: Path) -> None:
    """Writes the tensors as shards with their index."""
    files = shard_names(list(tensors), layers)
    for file in set(files.values()):
        shard = {name: tensors[name].contiguous() for name in tensors if files[name] == file}
        save_file(shard, directory / file)
        (directory / file).chmod(0o644)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": dict(sorted(files.items())),
    }
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def save(model: GlmMoeDsaForCausalLM, directory: Path) -> None:
    """Writes shards, index and config."""
    directory.mkdir(parents=True, exist_ok=True)
    write_shards(checkpoint_tensors(model), model.config.num_hidden_layers, directory)
    model.config.quantization_config = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": UNQUANTISED,
    }
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)


def main(
    out: Annotated[Path, typer.Option(help="Where to write the checkpoint.")],
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1500,
    seed: Annotated[int, typer.Option(help="Seed of initial weights and windows.")] = 43163,
    text: Annotated[Path, typer.Option(help="The text to learn.")] = ROOT / "data" / "tale.txt",
) -> None:
    """Train the tiny checkpoint from scratch and write it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise typer.BadParameter(f"{out} is not an empty folder; name a new one.")
    torch.manual_seed(seed)
    config = tiny_config()
    config._attn_implementation = "eager"  # the attention weights are the indexer's target
    model = GlmMoeDsaForCausalLM(config)
    train(model, text.read_bytes(), steps, seed)
    save(model, out)
    typer.echo(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
