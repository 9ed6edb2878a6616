"""Checks of what can fail before a rank starts: config, data, layout, proof, memory; then the run's folder is written.

A run's lineage says where its state goes and comes from: folders of checkpoints of its own, and the one that a new run begins
from.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fourfold.config import RunConfig, RunFailure, UserError, num_steps
from fourfold.config.own_code import code_in, own_code
from fourfold.config.remote_path import place
from fourfold.config.schema import SkippedData
from fourfold.config.stages import STAGE, Course, Stage, course_of, decayed
from fourfold.data.batches import GlobalBatches
from fourfold.data.prepare import prepare, prepare_in_tokens_of, prepare_validation
from fourfold.data.prepared import PreparedData, open_prepared
from fourfold.data.skipped import pending_rollback
from fourfold.data.stage_place import place_of
from fourfold.data.validation import named_sets
from fourfold.data.weights import shares_by_step
from fourfold.hardware import THIS, load_cluster
from fourfold.launch.branch import inherited
from fourfold.launch.changes import Change, allowed_changes
from fourfold.launch.external import Member
from fourfold.launch.host_memory import host_line, host_need
from fourfold.launch.machine import (
    check_devices,
    check_files,
    device_memory_bytes,
    memory_bytes,
    num_cuda_devices,
    transport_of,
)
from fourfold.launch.resolve import ResolvedRun, stated_vocab_size
from fourfold.launch.run_folder import COPIES, FORMER_ROOTS, STAGES, RunFolder, with_absolute_places
from fourfold.launch.shares import here_of
from fourfold.launch.stages import StagedRun, resolve_stages
from fourfold.launch.undecided import require_decided, require_itself, require_text
from fourfold.launch.warnings import memory_line, warnings_of
from fourfold.program import memory_peak
from fourfold.rendezvous.ownership import KEY, NOBODY, Owner, owner_at, owner_in, require_original, require_own
from fourfold.train.provenance import ALLOWED
from fourfold.train.trackers import require_trackers

if TYPE_CHECKING:
    from fourfold.checkpoint import Manifest, WeightFolder

Report = Callable[[str], None]
_SHOWN_FAULTS = 5


def owner_of(folder: RunFolder) -> Owner:
    """The run that stands in a folder, or one that begins there."""
    return owner_at(owner_in(folder.data()).run or secrets.token_hex(8), folder.path)


def require_own_places(folder: RunFolder, config: RunConfig, old: RunConfig | None, own: Owner) -> None:
    """Raises `UserError` where a folder that the run would save to, or go on from, is another run's; or its own folder a copy of
    one that is still there. `old`: the run that stands there and has begun."""
    require_original(folder.path, own)
    known = folder.checkpoint_roots(old) if old is not None else []
    for root in dict.fromkeys((folder.checkpoint_root(config), *known)):
        require_own(root, own, root in known)


def step_to_go_on_from(folder: RunFolder, old: RunConfig) -> int | None:
    """The step of the newest checkpoint whose manifest can be read; of the newest where none can, which the ranks then tell; None
    without one. Raises `FinalFailure` where another version of fourfold wrote it."""
    saved = folder.saved_checkpoints(old)
    manifest = _newest_manifest(saved)
    return manifest.step if manifest is not None else max(saved, default=None)


def _newest_manifest(saved: Mapping[int, Path]) -> "Manifest | None":
    """The manifest of the newest checkpoint that has a readable one."""
    if not saved:
        return None
    from fourfold.checkpoint import DamagedCheckpoint, read_manifest

    for step in sorted(saved, reverse=True):
        with suppress(DamagedCheckpoint):
            return read_manifest(saved[step])
    return None


def require_room(config: RunConfig, each_bytes: int) -> None:
    """Raises `UserError` where `checkpoint.max_bytes` has no room for the checkpoints that always stay, of so many bytes each."""
    section = config.checkpoint
    most, always = section.max_bytes, section.keep + section.keep_best
    if most is None or most >= always * each_bytes:
        return
    best = " and the best" if section.keep_best else ""
    works = [f"checkpoint.max_bytes={always * each_bytes}"]
    if (fewer := most // each_bytes - section.keep_best) >= 1:
        works.append(f"checkpoint.keep={fewer}")
    raise UserError(
        f"checkpoint.max_bytes = {most}: a checkpoint of this run has {each_bytes} bytes, and the latest checkpoint.keep = "
        f"{section.keep}{best} always stay; what works: {' or '.join(works)}"
    )


def require_same_code(folder: RunFolder, old: RunConfig) -> None:
    """Raises `UserError` where the run that stands in a folder was saved by other code than this. A run of a version that recorded
    none goes on."""
    manifest = _newest_manifest(folder.saved_checkpoints(old))
    if manifest is not None and own_code().differs(saved_by := code_in(manifest.info)):
        raise UserError(
            f"--out {folder.path}: the checkpoint of step {manifest.step} was saved by {saved_by}, and this is {own_code()}: other "
            f"code may compute other numbers; what works: --allow-other-code to go on with it, which the run's events then say, or "
            f"that code again"
        )


def settle_rollback(folder: RunFolder) -> None:
    """Ends a return to an earlier step that was cut short. Raises `RunFailure`."""
    if pending_rollback(folder.path) is not None and (old := folder.launched()) is not None:
        from fourfold.train.state import finish_rollback

        finish_rollback(old, folder.path)


def with_decay(config: RunConfig, folder: RunFolder, steps: int | None) -> RunConfig:
    """The run, with a decay to 0 from the newest checkpoint in its folder on where `steps` are asked for. Raises `UserError` where
    there is none."""
    if steps is None:
        return config
    if steps < 1:
        raise UserError(f"--decay {steps}: allowed: 1 step or more; a value that works: --decay 500")
    old = folder.launched()
    step = step_to_go_on_from(folder, old) if old is not None else None
    if old is not None and old.stage and old.stage[-1].optimizer.get("schedule") == "decay":
        course = course_of(old)
        begun, horizon = course.stages[-1].begin, {"horizon_steps": old.optimizer.horizon_steps}
        if begun <= (step or 0):  # the run goes on from what stands there, not from the run file
            optimizer = config.optimizer.model_copy(update=horizon)
            config = config.model_copy(update={"stage": old.stage, "batch": old.batch, "optimizer": optimizer})
            if course.steps == begun + steps:  # the same command again, once it was interrupted
                return config
    if step is None:
        raise UserError(
            f"--decay {steps}: {folder.path} holds no run with a checkpoint to begin at; what works: the folder of such a run with "
            f"--out"
        )
    found = decayed(config, step, steps)
    if course_of(found).learning_rate(step) == 0 and steps > 1:
        raise UserError(
            f"--decay {steps}: the learning rate of {folder.path} has come to 0 at step {step}; allowed: a run whose rate is "
            f"above; what works: --from {folder.path}@ and an earlier step"
        )
    return found


def first_step(config: RunConfig) -> int:
    """The step at which a new run begins: that of the checkpoint that `checkpoint.start_from` leads to, or 0. Raises `UserError`
    and `RunFailure`."""
    manifest = first_manifest(config)
    return manifest.step if manifest is not None else 0


def first_manifest(config: RunConfig) -> "Manifest | None":
    """The manifest of the checkpoint that `checkpoint.start_from` leads to; None where nothing is stated. Raises `UserError` and
    `RunFailure`."""
    stated = config.checkpoint.start_from
    if stated is None:
        return None
    from fourfold.checkpoint import DamagedCheckpoint, read_manifest
    from fourfold.train.state import start_paths

    problems = []
    for path in start_paths(place(stated)):
        try:
            manifest = read_manifest(path)
            step = manifest.step
        except DamagedCheckpoint as error:
            problems.append(f"\n  {error.problem}")
            continue
        if step >= num_steps(config):
            raise UserError(
                f"checkpoint.start_from = {stated}: begins at step {step}, and batch.steps = {num_steps(config)}; allowed: "
                f"more steps than that; what works: batch.steps={2 * step}"
            )
        return manifest
    raise UserError(
        f"checkpoint.start_from = {stated}: holds no checkpoint that can be read; allowed: a run's folder, a folder of "
        f"checkpoints, or one such as runs/tiny/checkpoints/step-000100{''.join(problems)}"
    )


@dataclass(frozen=True)
class ReadyRun:
    """A run whose folder can be written and whose ranks can start. `staged`: all of it; `stage`: the one that begins, or goes on;
    `prepared`: the data of each. `warnings`: one line each. `changes`: keys in which it differs from the run that stands in the
    folder, which goes on from step `step` under them. `former_roots`: folders of checkpoints that it saved to before. `tokens`:
    fingerprints of the data of each stage. `owner`: the run, and its place. `validation`: descriptions of the
    data of `run.validation`, by name. `copies`: those from which the run goes on, where its disk holds no checkpoint.
    `inherited`: data that the run leaves out because the one that it branches from did."""

    staged: StagedRun
    stage: Stage
    prepared: tuple[PreparedData, ...]
    peak_bytes: int
    warnings: tuple[str, ...]
    changes: tuple[Change, ...] = ()
    step: int = 0
    former_roots: tuple[Path, ...] = ()
    tokens: tuple[str, ...] = ()
    owner: Owner = NOBODY
    validation: Mapping[str, str] = field(default_factory=dict)
    allows_other_code: bool = False
    copies: str | None = None
    inherited: tuple[SkippedData, ...] = ()

    @property
    def resolved(self) -> ResolvedRun:
        """The stage that is launched."""
        return self.staged.resolved[self.stage.number]

    def data_table(self, start: str | None = None) -> dict[str, Any]:
        """The content of `data.json`. `start`: a token that tells other ranks of this launch to begin."""
        of_stages = [
            {"prepared": str(prepared.path), "corpus_id": prepared.corpus_id, "tokens": tokens}
            for prepared, tokens in zip(self.prepared, self.tokens, strict=True)
        ]
        table: dict[str, Any] = {**of_stages[self.stage.number], KEY: asdict(self.owner)}
        if len(of_stages) > 1:
            table |= {STAGE: self.stage.number, STAGES: of_stages}
        if self.validation:
            table["validation"] = dict(self.validation)
        if levels := _levels(self.resolved.config):
            table["levels"] = levels
        if self.allows_other_code:
            table[ALLOWED] = True
        if self.copies is not None:
            table[COPIES] = self.copies
        if self.former_roots:
            table[FORMER_ROOTS] = [str(path) for path in self.former_roots]
        return {**table, "start": start} if start is not None else table


def _levels(config: RunConfig) -> list[list[float]]:
    """(devices that it joins, bytes a second of one of them) of each interconnect level of `cluster.preset`: what ranks hold their
    links' rates against. Empty where the run file states no cluster, or it is not there any more."""
    if config.cluster.preset == THIS:
        return []
    with suppress(UserError):
        return [
            [level.devices, level.device_bytes_per_second] for level in load_cluster(config.cluster.preset).all_levels
        ]
    return []


