"""Matrices updated from a part of themselves: directions not gathered, or of fewer ranks, or results of fewer owner ranks."""

from collections.abc import Iterator

from fourfold.program import Instruction, Op, Program, RankView
from fourfold.program.muon.rows import MuonOp
from tests.support.program_mutations.edits import Mutant, change, drop, mutation, starts, with_collective
from tests.support.programs import edited, moved, positions, wait_of

FULL = ("direction", "matrices", "homes")


def _reads_part(step: Instruction, part: str) -> Instruction:
    """The instruction, reading a buffer of this kind in place of the full matrices."""
    unit = step.segment or ""
    swapped = {f"{kind}/{unit}": f"{part}/{unit}" for kind in FULL}
    reads, frees = (tuple(swapped.get(name, name) for name in names) for names in (step.reads, step.frees))
    return step._replace(reads=reads, frees=frees)


@mutation
def directions_never_gathered(program: Program, view: RankView) -> Iterator[Mutant]:
    """Whoever orthogonalizes has the directions of its own shard alone, in order and freed as they should be."""
    for index in positions(program, MuonOp.ALL_GATHER_DIRECTIONS):
        gather = program.instructions[index]
        full, own = f"matrices/{gather.segment}", f"direction/{gather.segment}"
        reader = next(i for i, step in enumerate(program.instructions) if full in step.reads)
        changed = _reads_part(program.instructions[reader], own.partition("/")[0])
        yield edited(program, (index, []), (wait_of(program, index), []), (reader, [changed]))


@mutation
def directions_of_fewer_ranks(program: Program, view: RankView) -> Iterator[Mutant]:
    """Over one axis less: shards without their tensor-parallel neighbours' pieces, or pieces without the other shards."""
    for index in positions(program, MuonOp.ALL_GATHER_DIRECTIONS):
        (collective,) = program.instructions[index].collectives
        axes = collective.axes.split("+")
        for gone in axes if len(axes) > 1 else ():
            rest, degree = [axis for axis in axes if axis != gone], view.spec.layout.degree(gone)
            fewer = {"axes": "+".join(rest), "group_size": collective.group_size // degree}
            mutant = with_collective(program, index, 0, **fewer, bytes=collective.bytes // degree)
            yield mutant
            yield change(mutant, index, stream="+".join(rest))


@mutation
def results_of_fewer_owner_ranks(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, MuonOp.ALL_GATHER_ORTHOGONAL):
        yield drop(program, index, wait_of(program, index))
        (collective,) = program.instructions[index].collectives
        for axis in collective.axes.split("+"):
            degree = view.spec.layout.degree(axis)
            if degree < collective.group_size:
                yield with_collective(
                    program,
                    index,
                    0,
                    axes=axis,
                    group_size=degree,
                    bytes=collective.bytes // collective.group_size * degree,
                )


@mutation
def orthogonalized_before_directions_arrive(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, MuonOp.ORTHOGONALIZE):
        gathers = [
            i
            for i in starts(program, MuonOp.ALL_GATHER_DIRECTIONS)
            if program.instructions[i].segment == program.instructions[index].segment
        ]
        for start in gathers:
            yield moved(program, index, wait_of(program, start))


@mutation
def update_of_an_own_result(program: Program, view: RankView) -> Iterator[Mutant]:
    """The update takes what this owner rank computed for what all did."""
    for index in positions(program, Op.UPDATE):
        step = program.instructions[index]
        if any(name.startswith("homes/") for name in step.reads):
            yield edited(program, (index, [_reads_part(step, "home")]))
