"""A batch script for Slurm: one task a node; a lost node, preemption or the end of the time leads to a new start, which resumes."""

import re
import shlex

from fourfold.config import UserError
from fourfold.jobs.job import Job, Site, printable

WARNING_SECONDS = 300
"""How long before the end of the time the ranks are asked to save; less where a quarter of the time is less."""
_SCRIPT = """\
#!/bin/bash
# {title}
{directives}

cd -- {folder} || exit 1
{setup}run_folder={run_folder}

# Prints how often the ranks began: in all, and since the last checkpoint.
begun() {{
    awk '/"event": "(start|resume)"/ {{ all++; unsaved++ }} /"event": "save"/ {{ unsaved = 0 }}
         END {{ print all + 0, unsaved + 0 }}' "$run_folder/events.jsonl" 2>/dev/null || echo 0 0
}}

read -r before _ <<< "$(begun)"
srun --kill-on-bad-exit=1 --wait=0 --cpu-bind=none \\
    {command}
code=$?
read -r after unsaved <<< "$(begun)"

# Ranks that failed, lost a node or were stopped start again from the newest checkpoint. They do not where they could not even
# begin, or began three times without saving: that is a mistake, which another start does not mend.
if ((code != 0 && after > before && unsaved < 3)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def write(job: Job, site: Site) -> str:
    """The text of the script."""
    directives = [
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={job.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={job.ranks_per_node}"] if job.device is not None else []),
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=TERM@{warning_seconds(site.time)}",
    ]
    for option in ("partition", "account", "time"):
        value = getattr(site, option)
        stated = f"#SBATCH --{option}={value}"
        directives.append(stated if value is not None else f"##SBATCH --{option}=YOUR-{option.upper()}")
    several = ["--nodes", str(job.nodes)] if job.nodes > 1 else []
    words = [job.program, *job.train_arguments(job.run_file, job.overrides), *several]
    return _SCRIPT.format(
        title=job.title,
        directives="\n".join(directives),
        folder=shlex.quote(printable("--folder", job.folder)),
        setup="".join(f"{line}\n" for line in site.setup),
        run_folder=shlex.quote(job.run_folder),
        command=shlex.join(printable("the command's word", word) for word in words),
    )


def warning_seconds(time: str | None) -> int:
    """Seconds between SIGTERM and the end of `time`: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S. Raises `UserError` for another text."""
    if time is None:
        return WARNING_SECONDS
    if not re.fullmatch(r"([0-9]{1,4}-)?[0-9]{1,6}(:[0-9]{1,2}){0,2}", time):
        raise UserError(f"--time {time}: allowed: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS; for example 2-00:00:00")
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours = [*parts, 0, 0][:3] if dash or len(parts) == 3 else [0, *parts, 0][:3]
    limit = int(days or 0) * 86_400 + hours[0] * 3600 + hours[1] * 60 + hours[2]
    return min(WARNING_SECONDS, limit // 4)
