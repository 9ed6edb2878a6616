"""A run in small: every axis, schedule and option of the large one, of a size that a laptop trains in seconds.

Degrees are two where they were more, sizes of the model a few numbers, steps a few. The keys that decide which code runs stay as
they are: family, axes, ZeRO, schedule, recomputation, offload, precision, optimizer, saves, checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.config import ModelConfig, ModelSection, RunConfig, parse_run
from fourfold.config.model_config import differences
from fourfold.launch.resolve import ResolvedRun, resolve_run

MOST_RANKS = 16
STEPS, RESUMED_STEPS, SAVED_EVERY = 4, 6, 2
VOCABULARY, HIDDEN, HEADS, HEAD, FFN, EXPERT_FFN, LENGTH = 320, 64, 8, 8, 64, 16, 64
DOCUMENTS = 400
_DROPPED_FIRST = ("dp_replicate", "cp", "dp_shard", "tp", "pp")
"""Axes that a small run does without where all together are too many ranks."""
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
_BACKENDS = (
    "attention_backend",
    "norm_backend",
    "loss_backend",
    "pointwise_backend",
    "matmul_backend",
    "recurrence_backend",
)
Table = dict[str, Any]


@dataclass(frozen=True)
class SmallRun:
    """The run, `ranks` of it, and what of the large one it does without, in words."""

    resolved: ResolvedRun
    left_out: tuple[str, ...]

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def ranks(self) -> int:
        return self.resolved.layout.world_size


def small_run(resolved: ResolvedRun, folder: Path) -> SmallRun:
    """The run in small, whose text is a corpus that this writes to `folder`. Raises `UserError` where a size that was made smaller
    does not divide, as those of a person's own block may."""
    config, left_out = resolved.config, list[str]()
    layout = _layout(resolved, left_out)
    degree = {axis: layout[axis] for axis in AXES}
    stages = degree["pp"] * (layout.get("virtual_stages") or 1)
    model = _model(resolved, stages, degree["ep"])
    for key in ("recompute", "offload"):
        layout[key] = _ways(layout[key], model["num_layers"])
    table: Table = {
        "model": model,
        "data": {
            "corpus": str(_write_corpus(folder / "corpus")),
            "tokenizer": "bytes",
            "document_mask": config.data.document_mask,
            "directory": str(folder / "tokens"),
        },
        "batch": _batch(resolved, layout),
        "layout": layout,
        "precision": _stated(config.precision, without=("gemm_dtype", "gemm_gradients")),
        "optimizer": {**_stated(config.optimizer), "warmup_steps": min(1, config.optimizer.warmup_steps)},
        "checkpoint": {
            "every_steps": SAVED_EVERY,
            "asynchronous": config.checkpoint.asynchronous,
            "memory_every_steps": min(1, config.checkpoint.memory_every_steps),
        },
        "run": _run(config),
        "faults": _faults(config),
    }
    if config.precision.gemm_dtype is not None:
        left_out.append(f"precision.gemm_dtype = {config.precision.gemm_dtype}")
    left_out += [f"run.{key}" for key in (*_BACKENDS, "cuda_graphs") if getattr(config.run, key) not in ("auto", False)]
    left_out += [f"data.{key}" for key in ("corpus", "tokenizer")] + ["run.validation"] * bool(config.run.validation)
    for key in ("directory", "start_from"):
        if getattr(config.checkpoint, key) is not None:
            left_out.append(f"checkpoint.{key}")
    return SmallRun(resolve_run(parse_run(table), None, None, "native"), tuple(left_out))


def _layout(resolved: ResolvedRun, left_out: list[str]) -> Table:
    section, layout = resolved.config.layout, resolved.layout
    found = _stated(section, without=("auto", "segments_per_stage"))
    found |= {axis: min(2, getattr(layout, axis)) for axis in AXES}
    if layout.virtual_stages > 1:
        found["virtual_stages"] = 2
    if 1 < layout.cp_ulysses < layout.cp:  # a ring of two, each of two
        found |= {"cp": 4, "cp_method": "ring+ulysses:2"}
    if ":" in section.schedule:
        found |= {"schedule": "1f1b"}
        found.pop("virtual_stages", None)
        left_out.append(f"layout.schedule = {section.schedule}")
    for axis in _DROPPED_FIRST:
        if _ranks(found) <= MOST_RANKS:
            break
        if found[axis] > 1:
            found[axis] = 1
            left_out.append(f"{axis} > 1")
    if found["tp"] == 1:
        found.pop("sequence_parallel", None)
    found["microbatch_sequences"] = min(2, layout.microbatch_sequences)
    return found


def _ranks(layout: Table) -> int:
    ranks = 1
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp"):
        ranks *= layout[axis]
    return ranks