def finished_at(folder: RunFolder, config: RunConfig) -> int | None:
    """The step at which the run of this config finished in this folder; None where there is something left to do."""
    step = folder.finished_step()
    return step if step is not None and step >= num_steps(config) else None


def prepare_run(
    config: RunConfig,
    ranks: int | None,
    folder: RunFolder,
    report: Report,
    member: Member | None = None,
    spares: int = 0,
    change: bool = False,
    allow_other_code: bool = False,
) -> ReadyRun:
    """Checks what needs no data first, then prepares the data, then checks the rest. Writes nothing but the data's cache.

    A run that stands in `folder` must be the same one (`allowed_changes`, which `change` is for). `member`: this
    supervisor, where there are others. `spares`: devices of this machine beside those of its ranks. `allow_other_code`: the run may
    go on under other code than saved it. Raises `UserError` and `RunFailure`.
    """
    config = with_absolute_places(config)
    course = course_of(config)
    for each in course.stages:
        shares_by_step(each.config.data, course.step_after)
    require_trackers(config.run.log)
    cuda_devices = num_cuda_devices(config)
    if ranks is None and config.layout.dp_shard is None and cuda_devices > 0:
        ranks = cuda_devices * (member.count if member is not None else 1)
    transport = transport_of(config, cuda_devices)
    old, owner = folder.launched(), owner_of(folder)
    has_begun = old is not None and (folder.steps_done() > 0 or bool(folder.saved_steps(old)))
    require_own_places(folder, config, old if has_begun else None, owner)
    if old is not None and has_begun and not allow_other_code:
        require_same_code(folder, old)
    saved = folder.saved_steps(old) if old is not None else []
    goes_on = step_to_go_on_from(folder, old) if old is not None else None
    first = first_manifest(config) if goes_on is None else None
    step = goes_on if goes_on is not None else (first.step if first is not None else 0)
    left_out = inherited(config, first.info, first.step) if first is not None else ()
    known = _open_existing(folder, 0)
    vocab_size = known.vocab_size if known is not None else stated_vocab_size(config.model, config.data)
    staged = resolve_stages(config, ranks, vocab_size, transport)
    stage = course.stage_at(min(step, course.steps - 1))
    resolved = staged.resolved[stage.number]
    begins = folder.steps_done() == 0
    if begins:
        require_itself(config)
        require_decided(config, resolved.model)
    local = here_of(resolved.layout.world_size, member) * (member.local_count if member is not None else 1)
    check_devices(config, cuda_devices, here_of(resolved.layout.world_size, member) + spares)
    check_files(resolved.layout.world_size, transport, member.count if member is not None else 1)
    changes: tuple[Change, ...] = ()
    if old is not None and has_begun:
        if known is None and old.data == config.data:
            staged = resolve_stages(config, ranks, old.model.vocab_size, transport)
        changes = allowed_changes(folder.path, old, staged.config, change, max(saved, default=0))
    require_room(config, resolved.spec.checkpoint_bytes)
    weights = _open_initial(resolved)
    begun = stage.number + 1 if has_begun else 0
    prepared = _prepared(folder, staged.course, begun, report)
    tokens = _fingerprints(folder, prepared, staged.course, begun)
    staged = resolve_stages(config, ranks, prepared[0].vocab_size, transport)
    resolved = staged.resolved[stage.number]
    validation = prepare_validation(config, prepared[0], report)
    often: list[str] = []
    for each, data in zip(staged.course.stages, prepared, strict=True):
        named_sets(each.config, data, validation)
        batches = GlobalBatches.of_run(data, each.config, place_of(staged.course, each))
        batches.validation(each.config.run.evaluate_sequences)
        often += [line for read in batches.readings(each.end) if (line := read.notice(each.end)) is not None]
    if begins:
        require_text(config, resolved.model, prepared[0].vocab_size, prepared[0].train_tokens)
    _require_proof(staged)
    notes: tuple[str, ...] = ()
    if weights is not None:
        notes = tuple(f"note: {note}" for note in weights.check_against(resolved.model))
    peak = max(memory_peak(p).bytes for p in (resolved.with_checks().train_programs[0], resolved.evaluate_programs[0]))
    roots = [path.absolute() for path in folder.checkpoint_roots(old)] if old is not None and saved else []
    former = tuple(path for path in roots if path != folder.checkpoint_root(resolved.config).absolute())
    every = [prepared[stage.number], *validation.values()]
    missing = [line for each in every if each.left_out().keys() - {"unread_files"} for line in each.notices()]
    missing += dict.fromkeys(often)
    before, seen = old if has_begun else None, [*missing, *_memory_lines(resolved, peak, local, cuda_devices)]
    warnings = (*warnings_of(config, resolved.model, before, step, seen), *notes)
    places = {name: str(each.path) for name, each in validation.items()}
    copies = folder.data().get(COPIES) if old is not None and not folder.checkpoints_on_disk(old) else None
    return ReadyRun(
        staged,
        stage,
        prepared,
        peak,
        warnings,
        changes,
        step,
        former,
        tokens,
        owner,
        places,
        allow_other_code,
        copies,
        left_out,
    )


