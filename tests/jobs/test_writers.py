"""The files of jobs: they hold what their schedulers' schemas allow, and hostile names stay names."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fourfold.config import UserError, parse_run
from fourfold.hardware import load_cluster
from fourfold.jobs import TARGETS, Job, Site
from fourfold.jobs.job import LONGEST_NAME, devices_of_node, divide, job_name, paths_of
from fourfold.jobs.yaml_text import yaml_text
from tests.jobs.schema import faults, recorded

JOB = Job(
    "tiny", "fourfold", "/home/me/tiny.toml", ("batch.steps=5",), 'a = "b"\n\n[c]\nd = 1\n', "/shared", 2, 8, "h100-sxm"
)
HOSTILE = "it's $(touch pwned) `touch pwned` \"; touch pwned; #\\ $HOME %j: - {x}"
FULL = Site(image="r.example.org:5000/f@sha256:0a", storage="claim", namespace="ns", infra="k8s/context")
SITES = [Site(), Site(("source a b", HOSTILE))]


def test_a_train_job_holds_what_its_schema_allows() -> None:
    for site in (*SITES, replace(FULL, infra=None)):
        config_map, train_job = yaml.safe_load_all(TARGETS["k8s"].write(JOB, site))
        assert list(faults(recorded("trainjob"), train_job)) == []
        assert (config_map["kind"], config_map["data"]) == ("ConfigMap", {"run.toml": JOB.run_text})
        assert config_map["metadata"]["name"] in str(train_job)
        trainer = train_job["spec"]["trainer"]
        assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
        assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}


def test_a_skypilot_task_holds_what_its_schema_allows() -> None:
    for site in (*SITES, replace(FULL, namespace=None)):
        for job in (
            JOB,
            replace(JOB, device=None),
            replace(JOB, run_file="preset:llama3-70b"),
            replace(JOB, device="h20"),
        ):
            task = yaml.safe_load(TARGETS["skypilot"].write(job, site))
            assert list(faults(recorded("skypilot"), task)) == []
            assert task["num_nodes"] == 2
            assert ("file_mounts" in task) == (job.run_file[0] == "/")
    assert yaml.safe_load(TARGETS["skypilot"].write(JOB, Site()))["resources"]["accelerators"] == "H100:8"


@pytest.mark.parametrize(
    ("kind", "change"), [("trainjob", {"spec": {"trainer": {"numNodes": "2"}}}), ("skypilot", {"num_node": 2})]
)
def test_a_field_that_the_schema_does_not_know_is_a_fault(kind: str, change: dict) -> None:
    assert list(faults(recorded(kind), change))


def test_the_options_that_are_missing_stand_in_the_file() -> None:
    for name, target in TARGETS.items():
        for site in SITES:
            text = target.write(JOB, site)
            placeholders = {f"--{each.lower()}" for each in re.findall(r"^(?!##).*YOUR-(\w+)", text, re.MULTILINE)}
            assert placeholders == set(target.missing(JOB, site)), name
    assert TARGETS["k8s"].missing(JOB, FULL) == []
    assert TARGETS["skypilot"].missing(replace(JOB, device="h20"), FULL) == ["--accelerator"]
    assert TARGETS["skypilot"].missing(replace(JOB, device=None), FULL) == []


def as_the_kubelet_passes_it_on(word: str) -> str:
    return re.sub(r"\$(\$|\(\w+\))", lambda match: "$" if match[1] == "$" else "replaced", word)


def test_hostile_words_reach_the_command_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a 'b' $(touch pwned) $(HOME) $$"
    folder.mkdir()
    job = replace(JOB, run_file=f"/x/{HOSTILE}.toml", overrides=(f"data.corpus={HOSTILE}",), folder=str(folder))
    stub = tmp_path / "stub"
    stub.write_text('#!/bin/bash\nprintf "%s\\0" "$PWD" "$@" >> "$SEEN"\n')
    stub.chmod(0o755)
    for name in ("srun", "python", "scontrol"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(stub)
    task = yaml.safe_load(TARGETS["skypilot"].write(job, Site()))
    (_, train_job) = yaml.safe_load_all(TARGETS["k8s"].write(job, Site()))
    pod = [as_the_kubelet_passes_it_on(word) for word in train_job["spec"]["trainer"]["command"]]
    scripts = [["bash", "-c", TARGETS["slurm"].write(job, Site())], ["bash", "-c", task["run"]], pod]
    for number, script in enumerate(scripts):
        seen = tmp_path / f"seen-{number}"
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        subprocess.run(script, env={"PATH": path, "SEEN": str(seen), "HOME": "/home/me"}, check=True, cwd=tmp_path)
        where, *words = seen.read_text().rstrip("\0").split("\0")
        assert where == str(folder)
        at = words.index("--ranks")
        assert words[at : at + 4] == ["--ranks", "8", "--out", "runs/tiny"]
        if script is not pod:  # which reads a run file with its overrides
            assert words[at - 1] == job.overrides[0]
    assert f"/x/{HOSTILE}.toml" in (tmp_path / "seen-0").read_text().split("\0")
    assert task["file_mounts"] == {"~/fourfold/run.toml": job.run_file}
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("text", ["a\nb", "a\x1bb", "a\u2028b"])
def test_control_characters_are_refused(text: str) -> None:
    for target in TARGETS.values():
        with pytest.raises(UserError, match="control characters"):
            target.write(replace(JOB, folder=f"/{text}"), Site())
    with pytest.raises(UserError, match="--setup"):
        Site((text,))


@pytest.mark.parametrize("value", ["a b", "a\n", "-x", "$(x)", "", "a;b"])
def test_a_sites_names_are_names(value: str) -> None:
    with pytest.raises(UserError, match="--partition"):
        Site(partition=value)


@pytest.mark.parametrize("target", TARGETS)
def test_one_supervisor_a_node_is_started_whatever_a_nodes_ranks(target: str) -> None:
    """The one that leads hears of nodes: 2,048 for 16,384 ranks."""
    text = TARGETS[target].write(replace(JOB, nodes=2048, ranks_per_node=8), Site())
    assert "--ranks 8" in text
    assert "torchrun" not in text
    assert {"slurm": "--ntasks-per-node=1\n", "k8s": "numNodes: 2048", "skypilot": "num_nodes: 2048"}[target] in text
    assert ("--nodes 2048" in text) == (target == "slurm"), "elsewhere the nodes' environment says it"


def test_directives_stand_before_the_first_command() -> None:
    lines = TARGETS["slurm"].write(JOB, Site(partition="gpu", account="me", time="1-00:00:00")).splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert lines[2 : 2 + len(directives)] == directives
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8"} <= set(directives)
    assert {"#SBATCH --partition=gpu", "#SBATCH --account=me", "#SBATCH --time=1-00:00:00"} <= set(directives)
    assert not any("gpus" in line for line in TARGETS["slurm"].write(replace(JOB, device=None), Site()).splitlines())


@pytest.mark.parametrize(
    ("time", "warning"),
    [("60", 300), ("8", 120), ("4:0", 60), ("0:10:0", 150), ("0-1", 300), ("1-0:0:0", 300), ("0-0:4", 60), (None, 300)],
)
def test_a_short_job_is_not_asked_to_save_at_once(time: str | None, warning: int) -> None:
    assert f"#SBATCH --signal=TERM@{warning}\n" in TARGETS["slurm"].write(JOB, Site(time=time))


@pytest.mark.parametrize("time", ["2days", "1:2:3:4", "-1", "1-2-3"])
def test_a_time_that_slurm_does_not_read_is_refused(time: str) -> None:
    with pytest.raises(UserError, match="--time"):
        TARGETS["slurm"].write(JOB, Site(time=time))


VALUES = [
    {"a": "b", "c": 1, "d": True, "e": "true", "f": "1e5", "g": "", "h": "a: b", "i": "- a", "j": "#", "k": {"l": []}},
    {
        "a": "x\ny\n",
        "b": "x\n\n  y\n",
        "c": " x\ny\n",
        "d": "x\ny",
        "e": "x\n\n",
        "f": "x\t\ny\x85\n",
        "g": "\u2028\x7f😀",
    },
    {"a": [{"b": "x\ny\n", "c": ["d", {"e": "f"}]}, "g"], "h": {"i": {"j": HOSTILE}}, HOSTILE: "k", "l": {}},
]


@pytest.mark.parametrize("value", VALUES)
def test_yaml_reads_back_what_was_written(value: dict) -> None:
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("runs/My Run_2.toml", "my-run-2"),
        ("preset:llama3-405b-16k", "llama3-405b-16k"),
        ("70b.toml", "run-70b"),
        ("日本.toml", "run"),
        ("x" * 90, "x" * LONGEST_NAME),
    ],
)
def test_a_jobs_name_suits_every_scheduler(run: str, name: str) -> None:
    assert job_name(run) == name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_nodes_come_from_the_cluster() -> None:
    assert devices_of_node(load_cluster("dgx-h100:64")) == 8
    assert devices_of_node(load_cluster("gb200-nvl72")) == 4, "a rack's trays are its hosts"
    assert devices_of_node(load_cluster("dgx-h100:4")) == 4
    for name in ("tpu-v4-4096", "ascend-910b-8"):
        with pytest.raises(UserError, match="trains on CUDA devices"):
            devices_of_node(load_cluster(name))
    assert divide(64, 8) == (8, 8)
    assert divide(4, 8) == (1, 4)
    with pytest.raises(UserError, match=re.escape("--devices-per-node 6 (2 nodes)")):
        divide(12, 8)


def test_paths_of_a_run_are_named() -> None:
    batch = {"global_sequences": 8, "sequence_length": 16, "steps": 5}
    data = {"corpus": [{"path": "a"}, {"path": "b/*.txt"}], "tokenizer": "t.json"}
    run = parse_run({"batch": batch, "data": data, "model": {"hf": "m"}, "layout": {"schedule": "file:s"}})
    assert [shlex.quote(each.partition(" = ")[2]) for each in paths_of(run)] == ["a", "'b/*.txt'", "t.json", "s", "m"]
    assert paths_of(parse_run({"batch": batch})) == []
