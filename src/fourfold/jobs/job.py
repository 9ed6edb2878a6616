"""A run as a job: its nodes, its ranks, its command; and the names that only a site knows."""

import re
from dataclasses import dataclass, fields
from pathlib import PurePath

from fourfold.config import RunConfig, UserError
from fourfold.config.presets import RUN_PRESET
from fourfold.hardware import Cluster

LONGEST_NAME = 40
"""Kubernetes puts some 20 characters behind a job's name and takes 63."""


@dataclass(frozen=True)
class Job:
    """`fourfold train` on `nodes` x `ranks_per_node` ranks.

    `program`: how the nodes call fourfold. `run_file`: an absolute path on this machine, or preset:NAME. `run_text`: that run with
    its overrides, as TOML. `folder`: an absolute path that all nodes share; the run's folder is `run_folder` below it.
    `device`: the key of the devices, None on CPUs.
    """

    name: str
    program: str
    run_file: str
    overrides: tuple[str, ...]
    run_text: str
    folder: str
    nodes: int
    ranks_per_node: int
    device: str | None

    @property
    def run_folder(self) -> str:
        return f"runs/{self.name}"

    @property
    def is_preset(self) -> bool:
        return self.run_file.startswith(RUN_PRESET)

    @property
    def title(self) -> str:
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return f"{self.name}: fourfold train on {nodes} of {self.ranks_per_node} ranks"

    def train_arguments(self, run_file: str, overrides: tuple[str, ...]) -> list[str]:
        """The words of the command behind the program's name, which is given once on each node: its supervisor starts the node's
        ranks, so that the one that leads hears of as many others as there are nodes, not ranks."""
        return ["train", run_file, *overrides, "--ranks", str(self.ranks_per_node), "--out", self.run_folder]


_NAMES = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._/@:+,=*-]{0,199}")


@dataclass(frozen=True)
class Site:
    """Names that the writer of a job cannot know, each an option of `fourfold job`; None: not stated."""

    setup: tuple[str, ...] = ()
    """A shell line that every node runs first, for example 'source /shared/venv/bin/activate'. Can be repeated."""
    partition: str | None = None
    """Slurm's partition."""
    account: str | None = None
    """Slurm's account."""
    time: str | None = None
    """Slurm's time limit, for example 2-00:00:00. 5 minutes before its end the run is saved; then the job starts again."""
    image: str | None = None
    """The container image that holds fourfold (k8s, skypilot)."""
    storage: str | None = None
    """The PersistentVolumeClaim (k8s) or volume (skypilot) that all nodes read and write."""
    namespace: str | None = None
    """Kubernetes' namespace."""
    infra: str | None = None
    """SkyPilot's cloud, as cloud/region/zone, or k8s."""
    accelerator: str | None = None
    """SkyPilot's name of the devices. Default: that of the cluster's devices."""

    def __post_init__(self) -> None:
        for name in self.stated():
            value = getattr(self, name)
            if not _NAMES.fullmatch(value):
                raise UserError(
                    f"--{name} {value!r}: allowed: letters, digits and ._/@:+,=- ; a value that works: --{name} {_EXAMPLES[name]}"
                )
        for line in self.setup:
            printable("--setup", line)

    def stated(self) -> list[str]:
        """Options with a value, but `setup`."""
        return [each.name for each in fields(self) if each.name != "setup" and getattr(self, each.name) is not None]


_EXAMPLES = {
    "partition": "gpu",
    "account": "my-project",
    "time": "2-00:00:00",
    "image": "registry.example.org/fourfold:1",
    "storage": "shared-data",
    "namespace": "training",
    "infra": "k8s",
    "accelerator": "H100",
}


def printable(what: str, text: str) -> str:
    """`text`. Raises `UserError` for line ends and control characters, which the files of jobs cannot hold everywhere."""
    if not text.isprintable():
        raise UserError(f"{what} {text!r}: allowed: text in one line without control characters; rename it")
    return text


def job_name(run: str) -> str:
    """The stem of a run file, or a preset's name, in the letters that every scheduler takes: a-z, 0-9 and -."""
    stem = run.removeprefix(RUN_PRESET) if run.startswith(RUN_PRESET) else PurePath(run).stem
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    return (name if name[:1].isalpha() else f"run-{name}")[:LONGEST_NAME].rstrip("-")


_NOT_CUDA = ("ascend", "gaudi", "max-", "tpu", "trainium")


def devices_of_node(cluster: Cluster) -> int:
    """Devices that one host holds. Raises `UserError` for devices that fourfold plans for and does not run on."""
    if cluster.device.key.startswith(_NOT_CUDA):
        raise UserError(
            f"cluster {cluster.key}: fourfold plans for {cluster.device.name} and trains on CUDA devices and CPUs; a value that "
            f"works: --cluster dgx-h100:64"
        )
    return cluster.host_devices


def divide(ranks: int, devices: int) -> tuple[int, int]:
    """(nodes, ranks of each) for hosts of so many devices. Raises `UserError` where the ranks fill no equal nodes."""
    each = min(ranks, devices)
    if ranks % each:
        best = max(size for size in range(1, each + 1) if ranks % size == 0)
        raise UserError(
            f"{ranks} ranks fill no whole nodes of {devices} devices; what works: --devices-per-node {best} "
            f"({ranks // best} nodes), or a layout of {ranks // each * each} ranks"
        )
    return ranks // each, each


def paths_of(config: RunConfig) -> list[str]:
    """Files and folders that the run reads, as `key = path`: the nodes must see them too."""
    data, model = config.data, config.model
    corpora = [data.corpus] if isinstance(data.corpus, str) else [part.path for part in data.corpus]
    found = [("data.corpus", path) for path in corpora if path != "stdlib"]
    found += [("run.validation", each.corpus) for each in config.run.validation if each.corpus != "stdlib"]
    if data.tokenizer != "bytes" and not data.tokenizer.startswith("bpe:"):
        found.append(("data.tokenizer", data.tokenizer))
    schedule = config.layout.schedule
    found += [("layout.schedule", schedule.removeprefix("file:"))] if schedule.startswith("file:") else []
    stated = [("model.hf", model.hf), ("model.initial", model.initial)]
    return [f"{key} = {path}" for key, path in [*found, *stated] if path is not None]
