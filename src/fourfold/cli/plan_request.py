"""What `fourfold plan` is asked, from its run file and its options; and the run file of what it found."""

from dataclasses import dataclass, replace
from pathlib import Path

from fourfold.cli.numbers import parse_number
from fourfold.config import ModelConfig, ModelSection, RunConfig, UserError, load_run, resolve_model
from fourfold.config.hardware import THIS, cluster_names, load_cluster, named_with
from fourfold.config.run_file import parse_run
from fourfold.config.schema import PrecisionSection
from fourfold.launch.resolve import model_section, stated_vocab_size
from fourfold.plan.batch import batch_sequences
from fourfold.plan.request import Candidate, Request


@dataclass(frozen=True)
class Asked:
    """`run`: what is planned, complete but for its layout. `cluster`: as it was named. `max_position`: the model's, as stated."""

    request: Request
    run: RunConfig
    cluster: str
    max_position: int


def read_request(
    run: Path | None,
    overrides: tuple[str, ...],
    model: str | None,
    cluster: str | None,
    sequence_length: str | None,
    batch_tokens: str | None,
    sequences: int | None,
    dtype: str | None,
    stack: str | None,
    memory_share: float,
) -> Asked:
    """From the run file and the options, which win. Raises `UserError` for what is missing or cannot be."""
    config = load_run(run, overrides) if run is not None else None
    named, length = cluster, None
    if config is not None:
        length = config.batch.sequence_length
        named = cluster or (config.cluster.preset if config.cluster.preset != THIS else None)
        if batch_tokens is None and sequences is None:
            sequences = config.batch.global_sequences
    section = _section(model) if model is not None else config.model if config is not None else None
    if section is None:
        raise UserError("what is to be planned? what works: fourfold plan RUN.toml, or --model llama3-8b")
    resolved = resolve_model(section, None if config is None else stated_vocab_size(section, config.data))
    if named is None:
        raise UserError(f"--cluster is missing; allowed: a cluster file, or {', '.join(cluster_names())}")
    if sequence_length is not None:
        length = int(parse_number(sequence_length, "--sequence-length", "8192", least=1, most=1e9))
    if length is None:
        raise UserError("--sequence-length is missing; a value that works: --sequence-length 8192")
    if batch_tokens is not None and sequences is not None and run is None:
        raise UserError("--batch-tokens and --batch-sequences both state the batch; give one of them")
    machine = load_cluster(named)
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
    if config is None:
        batch = {"global_sequences": sequences, "sequence_length": length}
        config = parse_run({"batch": batch, "precision": {"compute": dtype or "bf16"}})
    precision = config.precision
    if dtype is not None and dtype != precision.compute:
        precision = PrecisionSection(compute=dtype)  # type: ignore[arg-type]
    data = config.data
    request = Request.of(
        resolved, machine, length, sequences, precision, stack, memory_share, data.document_mask, data.document_tokens
    )
    return Asked(
        request, config.model_copy(update={"model": section, "precision": precision}), named, resolved.max_position
    )


def planned_run(asked: Asked, request: Request, layout: Candidate) -> RunConfig:
    """The run of a layout that was found. `request`: what was searched at last, on other devices, with other sequences or another
    model than asked for where the objective is to find them."""
    batch = {"global_sequences": request.global_sequences, "sequence_length": request.sequence_length}
    preset = named_with(asked.cluster, request.devices) if request.devices != asked.request.devices else asked.cluster
    return asked.run.model_copy(
        update={
            "model": _fitting(asked.run, request.model),
            "batch": asked.run.batch.model_copy(update=batch),
            "layout": layout.section(),
            "cluster": asked.run.cluster.model_copy(update={"preset": preset}),
        }
    )


def _fitting(run: RunConfig, model: ModelConfig) -> ModelSection:
    """The run's own words for its model as far as they say what was planned, else every dimension."""
    stated = resolve_model(run.model, stated_vocab_size(run.model, run.data))
    if stated == model:
        return run.model
    if replace(stated, max_position=model.max_position) == model:
        return run.model.model_copy(update={"max_position": model.max_position})
    return model_section(model, run.model.initial)


def _section(name: str) -> ModelSection:
    """A preset, or the folder of a config.json."""
    path = Path(name)
    if path.name == "config.json" and path.is_file():
        return ModelSection(hf=str(path.parent))
    return ModelSection(hf=name) if path.is_dir() else ModelSection(preset=name)
