"""Starts ranks and watches them: what a run needs before, while and after its processes live."""

from fourfold.launch.external import ExternalRank, external_rank, start_token, wait_for_start
from fourfold.launch.processes import WORKER, Outcome, launch_local
from fourfold.launch.ready import ReadyRun, finished_at, prepare_run
from fourfold.launch.resolve import ResolvedRun, resolve_run, stated_vocab_size
from fourfold.launch.run_folder import RunFolder, check_same_run

__all__ = [
    "WORKER",
    "ExternalRank",
    "Outcome",
    "ReadyRun",
    "ResolvedRun",
    "RunFolder",
    "check_same_run",
    "external_rank",
    "finished_at",
    "launch_local",
    "prepare_run",
    "resolve_run",
    "start_token",
    "stated_vocab_size",
    "wait_for_start",
]
