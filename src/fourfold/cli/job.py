"""`fourfold job`: a run as the file that a scheduler takes, for `fourfold train` on several nodes."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.api.jobs import CodeOptions, NodeOptions, job_file
from fourfold.api.new_file import check_new_file, write_new_file
from fourfold.jobs import TARGETS, Site


def job(
    run: Path,
    /,
    *overrides: str,
    as_: Annotated[Literal["slurm", "k8s", "skypilot"], Parameter(name="--as")],
    where: NodeOptions,
    site: Site,
    code: CodeOptions,
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
    out
        The file to write. Default: it is printed.
    """
    TARGETS[as_].check(as_, site)
    if out is not None:
        check_new_file(out, out.name, f"new-{out.name}")
    written = job_file(run, overrides, as_, where, site, code)
    if out is None:
        print(written.text, end="")
        print("\n".join(written.notes), file=sys.stderr)
        return 0
    write_new_file(out, written.text)
    submit = TARGETS[as_].submit.format(shlex.quote(str(out)))
    print("\n".join([f"{written.title}: written to {out}; submit it: {submit}", *written.notes]))
    return 0
