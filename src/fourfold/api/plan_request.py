"""The request of a plan, from a run and options; and the run of its result."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fourfold.api.inputs import (
    check_counted,
    cluster_name,
    loaded_cluster,
    override_texts,
    readable_config,
)
from fourfold.api.layout_overrides import split_overrides
from fourfold.api.numbers import parse_length, parse_number
from fourfold.api.options import PlanOptions
from fourfold.config import ModelConfig, ModelSection, RunConfig, UserError
from fourfold.config.layout_section import LayoutSection
from fourfold.config.presets import preset_of_hub
from fourfold.config.run_file import apply_override, parse_run
from fourfold.config.stages import Course, Stage, course_of
from fourfold.cost.prices import Windows
from fourfold.cost.software import OWN_SOFTWARE
from fourfold.hardware import THIS, cluster_names, is_path, named_with
from fourfold.huggingface import Nearest, resolve_nearest
from fourfold.launch.resolve import model_section, stated_vocab_size
from fourfold.plan.candidate import Candidate
from fourfold.plan.request import Request, batch_sequences
from fourfold.plan.trainers import TRAINERS
from fourfold.simulate.run_prices import check_compute

SMALLEST_BPE = 512
"""Vocabulary from which on a tokenizer is made of the corpus; below, texts are bytes."""


@dataclass(frozen=True)
class Asked:
    """`run`: what is planned, complete but for its layout. `model`: as that states it. `cluster`: as it was named. `near`: what the
    model is taken for, where it is none that can be trained. `stage`: of the run `staged`, where it has several; the one with the
    most tokens is planned."""

    request: Request
    run: RunConfig
    model: ModelConfig
    cluster: str
    near: Nearest | None = None
    stage: Stage | None = None
    staged: RunConfig | None = None


def read_request(options: PlanOptions) -> Asked:
    """A request read from the run file and the options, which win. Raises `UserError` for what is missing or cannot be."""
    own = options.software_overrides()
    layout, overrides = split_overrides(override_texts(options.overrides))
    config = readable_config(options.run, overrides, options.trust) if options.run is not None else None
    stage, staged = None, config if config is not None and config.stage else None
    if staged is not None:
        stage = _longest(course_of(staged))
        config = stage.config
    named, length, sequences = options.cluster, None, options.batch_sequences
    sequence_length, batch_tokens, dtype = options.sequence_length, options.batch_tokens, options.dtype
    if config is not None:
        length = config.batch.sequence_length
        named = named or (config.cluster.preset if config.cluster.preset != THIS else None)
        if batch_tokens is None and sequences is None:
            sequences = config.batch.global_sequences
    section = config.model if config is not None else None
    if options.model is not None:
        section = _section(os.fspath(options.model))
    if section is None:
        raise UserError("what is to be planned? what works: fourfold plan RUN.toml, or --model llama3-8b")
    resolved, near = resolve_nearest(section, None if config is None else stated_vocab_size(section, config.data))
    if named is None:
        raise UserError(f"--cluster is missing; allowed: a cluster file, or {', '.join(cluster_names())}")
    if sequence_length is not None:
        length = parse_length(sequence_length, "--sequence-length")
    if length is None:
        raise UserError("--sequence-length is missing; a value that works: --sequence-length 8192")
    if batch_tokens is not None and sequences is not None and config is None:
        raise UserError("--batch-tokens and --batch-sequences both state the batch; give one of them")
    machine = loaded_cluster(named)
    check_counted(named)
    if batch_tokens is not None:
        tokens_a_step = parse_number(batch_tokens, "--batch-tokens", "16M", least=1)
        sequences = batch_sequences(tokens_a_step, length, machine.devices)
    if sequences is None:
        raise UserError("the batch is missing; what works: --batch-tokens 4M, or --batch-sequences 512")
    if not 1 <= sequences <= 10_000_000:
        raise UserError(f"--batch-sequences {sequences}: allowed: 1 to 10000000; a value that works: 512")
    if resolved.positions == "learned" and length > resolved.max_position:
        raise UserError(
            f"a sequence of {length} tokens: the model has {resolved.max_position} learned positions; allowed: up to "
            f"{resolved.max_position}; what works: --sequence-length {resolved.max_position}"
        )
    windows = Windows(*near.window) if near is not None and near.window is not None else None
    if config is None:
        config = _of_options(resolved, sequences, length, dtype or "bf16", overrides)
    precision, data = config.precision, config.data
    if dtype is not None:
        precision = precision.model_copy(update={"compute": dtype})
    check_compute(precision.compute, machine)
    masks = (data.document_mask, data.document_tokens)
    trainer = TRAINERS[options.for_ or OWN_SOFTWARE]
    software = options.software or (trainer.software if options.for_ else config.cluster.software)
    own = own.of_run(config.cluster, software)
    request = Request.of(
        resolved,
        machine,
        length,
        sequences,
        precision,
        software,
        options.memory_share,
        *masks,
        config.layout,
        windows,
        own,
        config.optimizer,
        config.run.cuda_graphs,
    )
    request = layout.applied(request, trainer)
    run = config.model_copy(update={"model": section, "precision": precision})
    return Asked(request, run, resolved, cluster_name(named), near, stage, staged)


def _longest(course: Course) -> Stage:
    """The stage with the most tokens."""
    return max(course.stages, key=lambda stage: course.tokens_before(stage.end) - course.tokens_before(stage.begin))


def _of_options(
    model: ModelConfig, sequences: int, length: int, compute: str, overrides: Sequence[str] = ()
) -> RunConfig:
    """A run of what the options state, with a tokenizer that is no larger than the model's vocabulary."""
    batch = {"global_sequences": sequences, "sequence_length": length}
    table: dict[str, Any] = {"batch": batch, "precision": {"compute": compute}}
    for override in overrides:
        if override.partition(".")[0] in ("model", "batch"):
            raise UserError(
                f"override {override!r}: without a run file, --model, --sequence-length and --batch-sequences state the model and "
                f"the batch; what works: a run file in front"
            )
        apply_override(table, override)
    config = parse_run(table)
    usual = stated_vocab_size(config.model, config.data)
    if usual is None or model.vocab_size >= usual:
        return config
    tokenizer = f"bpe:{model.vocab_size}" if model.vocab_size >= SMALLEST_BPE else "bytes"
    return config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": tokenizer})})


