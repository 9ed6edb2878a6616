"""A SkyPilot task: torchrun on every node, a volume that all nodes share, a new start after lost nodes (`sky jobs launch`)."""

import shlex

from fourfold.jobs.job import Job, Site, printable
from fourfold.jobs.yaml_text import Value, yaml_text

ACCELERATORS = {
    "a100-sxm-40": "A100",
    "a100-sxm-80": "A100-80GB",
    "a10g": "A10G",
    "b200": "B200",
    "b300": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "v100-sxm-16": "V100",
    "v100-sxm-32": "V100-32GB",
}
"""SkyPilot's names of devices that clouds rent out."""
_RUN_FILE = "~/fourfold/run.toml"
_PORT = 29500
_RESTARTS = 3


def write(job: Job, site: Site) -> str:
    """The text of the task."""
    resources: dict[str, Value] = {"infra": site.infra} if site.infra is not None else {}
    if job.device is not None:
        resources["accelerators"] = f"{accelerator(job, site) or 'YOUR-ACCELERATOR'}:{job.ranks_per_node}"
        resources["network_tier"] = "best"
    if site.image is not None:
        resources["image_id"] = f"docker:{site.image}"
    resources["job_recovery"] = {"max_restarts_on_errors": _RESTARTS}
    task: dict[str, Value] = {"name": job.name, "num_nodes": job.nodes, "resources": resources}
    task["volumes"] = {job.folder: site.storage or "YOUR-STORAGE"}
    if not job.is_preset:
        task["file_mounts"] = {_RUN_FILE: printable("the run file", job.run_file)}
    setup = list(site.setup) or ["pip install 'fourfold[train]'"]
    task["setup"] = "".join(f"{line}\n" for line in ["set -e", *setup])
    task["run"] = _script(job)
    return f"# {job.title}\n{yaml_text(task)}"


def accelerator(job: Job, site: Site) -> str | None:
    """SkyPilot's name of the job's devices, where it is stated or known."""
    return site.accelerator or ACCELERATORS.get(job.device or "")


def _script(job: Job) -> str:
    words = ["train", job.run_file] if job.is_preset else ["train"]
    command = shlex.join(words) + ("" if job.is_preset else f' "$HOME"{_RUN_FILE.removeprefix("~")}')
    words = [*(printable("the override", each) for each in job.overrides), "--ranks", str(job.ranks_per_node)]
    rest = shlex.join([*words, "--out", job.run_folder])
    return (
        f"cd -- {shlex.quote(printable('--folder', job.folder))} || exit 1\n"
        'head=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")\n'
        f"python -m fourfold {command} {rest} \\\n"
        f'    --nodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" --master "$head:{_PORT}"\n'
    )
