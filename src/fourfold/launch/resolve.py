"""From a run file to all that is known before a rank starts: complete config, model, layout, programs, and their proof."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fourfold.config import ModelConfig, ModelSection, RunConfig, UserError
from fourfold.config.schema import DataSection
from fourfold.huggingface import resolve_model
from fourfold.layout import Layout, resolve_layout
from fourfold.program import Fault, Program, lower_evaluation, lower_pipeline, lower_step, verify
from fourfold.program.compiled import CompiledStages
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec, Transport
from fourfold.program.view import rank_view


@dataclass(frozen=True)
class ResolvedRun:
    """A run that can be lowered. `config` is complete: dimensions and degrees are written out, presets are gone."""

    config: RunConfig
    model: ModelConfig
    layout: Layout
    spec: StepSpec

    @cached_property
    def compiled(self) -> CompiledStages:
        """The step's compiled stages, shared by everyone who compiles or simulates this run."""
        return CompiledStages(self.spec)

    @cached_property
    def train_programs(self) -> dict[int, Program]:
        """The training step of every rank; ranks of one pipeline coordinate share an object."""
        return self._by_rank(lower_pipeline(self.spec, compiled=self.compiled))

    @cached_property
    def evaluate_programs(self) -> dict[int, Program]:
        """The evaluation of every rank."""
        return self._by_rank(lower_pipeline(self.evaluation_spec, "evaluate", self.compiled))

    @property
    def evaluation_spec(self) -> StepSpec:
        """The inputs of compiling an evaluation: its number of microbatches is its own."""
        return self.spec.for_evaluation(self.config.run.evaluate_sequences)

    def spec_of(self, kind: str) -> StepSpec:
        """The spec of the training step or of the evaluation."""
        return self.spec if kind == "train" else self.evaluation_spec

    def programs_at(self, kind: str, step: int) -> list[Program]:
        """The program of every pipeline coordinate in step number `step`, with the checks that are due in it."""
        spec = self.spec_of(kind)
        if kind == "train":
            spec = spec.at_step(step, self.config.faults, self.config.metrics)
        key = kind, spec.checksum, spec.replay, spec.sampled
        if key not in self._at_steps:
            self._at_steps[key] = lower_pipeline(spec, kind, None if spec.replay else self.compiled)
        return self._at_steps[key]

    @cached_property
    def _at_steps(self) -> dict[tuple[str, bool, bool, tuple[str, ...]], list[Program]]:
        return {}

    def with_checks(self) -> "ResolvedRun":
        """A copy of the run as if every step made all checks and measurements that the run ever makes."""
        faults, metrics = self.config.faults, self.config.metrics
        checksum, replay = faults.checksum_every_steps > 0, faults.replay_every_steps > 0
        sampled = tuple(metrics.of) if metrics.every_steps else ()
        return replace(self, spec=replace(self.spec, checksum=checksum, replay=replay, sampled=sampled))

    def program(self, kind: str, pp_rank: int) -> Program:
        """The list of one pipeline coordinate alone; `kind`: train or evaluate."""
        view = rank_view(self.spec_of(kind), pp_rank)
        return lower_step(view) if kind == "train" else lower_evaluation(view)

    def _by_rank(self, programs: list[Program]) -> dict[int, Program]:
        return {r: programs[self.layout.pp_rank(r)] for r in range(self.layout.world_size)}

    @property
    def num_parameters(self) -> int:
        return sum(segment.numel for segment in self.spec.segments)

    def with_program(self, program: Program) -> dict[int, Program]:
        """The programs of all ranks, with the given one in place of those of its pipeline coordinate."""
        programs = self.train_programs if program.kind == "train" else self.evaluate_programs
        own = [rank for rank in programs if self.layout.pp_rank(rank) == program.pp_rank]
        return {**programs, **dict.fromkeys(own, program)}

    @property
    def degrees(self) -> str:
        """`pp 2, dp_shard 3, zero 1`: the degrees above 1."""
        axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
        texts = [f"{axis} {getattr(self.layout, axis)}" for axis in axes if getattr(self.layout, axis) > 1]
        return ", ".join([*texts, f"zero {self.layout.zero}"])

    def faults(self) -> list[Fault]:
        """The verifier's faults in both programs. Programs without faults are verified."""
        return verify(self.train_programs, self.spec) + verify(self.evaluate_programs, self.evaluation_spec)


def resolve_run(
    config: RunConfig, ranks: int | None, tokenizer_vocab_size: int | None, transport: Transport = "exchange"
) -> ResolvedRun:
    """Completes and checks a run of one stage. `ranks` None: as many as the layout asks for. Raises `UserError` naming the key."""
    if config.stage:
        raise UserError(
            f"this run has {len(config.stage)} stages, each with a step of its own; allowed: one of them; what works: stage=1 "
            f"behind the run file"
        )
    model = resolve_model(config.model, tokenizer_vocab_size)
    if config.layout.auto:
        from fourfold.launch.automatic import automatic_layout

        config = config.model_copy(update={"layout": automatic_layout(config, model, ranks)})
    layout = resolve_layout(config, model, ranks)
    complete = config.model_copy(
        update={
            "model": model_section(model, config.model.initial).model_copy(update=_stands_for(config.model)),
            "layout": config.layout.model_copy(
                update={"dp_shard": layout.dp_shard, "schedule": _absolute(layout.schedule)}
            ),
        }
    )
    spec = resolve_step(complete, model, layout, transport)
    chosen = {key: getattr(spec.layout, key) for key in ("virtual_stages", "sequence_parallel")}
    complete = complete.model_copy(update={"layout": complete.layout.model_copy(update=chosen)})
    return ResolvedRun(complete, model, spec.layout, spec)


def _absolute(schedule: str) -> str:
    """A schedule's file named so that every rank, wherever it starts, reads the same."""
    kind, colon, path = schedule.partition(":")
    return f"file:{Path(path).expanduser().absolute()}" if kind == "file" and colon else schedule


def model_section(model: ModelConfig, initial: str | None) -> ModelSection:
    """Every dimension written out. `initial`: where weights are to be read from."""
    stated = {key: value for key, value in vars(model).items() if value is not None}
    where = str(Path(initial).expanduser().absolute()) if initial is not None else None
    return ModelSection(**stated, initial=where)


def _stands_for(section: ModelSection) -> dict[str, Any]:
    """The run file's keys about the model that its own is the nearest to."""
    return {
        key: getattr(section, key) for key in ("nearest_to", "lost", "as_nearest") if key in section.model_fields_set
    }


def stated_vocab_size(model: ModelSection, data: DataSection) -> int | None:
    """The tokenizer's vocabulary as far as the run file tells, without building a tokenizer.

    `"bytes"` and `"bpe:N"` say it. A tokenizer file is read only where the model does not state `vocab_size`; None where
    it does. A BPE of a small corpus may turn out smaller than N.
    """
    from fourfold.data.tokenizer_file import named_vocab_size, parse_tokenizer

    if (named := named_vocab_size(data.tokenizer)) is not None:
        return named
    if _has_vocab_size(model):
        return None
    from fourfold.data.tokenizer import load_tokenizer

    spec = parse_tokenizer(data.tokenizer, data.eos, data.bos)
    return load_tokenizer(spec.path, spec.eos).vocab_size


def _has_vocab_size(model: ModelSection) -> bool:
    try:
        resolve_model(model)
    except UserError as error:
        return error.key != "vocab_size"
    return True
