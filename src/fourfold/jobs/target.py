"""The schedulers that a job is written for: what each has to be told, and how its file is submitted."""

from collections.abc import Callable
from dataclasses import dataclass

from fourfold.config import UserError
from fourfold.jobs import kubernetes, skypilot, slurm
from fourfold.jobs.job import Job, Site


@dataclass(frozen=True)
class Target:
    """`needs`: options that stand in the file as YOUR-NAME until they are stated. `takes`: options that the cluster has a default
    for. `folder`: where the storage is mounted, None: the current folder. `submit`: the command, `{}` for the file."""

    write: Callable[[Job, Site], str]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    folder: str | None
    submit: str

    def check(self, name: str, site: Site) -> None:
        """Raises `UserError` for an option that says nothing to this scheduler."""
        for option in site.stated():
            if option not in (*self.needs, *self.takes):
                raise UserError(
                    f"--{option} {getattr(site, option)}: says nothing with --as {name}; allowed: "
                    f"{', '.join(f'--{each}' for each in (*self.needs, *self.takes))}"
                )

    def missing(self, job: Job, site: Site) -> list[str]:
        """Options whose placeholders remain in the file."""
        known = {"accelerator"} if job.device is None or skypilot.accelerator(job, site) is not None else set()
        return [f"--{option}" for option in self.needs if getattr(site, option) is None and option not in known]

    def defaults(self, site: Site) -> list[str]:
        """Options that are left to the cluster."""
        return [f"--{option}" for option in self.takes if getattr(site, option) is None]


TARGETS = {
    "slurm": Target(slurm.write, (), ("partition", "account", "time"), None, "sbatch {}"),
    "k8s": Target(kubernetes.write, ("image", "storage"), ("namespace",), "/shared", "kubectl apply -f {}"),
    "skypilot": Target(skypilot.write, ("storage", "accelerator"), ("infra", "image"), "/shared", "sky jobs launch {}"),
}
"""By the word behind `--as`."""
