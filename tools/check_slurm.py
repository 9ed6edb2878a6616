"""The sbatch script that `fourfold job` writes, run on a real Slurm of two nodes on this machine.

    python -m tools.check_slurm

A small model trains on 4 ranks over both nodes. The job is requeued by hand, loses a rank, then a node. Each time it starts again
by itself and goes on. In the end every loss equals that of the same run under `fourfold train --ranks 4`, to the bit. A job that
makes a mistake is not started again. Takes some four minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.slurm_cluster import SlurmCluster, install, wait_for

_RUN = """\
[model]
num_layers = 4
hidden_size = 128
num_heads = 4
ffn_size = 344
[data]
corpus = "texts"
tokenizer = "bytes"
[batch]
global_sequences = 8
sequence_length = 256
steps = 100
[layout]
zero = 3
microbatch_sequences = 1
[optimizer]
lr = 3e-3
[checkpoint]
every_steps = 15
[run]
device = "cpu"
evaluate_sequences = 4
sample_tokens = 0
threads_per_rank = 1
"""
_HOSTILE = 'it\'s a $(touch pwned) "folder"; #1 %j'
"""A folder's name that no shell, and no directive of Slurm, may read as anything but a name."""


def main() -> None:
    install()
    with tempfile.TemporaryDirectory(prefix="fourfold-slurm-") as scratch:
        folder = Path(scratch) / _HOSTILE
        _prepare(folder)
        plain = _fourfold(folder, "train", "run.toml", "--ranks", "4", "--out", "plain")
        print(f"fourfold train --ranks 4: {plain.splitlines()[-1] if plain else 'done'}", flush=True)
        with SlurmCluster(Path(scratch) / "slurm", cpus=2) as slurm:
            _check_restarts(slurm, folder)
            _check_mistake(slurm, folder)
            _check_torchrun(slurm, folder)
    print("all of it holds")


def _prepare(folder: Path) -> None:
    (folder / "texts").mkdir(parents=True)
    (folder / "run.toml").write_text(_RUN)
    for number in range(40):
        (folder / "texts" / f"{number}.txt").write_text(f"The {number}th text is about numbers.\n" * 60)


def _check_restarts(slurm: SlurmCluster, folder: Path) -> None:
    script = _write(folder, "run.toml", "job.sh")
    slurm.run("sbatch", "--test-only", str(script))
    number = _submit(slurm, script)
    run = folder / "runs" / "run"
    _await_step(run, 5)
    slurm.run("scontrol", "requeue", number)
    _await_restart(slurm, number, 1)
    saved = _events(run, "save")
    _require(len(saved) == 1 and saved[0] < 15, f"SIGTERM before the requeue saved at step {saved}")
    _await_step(run, 35)
    slurm.kill_task(1)
    _await_restart(slurm, number, 2)
    _await_step(run, 65)
    slurm.lose_node("n2")
    print("n2 is lost", flush=True)
    wait_for(lambda: slurm.job(number)["JobState"] == "PENDING", "the requeue after the lost node", 120)
    slurm.start_node("n2")
    _await_restart(slurm, number, 3)
    _await_end(slurm, number, "COMPLETED")
    resumed = _events(run, "resume")
    _require(resumed[0] == saved[0], f"the first restart resumed at step {resumed[0]}, where it had saved")
    # A fourth start may follow: Slurm sometimes ends the new step of a node that is back with a signal meant for the lost one.
    holds = len(resumed) >= 3 and resumed[1] % 15 == resumed[2] % 15 == 0 and 30 <= resumed[1] < resumed[2]
    _require(holds, f"the others at steps {resumed[1:]}, after the task and the node were killed")
    ours, plain = _losses(run), _losses(folder / "plain")
    _require(len(ours) == 100 and ours == plain, f"100 losses equal the plain run's; the last: {ours[-1]}")
    _require(not (folder / "pwned").exists(), "no name was read as a command")


