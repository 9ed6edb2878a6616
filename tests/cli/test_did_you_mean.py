"""Wherever a name is typed, a mistake names the nearest that is allowed; one function finds it."""

import subprocess
from pathlib import Path

import pytest

import fourfold

SIMULATE = ("simulate", "preset:llama3-70b")
MISTAKES = {
    "command": (["simulat"], "did you mean simulate?"),
    "option": ([*SIMULATE, "--clustr", "x"], "did you mean --cluster?"),
    "option that is needed": (["cluster", "new", "--devce", "h100:8"], "--devce is unknown, did you mean --device?"),
    "word of an option": (["plan", "--objective", "cheapst"], "did you mean cheapest?"),
    "word of a short option": (["plan", "--as", "megatrn"], "did you mean megatron?"),
    "word of a command": (["cluster", "nwe", "--device", "h100"], "did you mean new?"),
    "device": (["cluster", "new", "--device", "h10-sxm:8"], "did you mean h100-sxm?"),
    "network": (["cluster", "new", "--device", "h100:8", "--nodes", "2", "--network", "nrd"], "did you mean ndr?"),
    "kind of network": (
        ["cluster", "new", "--device", "h100", "--nodes", "2", "--network", "400G-rcoe"],
        "did you mean roce?",
    ),
    "link": (["cluster", "new", "--device", "h100:8", "--link", "nvlnk4"], "did you mean nvlink4?"),
    "kind of a list": (["list", "modles"], "did you mean models?"),
    "run": (["simulate", "preset:llama3-70"], "did you mean preset:llama3-70b?"),
    "file": (["simulate", "rnu.toml"], "there is run.toml"),
    "prefix of a run": (["simulate", "prest:llama3-70b"], "did you mean preset:llama3-70b?"),
    "model": (["plan", "--model", "lama3-8b"], "did you mean llama3-8b?"),
    "model of a run": ([*SIMULATE, "model.preset=lama3-70b"], "did you mean llama3-70b?"),
    "cluster": ([*SIMULATE, "--cluster", "dgxh100:64"], "did you mean dgx-h100?"),
    "cluster file": ([*SIMULATE, "--cluster", "rum.toml"], "there is run.toml"),
    "software": ([*SIMULATE, "--software", "megatorn"], "did you mean megatron?"),
    "schedule": ([*SIMULATE, "layout.schedule=1F1B"], "did you mean 1f1b?"),
    "case and separators": ([*SIMULATE, "layout.schedule=ZB-H1"], "did you mean zb_h1?"),
    "recomputation": ([*SIMULATE, "layout.recompute=fulll"], "did you mean 'full'?"),
    "context method": ([*SIMULATE, "layout.cp_method=rng"], "did you mean 'ring'?"),
    "key without a section": ([*SIMULATE, "tp=8"], "for example layout.tp=8"),
    "section": ([*SIMULATE, "layuot.tp=4"], "did you mean 'layout'?"),
    "key": ([*SIMULATE, "layout.scheduel=1f1b"], "did you mean 'schedule'?"),
    "word of a key": ([*SIMULATE, "model.norm=rmsnorm"], "did you mean 'rms'?"),
    "word of a list": ([*SIMULATE, "run.log=['tensorbord']"], "did you mean 'tensorboard'?"),
    "optimizer": ([*SIMULATE, "optimizer.name=adamv"], "did you mean 'adamw'?"),
    "family": ([*SIMULATE, "model.family=lama"], "did you mean llama?"),
    "key to explain": (["plan", "--explain", "tpp=3"], "did you mean tp?"),
}


@pytest.mark.parametrize(("arguments", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_names_the_nearest(fourfold, arguments: list[str], hint: str) -> None:
    result = fourfold(*arguments)
    assert result.code == 2
    assert hint in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "WHAT is missing; allowed: models, clusters"),
        (["simulate"], "RUN is missing\nsee fourfold simulate --help"),
        (["cluster", "new"], "--device is missing\nsee fourfold cluster --help"),
        (["list", "models", "extra"], "'extra' is one word too many"),
        (["simulate", "x.toml", "--cluster"], "--cluster requires an argument"),
    ],
    ids=str,
)
def test_what_is_missing_or_too_much_is_named(fourfold, arguments: list[str], message: str) -> None:
    result = fourfold(*arguments)
    assert result.code == 2
    assert message in result.err


def test_a_word_like_none_has_no_hint(fourfold) -> None:
    assert "did you mean" not in fourfold("plan", "--objective", "xyz").err


def test_one_function_finds_the_nearest() -> None:
    source = Path(fourfold.__file__).parent
    found = subprocess.run(
        ["grep", "-rlE", "difflib|did you mean ", "--include=*.py", source], capture_output=True, text=True
    )
    assert [Path(line).relative_to(source).as_posix() for line in found.stdout.split()] == ["config/errors.py"]