def _prepared(folder: RunFolder, course: Course, begun: int, report: Report) -> tuple[PreparedData, ...]:
    """The data of every stage, in the tokens of the first one's tokenizer. `begun`: how many of them have, whose data stay."""
    found: list[PreparedData] = []
    for stage in course.stages:
        data = stage.config.data
        same = next((n for n in range(stage.number) if course.stages[n].config.data.corpus == data.corpus), None)
        known = _open_existing(folder, stage.number) if stage.number < begun else None
        if same is not None:
            found.append(found[same])
        elif known is not None:
            found.append(known)
        elif found:
            found.append(prepare_in_tokens_of(found[0], data, report))
        else:
            found.append(prepare(data, report))
    return tuple(found)


def _fingerprints(folder: RunFolder, prepared: Sequence[PreparedData], course: Course, begun: int) -> tuple[str, ...]:
    """The fingerprint of each stage's data. Raises `UserError` where data of a stage that has begun are not those with which it
    began."""
    found: list[str] = []
    for stage, data in zip(course.stages, prepared, strict=True):
        same = next((number for number in range(stage.number) if prepared[number] is data), None)
        if same is not None:
            found.append(found[same])
            continue
        told = folder.stage_data(stage.number) if stage.number < begun else {}
        corpus_id = told.get("corpus_id", data.corpus_id)
        if corpus_id != data.corpus_id:
            raise UserError(
                f"--out {folder.path}: data.corpus = {stage.config.data.corpus!r} has changed since this run began (it was "
                f"{corpus_id[:16]}, it is {data.corpus_id[:16]}); restore it, or name another folder, for example --out "
                f"{folder.path}-2"
            )
        if (tokens := told.get("tokens")) is not None:
            data.require(tokens)
        found.append(tokens or data.fingerprint())
    return tuple(found)


