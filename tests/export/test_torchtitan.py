"""torchtitan's functions and dataclasses take every keyword of the file; where it is installed, it builds the model."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from fourfold.export.job import TrainerJob
from fourfold.export.torchtitan import torchtitan
from fourfold.export.torchtitan_model import has_mtp, is_tied
from fourfold.model.spec import build_segments
from tests.export.cases import DEFAULT, asked, jobs, traits
from tests.export.launched import launched
from tests.export.recorded import check_python

JOBS = jobs()
BUILT = [name for name, each in JOBS.items() if each.gemm_dtype is None and find_spec("torchtitan") is not None]
"""Jobs whose model torchtitan builds here: its converters of GEMMs look for a CUDA device."""


def written(exported: TrainerJob, folder: Path) -> str:
    run = launched(torchtitan(exported).text, folder)
    assert run.arguments[-5:] == ["torchtitan.train", "--module", "planned", "--config", "planned"]
    assert run.environment["PYTHONPATH"] == str(folder)
    return (folder / "planned.py").read_text()


def keywords(text: str, call: str) -> dict[str, str]:
    """The keywords of the only call of that name."""
    (found,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == call)
    return {each.arg: ast.unparse(each.value) for each in found.keywords if each.arg}


@pytest.mark.grid(1, of=traits)
@pytest.mark.parametrize("name", JOBS)
def test_its_functions_and_dataclasses_take_every_keyword(name: str, tmp_path: Path) -> None:
    assert check_python("torchtitan", "torchtitan", written(JOBS[name], tmp_path)) >= 24


@pytest.mark.parametrize(
    "wrong", ["tensor_degree=2", "tensor_parallel_degree='two'", "fsdp_reshard_after_forward='yes'"]
)
def test_what_it_does_not_take_is_found(wrong: str) -> None:
    text = f"from torchtitan.config import ParallelismConfig\nParallelismConfig({wrong})"
    with pytest.raises(AssertionError):
        check_python("torchtitan", "torchtitan", text)


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (2, 2), (2, 3), (2, 4), (4, 1), (4, 2)])
def test_torchtitans_parts_are_the_stages_that_were_priced(pp: int, virtual: int, tmp_path: Path) -> None:
    schedule = "1f1b" if virtual == 1 else "interleaved_1f1b"
    layout = replace(DEFAULT, pp=pp, virtual_stages=virtual, schedule=schedule)
    exported = TrainerJob(asked("dense", 4 * pp), layout)
    text = written(exported, tmp_path)
    ends = ast.literal_eval(next(line for line in text.splitlines() if line.startswith("ENDS")).partition("= ")[2])
    assert [b - a for a, b in pairwise(ends)] == [stage.count("t") for stage in exported.stages]
    assert len(ends) == pp * virtual + 1
    assert ends[-1] == exported.model.num_layers


@pytest.mark.parametrize(
    ("name", "call", "stated"),
    [
        (
            "dense: hsdp",
            "ParallelismConfig",
            {"data_parallel_replicate_degree": "2", "data_parallel_shard_degree": "4"},
        ),
        ("dense: replicas", "ParallelismConfig", {"data_parallel_replicate_degree": "4"}),
        ("dense: zero 3", "ParallelismConfig", {"fsdp_reshard_after_forward": "'always'"}),
        ("experts: ep", "ParallelismConfig", {"expert_parallel_degree": "4"}),
        ("dense, wsd", "LRSchedulersContainer.Config", {"warmup_steps": "100", "decay_ratio": "0.2"}),
        ("dense, wsd", "TrainingConfig", {"steps": "5000", "max_norm": "0.5", "global_batch_size": "48"}),
        ("dense, fp32", "TrainingConfig", {"mixed_precision_param": "'float32'"}),
        ("llama3.2-1b, 16 devices", "ComplexRoPE.Config", {"scaling": "'llama'", "scaling_factor": "32.0"}),
        ("dense, overlapped: tp", "CompileConfig", {"enable_async_tensor_parallel": "True"}),
        ("deepseek-v3, 128 devices", "make_router_config", {"num_expert_groups": "8", "score_func": "'sigmoid'"}),
    ],
)
def test_settings_are_stated(name: str, call: str, stated: dict[str, str], tmp_path: Path) -> None:
    assert stated.items() <= keywords(written(JOBS[name], tmp_path), call).items()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("latent: pp", "MTP modules"),
        ("gpt3-175b, 128 devices", "norm = 'layer'"),
        ("experts: ep, etp", "etp = 2"),
        ("dense: cp ring", "gathers keys and values"),
        ("dense: zero bubble", "zb_h1 is not in torch.distributed.pipelining"),
        ("qwen2.5-7b, 16 devices", "biases"),
        ("dense, bf16 gradients", "gradients in bf16"),
        ("dense, sgd", "optimizer sgd"),
        ("dense, graph", "launches = graph"),
        ("experts after dense: zero 1", "balance_loss"),
    ],
)
def test_it_names_what_torchtitan_runs_otherwise(name: str, words: str) -> None:
    assert any(words in text for text in torchtitan(JOBS[name]).left_out)


@pytest.fixture
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name of a module that is the file of a job."""
    module = ModuleType("planned_here")
    exec(compile(written(JOBS[request.param], tmp_path), "planned.py", "exec"), vars(module))
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


@pytest.mark.grid(2, of=lambda planned, name: traits(name))
@pytest.mark.parametrize(("planned", "name"), [(name, name) for name in BUILT], indirect=["planned"])
def test_torchtitan_builds_the_model_with_as_many_parameters(planned: str, name: str) -> None:
    torch, manager = import_module("torch"), import_module("torchtitan.config").ConfigManager()
    config = manager.parse_args(["--module", planned, "--config", "planned"])
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        built = config.model_spec.model.build()
    model = JOBS[name].model
    if model.positions == "rope":
        kept = {"mtp_layers": model.mtp_layers if has_mtp(JOBS[name]) else 0, "qkv_bias": False}
        alike = replace(model, tie_embeddings=is_tied(JOBS[name]), **kept)
        assert sum(p.numel() for p in built.parameters()) == sum(s.numel for s in build_segments(alike))
    if JOBS[name].layout.pp == 1:
        config.optimizer.implementation = "for-loop"
        config.optimizer.build(model_parts=[built])
