"""The declarations of measurements, beside the pass that makes them; and that a sampled step measures everything once."""

from collections import Counter

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Collective, Elementwise, Work, sends
from fourfold.program import buffers as name
from fourfold.program.declared import Declared
from fourfold.program.fault import Fault
from fourfold.program.instruction import Instruction, Op
from fourfold.program.narrow.steps import splits_master
from fourfold.program.program import Program
from fourfold.program.sampling.rows import SAMPLES, SamplingOp, attends, measures
from fourfold.program.totals import SCALAR_BYTES
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """A measurement of a sampled step; none in any other."""
    if not isinstance(step.op, SamplingOp):
        return allowed
    spec, of, owner = view.spec, view.spec.sampled, step.segment or ""
    if kind != "train":
        return []
    if step.op is SamplingOp.SUM_SAMPLES:
        read = (SAMPLES,) if measures(view) else ()
        return [Declared(read, (SAMPLES,), sends(*_sums(view)))] if set(of) - {"experts"} else []
    if step.op in (SamplingOp.MEASURE_UNIT, SamplingOp.MEASURE_UPDATE):
        return _of_unit(step.op, view.flats[owner], view)
    segment, m = view.stages.segments[owner], step.microbatch
    if m is None:
        return []
    if step.op is SamplingOp.MEASURE_SCORES:
        if "attention" not in of or not attends(segment):
            return []
        found = view.footprints.scores(segment)
        reads = tuple(sorted((name.batch(m), name.saved(owner, m))))
        return [Declared(reads, (SAMPLES,), found.work, found.workspace_bytes)]
    following = view.stages.following.get(owner)
    if "activations" not in of or following is None:
        return []
    tokens = spec.layout.tokens // (spec.layout.tp if spec.layout.sequence_parallel else 1)
    size = tokens * spec.model.hidden_size * DTYPE_BYTES[spec.compute]
    return [Declared((name.hidden(following, m),), (SAMPLES,), Work((Elementwise(size, size),)))]


def _of_unit(op: SamplingOp, flat: FlatLayout, view: RankView) -> list[Declared]:
    spec = view.spec
    own = f"master/{flat.unit}" if spec.compute != spec.master else name.values(flat)
    kept, numel = f"before/{flat.unit}", flat.padded_numel // flat.num_shards
    size = numel * DTYPE_BYTES[spec.master]
    joined = size if splits_master(spec) else 0
    if op is SamplingOp.MEASURE_UPDATE:
        work = Work((Elementwise(4 * size, 2 * size, 2),))
        reads = tuple(sorted((kept, own)))
        return [Declared(reads, (SAMPLES,), work, joined)] if "weights" in spec.sampled else []
    inputs, writes, read = list[str](), [SAMPLES], 0
    if "gradients" in spec.sampled:
        inputs.append(name.gradient(flat))
        read += numel * DTYPE_BYTES[spec.gradients]
    if "weights" in spec.sampled:
        inputs.append(own)
        writes.append(kept)
        read += 3 * size
    if not inputs:
        return []
    work = Work((Elementwise(read, read, 2),))
    return [Declared(tuple(sorted(inputs)), tuple(sorted(writes)), work, joined if "weights" in spec.sampled else 0)]


def _sums(view: RankView) -> list[Collective]:
    """Units' numbers over the axes of the gradient norm; outputs and scores over all axes that have others."""
    layout, of = view.spec.layout, view.spec.sampled
    size = SCALAR_BYTES * len(view.spec.segments)
    spread = layout.zero > 0 or layout.ep * layout.etp > 1
    units = ("pp", "dp_shard", "cp", "tp") if spread else ("pp", "tp")
    data = ("pp", "dp_replicate", "dp_shard", "cp")
    found: list[tuple[tuple[str, ...], int]] = [(units, size * (("gradients" in of) + 2 * ("weights" in of)))]
    together = bool(view.spec.model.num_experts)
    for quantity, split in (("activations", layout.sequence_parallel), ("attention", True)):
        if quantity in of:
            found.append(((*data, "tp") if together else data, size))
            found += [(("tp",), size)] if split and not together else []
    return [
        Collective("all_reduce", axes_name(active), each, layout.group_size(active))
        for axes, each in found
        if each and (active := layout.active(axes))
    ]


def check_samples(rank: int, program: Program, view: RankView) -> list[Fault]:
    """Every output and every layer's scores once a microbatch, every unit once on each side of its update, all summed once."""
    if program.kind != "train" or not set(view.spec.sampled) - {"experts"}:
        return []
    of, microbatches = view.spec.sampled, range(view.spec.layout.num_microbatches)
    found = Counter[tuple[SamplingOp, str | None, int | None]]()
    faults: list[Fault] = []
    updated = set[str | None]()
    for index, (pattern, m) in enumerate(program.steps.steps):
        if pattern.op is Op.UPDATE:
            updated.add(pattern.segment)
        if not isinstance(pattern.op, SamplingOp):
            continue
        key = pattern.op, pattern.segment, m
        found[key] += 1
        if found[key] > 1:
            faults.append(Fault.at(rank, program, index, "measures a second time", "drop one"))
        elif pattern.op is SamplingOp.MEASURE_UNIT and pattern.segment in updated:
            fix = f"move it before `U {pattern.segment}`"
            faults.append(Fault.at(rank, program, index, "measures weights that are updated already", fix))
        elif pattern.op is SamplingOp.MEASURE_UPDATE and pattern.segment not in updated:
            fix = f"move it behind `U {pattern.segment}`"
            faults.append(Fault.at(rank, program, index, "measures an update that has not been", fix))
        elif pattern.op is not SamplingOp.SUM_SAMPLES and (SamplingOp.SUM_SAMPLES, None, None) in found:
            faults.append(Fault.at(rank, program, index, "measures after the sum", "move it before `V`"))
    wanted: list[tuple[SamplingOp, str | None, int | None]] = [(SamplingOp.SUM_SAMPLES, None, None)]
    units = [SamplingOp.MEASURE_UNIT] if {"gradients", "weights"} & set(of) else []
    units += [SamplingOp.MEASURE_UPDATE] if "weights" in of else []
    wanted += [(op, unit, None) for op in units for unit in view.flats]
    for segment in view.segments:
        if "activations" in of and segment.name in view.stages.following:
            wanted += [(SamplingOp.MEASURE_OUTPUT, segment.name, m) for m in microbatches]
        if "attention" in of and attends(segment):
            wanted += [(SamplingOp.MEASURE_SCORES, segment.name, m) for m in microbatches]
    last = len(program.instructions) - 1
    for op, owner, m in wanted:
        if not found[op, owner, m]:
            short = Instruction(op, owner, m).short
            faults.append(Fault.at(rank, program, last, f"never runs `{short}`", f"add `{short}`"))
    return faults