def _check_mistake(slurm: SlurmCluster, folder: Path) -> None:
    script = _write(folder, "run.toml", "mistake.sh")
    script.write_text(script.read_text().replace("--out runs/run", "data.corpus=nowhere --out runs/mistake"))
    number = _submit(slurm, script)
    _await_end(slurm, number, "FAILED")
    job = slurm.job(number)
    _require(job["Restarts"] == "0", "a mistake that rank 0 alone sees is not started again")
    seconds = int(job["RunTime"].rpartition(":")[2])
    _require(job["RunTime"].startswith("00:00:") and seconds < 40, f"it ends the other ranks too, after {seconds} s")


def _check_torchrun(slurm: SlurmCluster, folder: Path) -> None:
    """One task a node, as some sites want it: each is a torchrun that starts the node's ranks."""
    script = _write(folder, "run.toml", "torchrun.sh")
    torchrun = (
        f"{Path(sys.executable).parent}/torchrun --nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 "
        "--master-addr 127.0.0.1 --master-port 29477 -m fourfold train run.toml batch.steps=10 --out runs/torchrun"
    )
    head, _, tail = script.read_text().partition("--cpu-bind=none \\\n")
    script.write_text(f"{head}--cpu-bind=none bash -c '{torchrun}'\n{tail.partition(chr(10))[2]}")
    number = _submit(slurm, script)
    _await_end(slurm, number, "COMPLETED")
    ours = _losses(folder / "runs" / "torchrun")
    # the learning rate follows the run's length, so that the first steps alone are the same
    _require(len(ours) == 10 and ours[:2] == _losses(folder / "plain")[:2], "torchrun on each node trains too")


def _write(folder: Path, run: str, name: str) -> Path:
    """The script of `fourfold job`. The nodes' names are no hosts here; on a cluster they are, and need no line about it."""
    setup = ["--setup", "export MASTER_ADDR=127.0.0.1"]
    size = ["--nodes", "2", "--devices-per-node", "2", "--time", "60"]
    _fourfold(folder, "job", run, "--as", "slurm", *size, *setup, "--out", name)
    script = folder / name
    script.write_text(script.read_text().replace("    fourfold train", f"    {sys.executable} -m fourfold train"))
    return script


def _fourfold(folder: Path, *words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "fourfold", *words], cwd=folder, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"fourfold {words[0]} ended with exit code {done.returncode}: {done.stderr}")
    return done.stdout.strip()


def _submit(slurm: SlurmCluster, script: Path) -> str:
    return slurm.run("sbatch", "--parsable", f"--output={slurm.folder}/job-%j.txt", str(script))


def _await_step(run: Path, step: int) -> None:
    wait_for(lambda: len(_losses(run)) > step, f"step {step} of {run.name}", 120)


def _await_restart(slurm: SlurmCluster, number: str, count: int) -> None:
    def restarted() -> bool:
        job = slurm.job(number)
        return int(job["Restarts"]) >= count and job["JobState"] == "RUNNING"

    wait_for(restarted, f"restart {count}", 120)
    print(f"job {number} runs again", flush=True)


def _await_end(slurm: SlurmCluster, number: str, state: str) -> None:
    try:
        wait_for(lambda: slurm.job(number)["JobState"] in ("COMPLETED", "FAILED", "NODE_FAIL"), f"job {number}", 240)
        _require(slurm.job(number)["JobState"] == state, f"job {number} ended as {state}")
    except (RuntimeError, SystemExit):
        print((slurm.folder / f"job-{number}.txt").read_text(), file=sys.stderr)
        raise


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _losses(run: Path) -> list[tuple[object, object]]:
    path = run / "metrics.jsonl"
    return [(row["loss"], row.get("validation_loss")) for row in _rows(path)] if path.is_file() else []


def _events(run: Path, name: str) -> list[int]:
    return [int(str(row["step"])) for row in _rows(run / "events.jsonl") if row["event"] == name]


def _require(holds: bool, what: str) -> None:
    print(f"{'ok  ' if holds else 'NOT '} {what}", flush=True)
    if not holds:
        raise SystemExit(1)


if __name__ == "__main__":
    os.environ.pop("MASTER_ADDR", None)
    main()
