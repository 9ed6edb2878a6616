"""A run, its overrides and its cluster in every form; and every mistake with the command's message."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fourfold as ff
from fourfold.api.inputs import config_of
from fourfold.config import load_run

MISTAKES: dict[str, tuple[Any, list[str]]] = {
    "unknown key": (
        lambda: ff.verify("run.toml", {"layout.zerro": 3}),
        ["show", "run.toml", "layout.zerro=3", "--verify"],
    ),
    "unknown section": (lambda: ff.verify("run.toml", {"layuot": {"zero": 3}}), ["show", "run.toml", "layuot.zero=3"]),
    "no section": (lambda: ff.verify("run.toml", ["zero=3"]), ["show", "run.toml", "zero=3"]),
    "missing file": (lambda: ff.verify("nothing.toml"), ["show", "nothing.toml"]),
    "a folder of texts": (lambda: ff.simulate("texts"), ["simulate", "texts"]),
    "no such preset": (lambda: ff.simulate("preset:llama3-71b"), ["simulate", "preset:llama3-71b"]),
    "no cluster": (lambda: ff.simulate("run.toml"), ["simulate", "run.toml"]),
    "unknown cluster": (
        lambda: ff.simulate("run.toml", cluster="dgx-h10"),
        ["simulate", "run.toml", "--cluster", "dgx-h10"],
    ),
    "unknown software": (
        lambda: ff.simulate("run.toml", cluster="dgx-h100", software="megatorn"),
        ["simulate", "run.toml", "--cluster", "dgx-h100", "--software", "megatorn"],
    ),
    "too many ranks": (
        lambda: ff.simulate("run.toml", {"layout.dp_shard": 12}, cluster="dgx-h100:8"),
        ["simulate", "run.toml", "layout.dp_shard=12", "--cluster", "dgx-h100:8"],
    ),
    "a price that is none": (
        lambda: ff.simulate("run.toml", cluster="dgx-h100", price="cheap"),
        ["simulate", "run.toml", "--cluster", "dgx-h100", "--price", "cheap"],
    ),
    "no tokens": (
        lambda: ff.simulate("run.toml", cluster="dgx-h100", tokens=0),
        ["simulate", "run.toml", "--cluster", "dgx-h100", "--tokens", "0"],
    ),
    "no model": (lambda: ff.plan(), ["plan"]),
    "no batch": (
        lambda: ff.plan(model="llama3-8b", cluster="dgx-h100", sequence_length=8192),
        ["plan", "--model", "llama3-8b", "--cluster", "dgx-h100", "--sequence-length", "8192"],
    ),
    "tokens that say nothing": (lambda: ff.plan("run.toml", tokens="1T"), ["plan", "run.toml", "--tokens", "1T"]),
    "a layout's key that is none": (
        lambda: ff.plan("run.toml", cluster="dgx-h100", explain=[{"tq": 2}]),
        ["plan", "run.toml", "--cluster", "dgx-h100", "--explain", "tq=2"],
    ),
    "no ranks": (lambda: ff.train("run.toml", ranks=0), ["train", "run.toml", "--ranks", "0"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_raises_the_message_of_the_command(case: str, fourfold) -> None:
    call, command = MISTAKES[case]
    with pytest.raises(ff.UserError) as caught:
        call()
    result = fourfold(*command)
    assert result.code == caught.value.exit_code == 2
    assert result.err == f"error: {caught.value}\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"objective": "fastests"}, "did you mean fastest"),
        ({"dtype": "fp16"}, "--dtype fp16: did you mean bf16"),
        ({"gemm_dtype": "fp88"}, "did you mean fp8"),
        ({"fragmentation": 11}, "--fragmentation 11"),
    ],
)
def test_a_word_that_the_command_line_would_not_take(arguments: dict, named: str, here: Path) -> None:
    with pytest.raises(ff.UserError, match=named):
        ff.plan("run.toml", cluster="dgx-h100", **arguments)


def test_a_run_in_every_form(here: Path) -> None:
    expected = load_run(Path("run.toml"), ("layout.zero=3", "layout.pp=2"))
    table = tomllib.loads(Path("run.toml").read_text())
    (here / "folder").mkdir()
    (here / "folder" / "run.toml").write_text((here / "run.toml").read_text())
    forms = ("run.toml", Path("run.toml"), here / "folder", table, load_run(Path("run.toml")))
    overrides = (
        ["layout.zero=3", "layout.pp=2"],
        {"layout.zero": 3, "layout.pp": 2},
        {"layout": {"zero": 3, "pp": 2}},
        {"layout": {"zero": 3}, "layout.pp": 2},
    )
    assert all(config_of(run, each) == expected for run in forms for each in overrides)
    assert config_of("run.toml", "layout.zero=3") == load_run(Path("run.toml"), ("layout.zero=3",))
    assert config_of(table, {"batch.steps": 7}).batch.steps == 7
    assert table == tomllib.loads(Path("run.toml").read_text()), "the caller's own table is not changed"


def test_values_that_are_no_numbers(here: Path) -> None:
    corpus = [{"path": "texts", "weight": 2.5}, {"path": "a 'b' \"c\" \N{GRINNING FACE}", "weight": 1}]
    overrides = {
        "data.corpus": corpus,
        "data.document_mask": True,
        "layout.recompute": ["none", "full"],
        "checkpoint.directory": Path("saved"),
    }
    config = config_of("run.toml", overrides)
    assert [part.model_dump(exclude_defaults=True) for part in config.data.corpus] == [
        corpus[0],
        {"path": corpus[1]["path"]},
    ]
    assert (config.data.document_mask, config.layout.recompute) == (True, ["none", "full"])
    assert config.checkpoint.directory == "saved"
    with pytest.raises(ff.UserError, match=r"override batch\.steps=None: allowed"):
        config_of("run.toml", {"batch": {"steps": None}})


def test_an_automatic_layout_in_every_form(here: Path) -> None:
    expected = load_run(Path("run.toml"), ("layout=auto", "layout.zero=3"))
    for overrides in (["layout=auto", "layout.zero=3"], {"layout": "auto", "layout.zero": 3}):
        assert config_of("run.toml", overrides) == expected
    dear = replace(ff.load_cluster("dgx-h100:4"), dollars_per_device_hour=9.0)
    with pytest.raises(ff.UserError, match="takes a cluster by its name"):
        ff.simulate("run.toml", {"layout": "auto"}, cluster=dear)


def test_a_cluster_in_every_form(here: Path) -> None:
    loaded = ff.load_cluster("dgx-h100:4")
    by_name = ff.simulate("run.toml", cluster="dgx-h100:4").to_json()
    assert ff.simulate("run.toml", cluster=loaded).to_json() == by_name
    dear = replace(loaded, dollars_per_device_hour=9.0)
    found = ff.simulate("run.toml", cluster=dear, tokens=1e9)
    assert found.campaign.dollars == ff.simulate("run.toml", cluster=loaded, tokens="1G", price=9).campaign.dollars
    planned = ff.plan("run.toml", cluster=dear, objective="cheapest", tokens="1G", budget=4)
    assert planned.to_json()["best"] == ff.plan(
        "run.toml", cluster="dgx-h100:4", objective="cheapest", tokens="1G", price=9, budget=4
    ).to_json()["best"]  # fmt: skip


def test_a_run_states_its_software_and_an_argument_wins(here: Path) -> None:
    cluster = {"software": "megatron-2024", "gemm_dtype": "fp8"}
    stated = {"cluster": cluster, "precision.compute": "bf16", "model.ffn_size": 64}

    def found(**arguments: Any) -> tuple[str, str]:
        document = ff.simulate("run.toml", stated, cluster="dgx-h100:4", **arguments).to_json()
        return document["software"], document["gemm_dtype"]

    assert found() == ("megatron-2024", "fp8")
    assert found(software="fourfold") == ("fourfold", "fp8")
    with pytest.raises(ff.UserError, match=r"--gemm-dtype nvfp4: .* has no such matmuls"):
        found(gemm_dtype="nvfp4")


def test_a_price_beside_published_figures_stands_where_no_key_is_overridden(fourfold) -> None:
    assert ff.simulate("preset:llama3-405b-16k").published is not None
    assert ff.simulate("preset:llama3-405b-16k", {"run.seed": 3}).published is None