def planned_run(asked: Asked, request: Request, layout: Candidate, tokens: float | None) -> RunConfig:
    """The run of a layout that was found. `request`: what was searched at last, on other devices, with other sequences or another
    model than asked for where the objective is to find them. `tokens`: how long the run is, where the command line says it.
    Folders and files are named so that it can lie anywhere."""
    run, name = asked.run, asked.cluster
    if asked.staged is not None and asked.stage is not None:
        return _on_cluster(_staged_run(asked.staged, asked.stage, request.section(layout)), name)
    if request.devices != asked.request.devices:
        name = named_with(name, request.devices)
    batch: dict[str, int | None] = {
        "global_sequences": request.global_sequences,
        "sequence_length": request.sequence_length,
    }
    if tokens is not None:
        batch |= {"tokens": math.ceil(tokens), "steps": None}
    planned = {
        "model": _fitting(asked, request),
        "batch": run.batch.model_copy(update=batch),
        "layout": request.section(layout),
        "precision": request.precision,
    }
    return _on_cluster(run.model_copy(update=planned), name)


def _on_cluster(run: RunConfig, name: str) -> RunConfig:
    return run.on_cluster(_anywhere(name) if is_path(name) else name)


def _staged_run(run: RunConfig, stage: Stage, layout: LayoutSection) -> RunConfig:
    """The run with the layout that was found for a stage; of the first, for those that state none too."""
    own = {} if stage.number == 0 else layout.model_dump(mode="json", exclude_none=True)
    stages = [
        section.model_copy(update={"layout": own}) if number == stage.number else section
        for number, section in enumerate(run.stage)
    ]
    base = {"layout": layout} if stage.number == 0 else {}
    return run.model_copy(update={**base, "stage": stages})


def model_notes(asked: Asked, request: Request) -> list[str]:
    """Notes on what is planned: one stage of several, or a model not as it is, or beyond what it was made for."""
    near, windows, length = asked.near, request.windows, request.sequence_length
    notes = []
    if asked.stage is not None and asked.staged is not None:
        notes.append(
            f"{asked.stage} of {len(asked.staged.stage)} is planned, which has the most tokens; another one: stage=N behind the "
            f"run file"
        )
    if near is not None:
        taken = ": " + "; ".join(near.differences) if near.differences else ", of the same sizes"
        notes.append(f"{near.refused.partition(';')[0]}; planned as the nearest model that is{taken}")
    if windows is not None and windows.tokens < length:
        notes.append(
            f"sliding windows of {windows.tokens:,} tokens in {windows.layers:.0%} of the layers are priced by what they leave of "
            f"attention's work, {windows.share(length):.0%}; fourfold itself runs full attention"
        )
    if length > asked.model.max_position:
        made_for = asked.model.max_position
        notes.append(
            f"the model was made for sequences of {made_for:,} tokens (max_position), this plan has {length:,}"
        )
    return notes


def _fitting(asked: Asked, request: Request) -> ModelSection:
    """The run's own words for its model as far as they say what was planned, else every dimension."""
    section, model, windows = asked.run.model, request.model, request.windows
    folders = {key: _anywhere(value) for key in ("hf", "initial") if (value := getattr(section, key)) is not None}
    windowed = windows is not None and windows.tokens < request.sequence_length
    if asked.near is not None:
        stands_for = {"nearest_to": asked.near.family, "lost": list(asked.near.differences)}
        return model_section(model, None).model_copy(update=stands_for)
    if windowed or replace(asked.model, max_position=model.max_position) != model:
        return model_section(model, None)
    longer = {"max_position": model.max_position} if model.max_position != asked.model.max_position else {}
    return section.model_copy(update=folders | longer)


def _anywhere(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _section(name: str) -> ModelSection:
    """A preset, by its own name or the Hugging Face hub's, or the folder of a config.json. Raises `UserError` for a path or a name
    of the hub that leads to neither."""
    path = Path(name)
    if path.name == "config.json" and path.is_file():
        return ModelSection(hf=str(path.parent))
    if path.is_dir():
        return ModelSection(hf=name)
    if (preset := preset_of_hub(name)) is not None:
        return ModelSection(preset=preset)
    if "/" in name or name.endswith(".json"):
        raise UserError(f"--model {name}: no such file or folder; allowed: a folder with a config.json, or a preset")
    return ModelSection(preset=name)
