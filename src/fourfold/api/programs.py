"""`fourfold.Program`: the programs of a run's ranks, compiled, to look at and to change."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fourfold.api.inputs import (
    ClusterInput,
    Overrides,
    RunInput,
    check_word,
    loaded_cluster,
    on_cluster,
    readable_config,
)
from fourfold.config import UserError
from fourfold.huggingface import resolve_model
from fourfold.launch.machine import num_cuda_devices, transport_of
from fourfold.launch.resolve import ResolvedRun, resolve_run, stated_vocab_size
from fourfold.layout.resolve import filling_ranks
from fourfold.program import Instruction, MemoryPeak, Program, from_text, memory_curve, memory_peak, to_text
from fourfold.report.format_run import layout_line, model_line, transport_lines
from fourfold.report.program_table import legend_lines, program_rows, program_totals, table_lines, totals_lines
from fourfold.simulate.run_prices import transport_on

Kind = Literal["train", "evaluate"]


def compiled_run(
    run: RunInput,
    overrides: Overrides = (),
    ranks: int | None = None,
    cluster: ClusterInput | None = None,
    trust: bool = False,
) -> ResolvedRun:
    """A run that can be compiled, for the transport of `cluster`, or of this machine. Raises `UserError`."""
    config = readable_config(run, overrides, trust)
    vocabulary = stated_vocab_size(config.model, config.data)
    if cluster is not None:
        machine = loaded_cluster(cluster)
        transport = transport_on(machine)
        config = on_cluster(config, cluster)
        if ranks is None:
            ranks = filling_ranks(config, resolve_model(config.model, vocabulary), machine.devices)
    else:
        transport = transport_of(config, num_cuda_devices(config))
    return resolve_run(config, ranks, vocabulary, transport)


def check_pp_rank(pp_rank: int, pp: int) -> None:
    """Raises `UserError` for a pipeline rank that a layout of so many has not."""
    if not 0 <= pp_rank < pp:
        allowed = "0" if pp == 1 else f"0 to {pp - 1}"
        raise UserError(f"--pp-rank {pp_rank}: the layout has pp = {pp}; allowed: {allowed}")


def run_heading(resolved: ResolvedRun) -> dict[str, Any]:
    """Model and layout of a run, as documents on its programs begin."""
    model = resolved.config.model.model_dump(mode="json", exclude_none=True)
    layout = {**resolved.config.layout.model_dump(mode="json"), "recompute": list(resolved.layout.recompute[1:-1])}
    layout.update(world_size=resolved.layout.world_size, num_microbatches=resolved.layout.num_microbatches)
    return {
        "model": model,
        "num_parameters": resolved.num_parameters,
        "layout": layout,
        "transport": resolved.spec.transport,
    }


def read_program(path: Path, resolved: ResolvedRun) -> Program:
    """The program in a file that `--full` printed. Raises `UserError` where it is none of this run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--program {path}: cannot be read: {error}; what works: a file that --full printed") from None
    program = from_text(text, str(path))
    if not program.instructions:
        raise UserError(f"{path}: holds no instruction; what works: a file that --full printed")
    if program.kind not in ("train", "evaluate"):
        raise UserError(f"{path}: kind {program.kind!r} is unknown; allowed: train, evaluate")
    if not 0 <= program.pp_rank < resolved.layout.pp:
        raise UserError(f"{path}: pp_rank {program.pp_rank} is not below the layout's pp = {resolved.layout.pp}")
    return program


