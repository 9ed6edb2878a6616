"""A TrainJob of Kubeflow Trainer 2.2 or newer: the command on all nodes, the run file in a ConfigMap, a shared claim."""

import shlex

from fourfold.jobs.job import Job, Site, printable
from fourfold.jobs.yaml_text import Value, yaml_text

RUNTIME = "torch-distributed"
"""The runtime that Kubeflow Trainer installs; it tells nodes and address in variables PET_*, which the command reads."""
_RUN_FILES = "/etc/fourfold"
_SHARED, _RUN, _MEMORY = "shared", "run", "memory"


def write(job: Job, site: Site) -> str:
    """The text of both objects."""
    named = {"name": job.name, **({"namespace": site.namespace} if site.namespace is not None else {})}
    run_files: dict[str, Value] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**named, "name": f"{job.name}-run"},
        "data": {"run.toml": job.run_text},
    }
    train_job: dict[str, Value] = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": named,
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": _trainer(job, site),
            "runtimePatches": [{"manager": "fourfold", "trainingRuntimeSpec": _volumes(job, site)}],
        },
    }
    return f"# {job.title}\n{yaml_text(run_files)}---\n{yaml_text(train_job)}"


def _trainer(job: Job, site: Site) -> dict[str, Value]:
    words = ["python", "-m", "fourfold", *job.train_arguments(f"{_RUN_FILES}/run.toml", ())]
    script = [f"cd -- {shlex.quote(printable('--folder', job.folder))}", *site.setup, f"exec {shlex.join(words)}"]
    command = "set -e\n" + "".join(f"{line}\n" for line in script)
    trainer: dict[str, Value] = {
        "image": site.image or "YOUR-IMAGE",
        # Kubernetes itself replaces $(NAME) and $$ before a shell sees them
        "command": ["bash", "-c", command.replace("$", "$$")],
        "numNodes": job.nodes,
        "numProcPerNode": job.ranks_per_node,
    }
    if job.device is not None:
        vendor = "amd.com" if job.device.startswith("mi") else "nvidia.com"
        trainer["resourcesPerNode"] = {"limits": {f"{vendor}/gpu": job.ranks_per_node}}
    return trainer


def _volumes(job: Job, site: Site) -> dict[str, Value]:
    """The claim, the run file, and memory that NCCL's processes share, in the pods of the runtime's job `node`."""
    places = {_SHARED: job.folder, _RUN: _RUN_FILES, _MEMORY: "/dev/shm"}
    mounts: list[Value] = [{"name": name, "mountPath": path} for name, path in places.items()]
    volumes: list[Value] = [
        {"name": _SHARED, "persistentVolumeClaim": {"claimName": site.storage or "YOUR-STORAGE"}},
        {"name": _RUN, "configMap": {"name": f"{job.name}-run"}},
        {"name": _MEMORY, "emptyDir": {"medium": "Memory"}},
    ]
    pod: Value = {"volumes": volumes, "containers": [{"name": "node", "volumeMounts": mounts}]}
    node: Value = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {"template": {"spec": {"replicatedJobs": [node]}}}
