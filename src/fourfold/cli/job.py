"""`fourfold job`: a run as the file that a scheduler takes, for `fourfold train` on several nodes."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.cli.options import AS_NEAREST, Flag, Repeated, check_new_file, write_new_file
from fourfold.config import RunConfig, UserError, dump_run, load_run, num_steps
from fourfold.config.presets import RUN_PRESET
from fourfold.config.run_file import require_trust
from fourfold.hardware import THIS, Cluster, is_path, load_cluster, require_count
from fourfold.jobs import TARGETS, Job, Site, Target
from fourfold.jobs.job import devices_of_node, divide, job_name, paths_of
from fourfold.launch.resolve import resolve_run, stated_vocab_size
from fourfold.launch.undecided import require_decided, require_itself


def job(
    run: Path,
    /,
    *overrides: str,
    as_: Annotated[Literal["slurm", "k8s", "skypilot"], Parameter(name="--as")],
    cluster: str | None = None,
    nodes: int | None = None,
    devices_per_node: int | None = None,
    folder: str | None = None,
    setup: Repeated = None,
    partition: str | None = None,
    account: str | None = None,
    time: str | None = None,
    image: str | None = None,
    storage: str | None = None,
    namespace: str | None = None,
    infra: str | None = None,
    accelerator: str | None = None,
    as_nearest: Flag = False,
    trust: Flag = False,
    out: Path | None = None,
) -> int:
    """Write a run as a job: an sbatch script, a TrainJob of Kubeflow Trainer, or a SkyPilot task. Needs no torch.

    Nodes and ranks are the layout's on the cluster. After a lost node the job starts again and resumes from its newest checkpoint.

    Parameters
    ----------
    run
        A run file or preset:NAME.
    overrides
        Keys of the run file, as section.key=value.
    as_
        The scheduler: slurm, k8s (Kubeflow Trainer 2.2 or newer) or skypilot.
    cluster
        NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset.
    nodes
        How many nodes. Default: as many as the layout, or else the cluster, has.
    devices_per_node
        Devices of a node. Default: the cluster's. On CPUs: ranks of a node.
    folder
        A folder that all nodes share: data are prepared and runs/NAME is written there, and relative paths of the run file begin
        there. Default: the current folder (slurm), or /shared (k8s, skypilot), where the storage is mounted.
    setup
        A shell line that every node runs first, for example 'source /shared/venv/bin/activate'. Can be repeated.
    partition
        Slurm's partition.
    account
        Slurm's account.
    time
        Slurm's time limit, for example 2-00:00:00. 5 minutes before its end the run is saved; then the job starts again.
    image
        The container image that holds fourfold (k8s, skypilot).
    storage
        The PersistentVolumeClaim (k8s) or volume (skypilot) that all nodes read and write.
    namespace
        Kubernetes' namespace.
    infra
        SkyPilot's cloud, as cloud/region/zone, or k8s.
    accelerator
        SkyPilot's name of the devices. Default: that of the cluster's devices.
    as_nearest
        Submit a run file whose model only stands for another (model.nearest_to).
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...), to count its ranks.
    out
        The file to write. Default: it is printed.
    """
    overrides = (*overrides, AS_NEAREST) if as_nearest else overrides
    target = TARGETS[as_]
    site = Site(tuple(setup or ()), partition, account, time, image, storage, namespace, infra, accelerator)
    target.check(as_, site)
    if out is not None:
        check_new_file(out, out.name, f"new-{out.name}")
    written, config = _written(run, overrides, target, cluster, nodes, devices_per_node, folder, trust)
    text = target.write(written, site)
    notes = _notes(config, written, target, site)
    if out is None:
        print(text, end="")
        print("\n".join(notes), file=sys.stderr)
        return 0
    write_new_file(out, text)
    submit = target.submit.format(shlex.quote(str(out)))
    print("\n".join([f"{written.title}: written to {out}; submit it: {submit}", *notes]))
    return 0


def job_text(run: Path, scheduler: str, trust: bool = False) -> tuple[str, list[str]]:
    """The file for a scheduler with every option left out, and lines about what it still needs. Raises `UserError`."""
    target, site = TARGETS[scheduler], Site()
    written, config = _written(run, (), target, trust=trust)
    return target.write(written, site), _notes(config, written, target, site)


def _written(
    run: Path,
    overrides: tuple[str, ...],
    target: Target,
    cluster: str | None = None,
    nodes: int | None = None,
    devices_per_node: int | None = None,
    folder: str | None = None,
    trust: bool = False,
) -> tuple[Job, RunConfig]:
    config = require_trust(load_run(run, overrides), trust)
    num_steps(config)
    written = _job(run, overrides, config, cluster, nodes, devices_per_node, _folder(folder, target))
    return written, load_run(run, overrides, as_written=True)


def _job(
    run: Path,
    overrides: tuple[str, ...],
    config: RunConfig,
    cluster: str | None,
    nodes: int | None,
    devices_per_node: int | None,
    folder: str,
) -> Job:
    machine = _machine(cluster or config.cluster.preset, nodes, devices_per_node)
    if machine is not None:
        config = config.on_cluster(cluster or config.cluster.preset)
        if config.layout.auto and cluster is not None:  # the ranks plan again, for the same cluster
            overrides = (*overrides, f"cluster.preset={os.path.abspath(cluster) if is_path(cluster) else cluster}")
    devices = devices_per_node or (devices_of_node(machine) if machine is not None else 1)
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


def _machine(name: str, nodes: int | None, devices_per_node: int | None) -> Cluster | None:
    """The cluster; None where the nodes are stated instead."""
    for option, value in (("nodes", nodes), ("devices-per-node", devices_per_node)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise UserError(f"--{option} {value}: allowed: 1 to 1000000; a value that works: --{option} 8")
    if name != THIS:
        return load_cluster(name)
    if devices_per_node is None:
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