@dataclass(frozen=True)
class RunProgress:
    """Where each rank of a run stands, in a line and as its counters have it."""

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, folder: Path, resolved: ResolvedRun) -> "RunProgress":
        """From the folder of a run that is training or was. Raises `UserError` where no rank has reported."""
        from fourfold.runtime.progress import describe_positions, read_positions

        found = read_positions(folder, ranks=resolved.layout.world_size) if folder.is_dir() else []
        if not found:
            raise UserError(
                f"{folder}: no rank has reported yet; what works: the folder of a run that is training or was"
            )
        lines = describe_positions(resolved.programs_at, resolved.layout, found)
        keys = [{"rank": rank, "step": p.step, "index": p.at, "time": p.time} for rank, p in enumerate(found)]
        return cls(tuple({**row, "text": line} for row, line in zip(keys, lines, strict=True)))

    def lines(self) -> list[str]:
        """A line a rank."""
        return [row["text"] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The document of `fourfold show --progress --json`."""
        return {"ranks": list(self.rows)}


@dataclass(frozen=True, repr=False)
class RunProgram:
    """The programs of a run: `lists` holds one for each pipeline rank. Ranks that differ only in data, tensor, context or expert
    coordinates run the same list. `kind`: `train`, or `evaluate` (forward only).

    Build it with `Program.of`. Methods take a pipeline rank, 0 by default.
    """

    resolved: ResolvedRun
    kind: Kind
    lists: tuple[Program, ...]

    @classmethod
    def of(
        cls,
        run: RunInput,
        overrides: Overrides = (),
        *,
        ranks: int | None = None,
        cluster: ClusterInput | None = None,
        kind: Kind = "train",
        trust: bool = False,
    ) -> "RunProgram":
        """Compiles one step of a run. `ranks`: as many as the layout asks for where left out. `cluster`: compile for its transport,
        as `simulate` does, instead of this machine's. `trust`: import the code that the run names. Raises `UserError`."""
        check_word("kind", kind, get_args(Kind))
        return cls.of_resolved(compiled_run(run, overrides, ranks, cluster, trust), kind)

    @classmethod
    def of_resolved(cls, resolved: ResolvedRun, kind: Kind) -> "RunProgram":
        """The programs of a run that was compiled."""
        programs = resolved.train_programs if kind == "train" else resolved.evaluate_programs
        lists = {program.pp_rank: program for program in programs.values()}
        return cls(resolved, kind, tuple(lists[pp_rank] for pp_rank in sorted(lists)))

    def instructions(self, pp_rank: int = 0) -> tuple[Instruction, ...]:
        """Instructions of a pipeline rank, in order. Each has `short` (its name), `op`, `reads`, `writes`, `frees`,
        `collectives`, `flops`."""
        return self._list(pp_rank).steps.instructions

    def text(self, pp_rank: int = 0) -> str:
        """The text form: everything that every instruction declares, as `fourfold show --full` prints it."""
        return to_text(self._list(pp_rank))

    def memory_curve(self, pp_rank: int = 0) -> list[int]:
        """Bytes that are live while each instruction runs, one number an instruction. Raises `UserError` for a pipeline rank that
        the layout has not."""
        return memory_curve(self._list(pp_rank))

    def memory_peak(self, pp_rank: int = 0) -> MemoryPeak:
        """The highest point of the curve: `bytes`, the `index` of its instruction, the `buffers` that are live there."""
        return memory_peak(self._list(pp_rank))

    def with_instructions(self, instructions: Iterable[Instruction], pp_rank: int = 0) -> "RunProgram":
        """A copy with other instructions on one pipeline rank."""
        return self._with(self._list(pp_rank).with_instructions(list(instructions)))

    def with_text(self, text: str) -> "RunProgram":
        """A copy with the program that the text form states, on the pipeline rank that it names. Raises `UserError`."""
        program = from_text(text)
        if program.kind != self.kind:
            raise UserError(f"program: kind {program.kind}; allowed: {self.kind}, as the programs that it joins")
        self._list(program.pp_rank)
        return self._with(program)

    def by_rank(self) -> dict[int, Program]:
        """The program of every rank that has one."""
        layout, lists = self.resolved.layout, {program.pp_rank: program for program in self.lists}
        every = ((rank, layout.pp_rank(rank)) for rank in range(layout.world_size))
        return {rank: lists[pp_rank] for rank, pp_rank in every if pp_rank in lists}

    def to_json(self, pp_rank: int = 0) -> dict[str, Any]:
        """The document of `fourfold show --json`: every instruction of a pipeline rank, and the totals."""
        program = self._list(pp_rank)
        document = {**run_heading(self.resolved), "kind": self.kind, "pp_rank": pp_rank}
        return {**document, "program": program_rows(program), "totals": program_totals(program)}

    def lines(self, pp_rank: int, limit: int, where: str) -> list[str]:
        """The text of `fourfold show`: at most `limit` rows (0: all), for the transport of `where`. Raises `UserError` for a
        pipeline rank that the layout has not."""
        program, resolved = self._list(pp_rank), self.resolved
        what = "evaluation" if self.kind == "evaluate" else "training step"
        head = [model_line(resolved), layout_line(resolved), *transport_lines(resolved, where)]
        table = [*table_lines(program, limit), "", *legend_lines(program), "", *totals_lines(program)]
        return [*head, "", f"one {what} of a rank:", *table]

    def comments(self, pp_rank: int, where: str) -> list[str]:
        """Lines behind the text form, on the transport of `where` and on what the letters mean. Raises `UserError` for a pipeline
        rank that the layout has not."""
        lines = [*transport_lines(self.resolved, where), *legend_lines(self._list(pp_rank))]
        return [f"# {line}" for line in lines]

    def _list(self, pp_rank: int) -> Program:
        found = next((program for program in self.lists if program.pp_rank == pp_rank), None)
        if found is None:
            allowed = ", ".join(str(program.pp_rank) for program in self.lists) or "none, there is no program"
            raise UserError(f"pp_rank {pp_rank}: the run has pp = {self.resolved.layout.pp}; allowed: {allowed}")
        return found

    def _with(self, changed: Program) -> "RunProgram":
        lists = (changed if program.pp_rank == changed.pp_rank else program for program in self.lists)
        return replace(self, lists=tuple(lists))

    def __repr__(self) -> str:
        counts = [len(program.instructions) for program in self.lists]
        return (
            f"Program({self.kind}, {self.resolved.layout.world_size} ranks, {len(counts)} lists of "
            f"{min(counts, default=0)} to {max(counts, default=0)} instructions)"
        )

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import program_html

        return program_html(self)
