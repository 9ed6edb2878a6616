"""`fourfold job`: a run as the file that a scheduler takes, and what it still needs."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fourfold.api.inputs import AS_NEAREST
from fourfold.config import RunConfig, UserError, dump_run, load_run, num_steps
from fourfold.config.presets import RUN_PRESET
from fourfold.config.run_file import require_trust
from fourfold.hardware import THIS, Cluster, is_path, load_cluster, require_count
from fourfold.jobs import TARGETS, Job, Site, Target
from fourfold.jobs.job import devices_of_node, divide, job_name, paths_of
from fourfold.launch.resolve import resolve_run, stated_vocab_size
from fourfold.launch.undecided import require_decided, require_itself


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The nodes that a job takes, and the folder that they share."""

    cluster: str | None = None
    """NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset."""
    nodes: int | None = None
    """How many nodes. Default: as many as the layout, or else the cluster, has."""
    devices_per_node: int | None = None
    """Devices of a node. Default: the cluster's. On CPUs: ranks of a node."""
    folder: str | None = None
    """A folder that all nodes share: data are prepared and runs/NAME is written there, and relative paths of the run file begin
    there. Default: the current folder (slurm), or /shared (k8s, skypilot), where the storage is mounted."""


@dataclass(frozen=True, kw_only=True)
class CodeOptions:
    """Permission to run the nearest model, and to import code."""

    as_nearest: bool = False
    """Submit a run file whose model only stands for another (model.nearest_to)."""
    trust: bool = False
    """Import the Python code that the run names (layout.schedule, model.block = python:...), to count its ranks."""


@dataclass(frozen=True)
class JobFile:
    """A job's file. `title`: which run on how many nodes. `notes`: lines on what it still needs."""

    text: str
    title: str
    notes: tuple[str, ...]


def job_file(
    run: Path,
    overrides: tuple[str, ...],
    scheduler: str,
    where: NodeOptions | None = None,
    site: Site | None = None,
    code: CodeOptions | None = None,
) -> JobFile:
    """The file for a scheduler. Raises `UserError`."""
    where, site, code = where or NodeOptions(), site or Site(), code or CodeOptions()
    overrides = (*overrides, AS_NEAREST) if code.as_nearest else overrides
    target = TARGETS[scheduler]
    target.check(scheduler, site)
    config = require_trust(load_run(run, overrides), code.trust)
    num_steps(config)
    job = _job(run, overrides, config, where, _folder(where.folder, target))
    config = load_run(run, overrides, as_written=True)
    return JobFile(target.write(job, site), job.title, tuple(_notes(config, job, target, site)))


def _job(run: Path, overrides: tuple[str, ...], config: RunConfig, where: NodeOptions, folder: str) -> Job:
    cluster, nodes = where.cluster, where.nodes
    machine = _machine(cluster or config.cluster.preset, where)
    if machine is not None:
        config = config.on_cluster(cluster or config.cluster.preset)
        if config.layout.auto and cluster is not None:  # the ranks plan again, for the same cluster
            overrides = (*overrides, f"cluster.preset={os.path.abspath(cluster) if is_path(cluster) else cluster}")
    devices = where.devices_per_node or (devices_of_node(machine) if machine is not None else 1)
    ranks = nodes * devices if nodes is not None else machine.devices if machine is not None else None
    fills = config.layout.dp_shard is None
    if fills and nodes is None and machine is not None:
        require_count(cluster or config.cluster.preset)
    resolved = resolve_run(config, ranks if fills else None, stated_vocab_size(config.model, config.data))
    require_itself(config)
    require_decided(config, resolved.model)
    world = resolved.layout.world_size
    if ranks is not None and (world > ranks or (nodes is not None and world != ranks)):
        raise UserError(
            f"the layout has {world} ranks, the nodes have {ranks}; leave layout.dp_shard out to take all, or state --nodes "
            f"{-(-world // devices)}" + ("" if nodes is not None else f", or a cluster of {world} devices")
        )
    count, each = divide(world, devices)
    return Job(
        name=job_name(str(run)),
        program=_program(),
        run_file=str(run) if str(run).startswith(RUN_PRESET) else os.path.abspath(run),
        overrides=overrides,
        run_text=dump_run(load_run(run, overrides, as_written=True), brief=True),
        folder=folder,
        nodes=count,
        ranks_per_node=each,
        device=None if config.run.device == "cpu" else "" if machine is None else machine.device.key,
    )


def _machine(name: str, where: NodeOptions) -> Cluster | None:
    """The cluster; None where the nodes are stated instead."""
    for option, value in (("nodes", where.nodes), ("devices-per-node", where.devices_per_node)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise UserError(f"--{option} {value}: allowed: 1 to 1000000; a value that works: --{option} 8")
    if name != THIS:
        return load_cluster(name)
    if where.devices_per_node is None:
        raise UserError(
            "the nodes are not known: the run file's [cluster] names none; what works: --cluster dgx-h100:64, a cluster file, or "
            "--nodes 2 --devices-per-node 8"
        )
    return None


def _program() -> str:
    """How the nodes call this program: its name where the shell finds it, else its path."""
    called = os.path.abspath(sys.argv[0])
    return called if os.path.basename(called) == "fourfold" and shutil.which("fourfold") is None else "fourfold"


def _folder(stated: str | None, target: Target) -> str:
    folder = stated if stated is not None else target.folder or os.getcwd()
    if not os.path.isabs(folder):
        raise UserError(
            f"--folder {folder}: should be an absolute path, which means the same on every node; for example /shared"
        )
    return folder


def _notes(config: RunConfig, written: Job, target: Target, site: Site) -> list[str]:
    """Lines about what the file still needs, and what the nodes have to see."""
    notes = []
    if missing := target.missing(written, site):
        notes.append(f"state before you submit (YOUR-... in the file): {', '.join(missing)}")
    if defaults := target.defaults(site):
        notes.append(f"left to the cluster's defaults: {', '.join(defaults)}")
    if target.folder is not None and (paths := paths_of(config)):
        notes.append(f"the nodes must see, relative paths from {written.folder}: {'; '.join(paths)}")
    if config.checkpoint.every_steps is None:
        notes.append(
            "checkpoint.every_steps is not stated: after a lost node the run begins again; for example checkpoint.every_steps=500"
        )
    return notes
