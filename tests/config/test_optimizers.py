"""Each optimizer's section of the run file: its name selects it, its keys are its own, it reads back as itself."""

from pathlib import Path
from typing import get_args

import pytest

from fourfold.config import RunConfig, UserError, dump_run, load_run, parse_run
from fourfold.config.optimizers import OPTIMIZERS, AdamWSection, OptimizerSection, OptimizerSpec, StateTensor
from tests.support.reference_optimizers import REFERENCES

BATCH = {"global_sequences": 8, "sequence_length": 16}
names = pytest.mark.parametrize("name", OPTIMIZERS)


def run(**optimizer) -> RunConfig:
    return parse_run({"batch": BATCH, "optimizer": optimizer})


def test_every_optimizer_has_a_reference() -> None:
    assert set(REFERENCES) == set(OPTIMIZERS)


def test_no_name_is_adamw() -> None:
    assert run() == run(name="adamw") == parse_run({"batch": BATCH})
    assert isinstance(run(lr=0.5).optimizer, AdamWSection)


@names
@pytest.mark.parametrize("brief", [False, True])
def test_the_name_selects_the_section_which_reads_back(name: str, brief: bool, tmp_path: Path) -> None:
    config = run(name=name, lr=0.5, **REFERENCES[name].settings)
    section = config.optimizer
    assert type(section) is OPTIMIZERS[name]
    assert section.name == section.spec.name == name
    assert get_args(type(section).model_fields["name"].annotation) == (name,)
    (tmp_path / "run.toml").write_text(dump_run(config, brief))
    assert load_run(tmp_path / "run.toml") == config


@names
def test_keys_are_checked_by_the_optimizer_that_is_named(name: str) -> None:
    own = set(OPTIMIZERS[name].model_fields)
    for key in {key for section in OPTIMIZERS.values() for key in section.model_fields} - own:
        with pytest.raises(UserError) as caught:
            run(name=name, **{key: 1})
        assert f"unknown key 'optimizer.{key}'" in str(caught.value)
    for key in sorted(own - set(OptimizerSection.model_fields)):
        with pytest.raises(UserError) as caught:
            run(name=name, **{key[:-1] + "_": 1})
        assert f"did you mean {key!r}" in str(caught.value)
        with pytest.raises(UserError, match=f"optimizer.{key} = 'x'.* a value that works: "):
            run(name=name, **{key: "x"})


def test_an_unknown_name_is_told_what_there_is() -> None:
    for wrong in ("adam", 3, ["adamw"]):
        with pytest.raises(UserError) as caught:
            run(name=wrong, betas=[0.9, 0.95])
        message = str(caught.value)
        assert message.startswith(f"run: optimizer.name = {wrong!r}: ")
        assert all(repr(name) in message for name in OPTIMIZERS)
        assert "\n" not in message


def test_a_key_of_one_optimizer_in_another_section_is_sent_there() -> None:
    with pytest.raises(UserError, match=r"it belongs to section \[optimizer\]"):
        parse_run({"batch": {**BATCH, "betas": [0.9, 0.95]}})


def test_state_and_traffic_in_closed_form() -> None:
    """AdamW in mixed precision: reads a gradient, reads and writes the master weight and both states, writes the bf16 weight."""
    adamw = OPTIMIZERS["adamw"].spec
    assert (adamw.state_bytes("fp32"), adamw.state_bytes("fp64")) == (8, 16)
    assert adamw.update_bytes("bf16", "fp32", "fp32") == 4 + 2 * 4 + 2 * 8 + 2
    assert adamw.update_bytes("bf16", "fp32", "bf16") == 2 + 2 * 4 + 2 * 8 + 2
    assert adamw.update_bytes("fp32", "fp32", "fp32") == 4 + 2 * 4 + 2 * 8
    narrow = OptimizerSpec("narrow", (StateTensor("a", "bf16"), StateTensor("b")))
    assert (narrow.state_bytes("fp32"), narrow.state_bytes("fp64")) == (6, 10)
    assert narrow.update_bytes("fp32", "fp32", "fp32") == 4 + 2 * 4 + 2 * 6
