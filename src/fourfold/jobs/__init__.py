"""Jobs: `fourfold train` on several nodes, as a file that Slurm, Kubernetes (Kubeflow Trainer) or SkyPilot takes."""

from fourfold.jobs.job import Job, Site
from fourfold.jobs.target import TARGETS, Target

__all__ = ["TARGETS", "Job", "Site", "Target"]