def _memory_lines(resolved: ResolvedRun, peak: int, local: int, cuda_devices: int) -> list[str]:
    """Warnings that the machine, or a device of it, has less memory than the ranks need."""
    need = host_need(resolved, cuda_devices > 0)
    if cuda_devices > 0:
        return [*memory_line(peak, 1, device_memory_bytes(), "its device"), *host_line(need, local, memory_bytes())]
    return memory_line(peak + need.bytes, local, memory_bytes(), "this machine")


def _open_existing(folder: RunFolder, stage: int) -> PreparedData | None:
    """The data that a stage of the run in this folder was trained on, where they are still there."""
    path = folder.stage_data(stage).get("prepared")
    if not isinstance(path, str):
        return None
    try:
        prepared = open_prepared(Path(path))
        for part in prepared.parts:
            prepared.streams(part)
    except RunFailure:
        return None
    return prepared


def _require_proof(staged: StagedRun) -> None:
    faults = list(staged.faults())
    if faults:
        shown = "\n".join(f"  {fault}" for fault in faults[:_SHOWN_FAULTS])
        more = f"\n  and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise RunFailure(
            f"the program of this run is not sound, so no rank was started; this is a defect of fourfold, please report it:\n"
            f"{shown}{more}"
        )


def _open_initial(resolved: ResolvedRun) -> "WeightFolder | None":
    """The initial weights. Raises where they are not there or not whole."""
    initial = resolved.config.model.initial
    if initial is None:
        return None
    from fourfold.checkpoint import WeightFolder

    return WeightFolder(Path(initial))