def _model(resolved: ResolvedRun, stages: int, ep: int) -> Table:
    """Sizes of a few numbers; parts that are there stay."""
    model = resolved.model
    found = _stated(resolved.config.model, without=("preset", "hf", "initial", "nearest_to", "lost", "as_nearest"))
    period = min(2, model.moe_period)
    layers = max(2, 2 * stages if stages > 1 else 2) + min(1, model.first_dense_layers)
    found |= {
        "num_layers": -(-layers // period) * period,
        "hidden_size": HIDDEN,
        "num_heads": HEADS,
        "num_kv_heads": {1: 1, model.num_heads: HEADS}.get(model.num_kv_heads, HEADS // 2),
        "ffn_size": FFN,
        "vocab_size": VOCABULARY,
        "max_position": max(LENGTH, min(4096, model.max_position)),
    }
    found.pop("head_dim", None)
    if model.is_mla:
        found |= {"key_value_rank": 16, "query_rank": 16 if model.query_rank else 0, "num_kv_heads": HEADS}
        found |= {"rope_head_dim": HEAD // 2, "nope_head_dim": HEAD, "value_head_dim": HEAD}
    if model.delta_value_heads:
        found |= {
            "delta_key_heads": HEADS,
            "delta_value_heads": HEADS * min(2, model.delta_value_heads // model.delta_key_heads),
        }
        found |= {"delta_key_dim": HEAD, "delta_value_dim": HEAD}
    if model.num_experts:
        groups = min(2, model.num_expert_groups)
        found |= {
            "num_experts": 4 * ep,
            "top_k": min(2, model.top_k),
            "moe_ffn_size": EXPERT_FFN,
            "num_shared_experts": min(1, model.num_shared_experts),
            "first_dense_layers": min(1, model.first_dense_layers),
            "moe_period": period,
            "num_expert_groups": groups,
            "top_groups": min(groups, model.top_groups),
        }
    for key in _SPANS:
        if getattr(model, key) and getattr(model, key) < resolved.config.batch.sequence_length:
            found[key] = LENGTH // 4
    found["exceptions"] = [
        {"layers": [layer], **{key: LENGTH // 4 if key in _SPANS and value else value for key, value in own.items()}}
        for layer, own in enumerate(_own_keys(model)[: found["num_layers"]])
    ]
    found["mtp_layers"] = min(1, model.mtp_layers)
    if model.mup_base_hidden_size:
        found["mup_base_hidden_size"] = HIDDEN // 2
        found.pop("mup_base_head_dim", None)
    return {key: value for key, value in found.items() if key in ModelSection.model_fields}


_SPANS = ("sliding_window", "attention_chunk")


def _own_keys(model: ModelConfig) -> list[Table]:
    """Keys that layers have of their own, each kind once."""
    return [differences(each) for each in model.exceptions]


def _batch(resolved: ResolvedRun, layout: Table) -> Table:
    microbatches = 2 * layout["pp"] if layout["pp"] > 1 else min(2, resolved.layout.num_microbatches)
    rows = layout["dp_replicate"] * layout["dp_shard"] * layout["microbatch_sequences"]
    return {"global_sequences": rows * microbatches, "sequence_length": LENGTH, "steps": STEPS}


def _ways(ways: str | Sequence[str], layers: int) -> str | list[str]:
    """One word a block, or a word for all of them, for so many blocks."""
    if isinstance(ways, str):
        word, colon, _ = ways.partition(":")
        return f"{word}:1" if colon else word
    return [ways[index * len(ways) // layers] for index in range(layers)]


def _run(config: RunConfig) -> Table:
    section = config.run
    return {
        **_stated(section, without=(*_BACKENDS, "log", "cuda_graphs", "track_memory", "preflight", "validation")),
        "device": "cuda",
        "threads_per_rank": 1,
        "evaluate_every": SAVED_EVERY,
        "evaluate_sequences": 4,
        "sample_tokens": 0 if section.sample_tokens == 0 else 4,
    }


def _faults(config: RunConfig) -> Table:
    section = config.faults
    found = _stated(section, without=("stall_seconds",))
    for key in ("checksum_every_steps", "replay_every_steps"):
        found[key] = min(SAVED_EVERY, getattr(section, key))
    return {**found, "elastic": False, "min_ranks": 1, "attempts": 1}


def _stated(section: Any, without: Sequence[str] = ()) -> Table:
    values = section.model_dump(exclude_none=True)
    return {key: value for key, value in values.items() if key not in without}


def _write_corpus(folder: Path) -> Path:
    folder.mkdir(parents=True)
    words = ("a", "rehearsal", "reads", "these", "words", "of", "no", "meaning")
    for number in range(DOCUMENTS):
        text = " ".join(words[(number * 7 + place * place) % len(words)] for place in range(20 + number % 60))
        (folder / f"{number:03}.txt").write_text(text)
    return folder
