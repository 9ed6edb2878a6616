"""Words for kernels: the usual ones change nothing, others change what they name as its bytes, launches and speeds say."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import fourfold as ff
from fourfold.api.options import SoftwareOptions, repeated
from fourfold.cli import main
from fourfold.config import UserError
from fourfold.config.kernel_choice import CHOICES, NO_CHOICE, KernelChoice, parse_choice
from fourfold.cost.fitted import fitted, framework_of, write_software
from fourfold.cost.kernel_choice import (
    HOPPER,
    LOGITS_BYTES,
    REACHED,
    SPEEDS,
    UPDATE_PASSES,
    WRITTEN,
    kernels_of,
    running,
    usual_kernels,
)
from fourfold.cost.kernels import attention_bytes, attention_seconds, launches, pass_bytes
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import load_cluster, load_device
from fourfold.model.work import Attention, Elementwise, ElementwisePart
from fourfold.simulate.run_prices import SoftwareOverrides, software_named, software_names

DEVICES = ("a100-sxm-80", "h100-sxm", "b200", "mi300x", "tpu-v5p")
FAMILIES = sorted({framework_of(name) for name in software_names()})
SCORES = Attention(1, 8192, 8192, 32, 8, 128, 128)
NORM, ROTARY, LOSS, OTHER = (Elementwise(5000, 2000, 7, part) for part in ("norm", "rotary", "loss", ""))
PRESET, FLASH = "preset:gpt3-175b", "cluster.attention=flash"


def profile_with(name: str, device: str, **words: str) -> SoftwareProfile:
    return running(fitted().software(name), KernelChoice.model_validate(words), device)


@pytest.mark.parametrize("family", [*FAMILIES, "torchtitan-2026", "mine", "megatron-2025"])
def test_usual_kernels_change_nothing(family: str) -> None:
    """All at once and one by one, of all families on all generations of devices."""
    for device in DEVICES:
        plain = fitted().software(family)
        usual = usual_kernels(family, device)
        assert set(usual.stated) == set(CHOICES)
        silent = running(plain, NO_CHOICE, device)
        assert replace(silent, kernels=()) == plain
        assert fitted().kernels(device, silent) == fitted().kernels(device, plain)
        for key, word in usual.stated.items():
            assert running(plain, KernelChoice.model_validate({key: word}), device) == silent
        assert running(plain, usual, device) == silent
        assert running(plain, KernelChoice(attention="flash"), device) == silent


@pytest.mark.parametrize("family", FAMILIES)
def test_every_other_word_changes_what_it_names_and_nothing_else(family: str) -> None:
    named = {
        "attention": {"attention_speed", "fused_attention", "attention_recomputed", "fp32_scores", "written_passes"},
        "norms": {"fused_parts"},
        "softmax": set[str](),
        "loss": {"fused_parts", "logits_bytes"},
        "rotary": {"fused_parts"},
        "optimizer": {"update_passes", "update_launches"},
        "tp_collectives": {"overlap_tensor"},
        "dispatcher": {"dispatcher"},
        "ep_collectives": {"merged_experts", "overlap_experts"},
        "experts": {"fused_experts"},
        "launches": {name for name in vars(SoftwareProfile()) if name.startswith("host_")},
    }
    for device, key in product(DEVICES, CHOICES):
        usual = fitted().software(family)
        for word in CHOICES[key]:
            found = profile_with(family, device, **{key: word})
            changed = {name for name, value in vars(found).items() if value != getattr(usual, name)} - {"kernels"}
            assert changed <= named[key], (family, device, key, word)


def test_scores_are_written_before_2023() -> None:
    assert not profile_with("megatron-2021", "a100-sxm-80").fused_attention
    assert profile_with("megatron-2021", "a100-sxm-80", attention="flash-1").fused_attention
    assert profile_with("megatron-2023", "a100-sxm-80").fused_attention
    assert usual_kernels("megatron", "h100-sxm").attention == "cudnn"


def test_attention_takes_the_ratio_of_its_kernels() -> None:
    device = load_device("a100-sxm-80")

    def seconds(word: str) -> float:
        kernels = fitted().kernels(device.key, profile_with("torchtitan", device.key, attention=word))
        return attention_seconds(SCORES, device, kernels, "bf16", 2)

    assert seconds("flash-1") == pytest.approx(230 / 124 * seconds("flash-2"))
    assert seconds("cudnn") == seconds("flash-2"), "on Ampere"
    speeds = {
        word: profile_with("torchtitan", "h100-sxm", attention=word).attention_speed
        for word in ("flash-1", "flash-2", "flash-3")
    }
    faster = max(SPEEDS["flash-3"] * speeds["flash-2"], REACHED[HOPPER]["flash-3"])
    assert speeds["flash-3"] == pytest.approx(faster)
    assert speeds["flash-1"] == pytest.approx(SPEEDS["flash-1"] * speeds["flash-2"])


def test_a_slower_kernel_makes_no_family_faster() -> None:
    for family, device in product(FAMILIES, DEVICES):
        order = [
            profile_with(family, device, attention=word).attention_speed for word in ("flash-1", "flash-2", "cudnn")
        ]
        assert order == sorted(order), (family, device)


def test_written_scores_are_read_and_written_by_each_operator() -> None:
    fused, unfused = (
        fitted().kernels("a100-sxm-80", profile_with("megatron", "a100-sxm-80", attention="unfused", softmax=word))
        for word in ("fused", "unfused")
    )
    for item, passes in ((SCORES, (4, 16)), (replace(SCORES, backward=True), (7, 18))):
        dropout = 3
        ratio = attention_bytes(item, unfused, 2) / attention_bytes(item, fused, 2)
        assert ratio == pytest.approx((passes[1] + dropout) / (passes[0] + dropout))


@pytest.mark.parametrize(("key", "item"), [("norms", NORM), ("rotary", ROTARY), ("loss", LOSS)])
def test_a_part_is_one_kernel_or_its_operators(key: str, item: Elementwise) -> None:
    """Whatever mix of both a family's constant is."""
    for family in FAMILIES:
        usual = usual_kernels(family, "h100-sxm").stated[key]
        other = "unfused" if usual == "fused" else "fused"
        plain, changed = (
            fitted().kernels("h100-sxm", profile_with(family, "h100-sxm", **words)) for words in ({}, {key: other})
        )
        expected = (item.bytes, item.launches) if other == "unfused" else (item.least_bytes, 1)
        assert (pass_bytes(item, changed), launches(item, changed)) == expected
        assert pass_bytes(OTHER, changed) == pass_bytes(OTHER, plain)
        others: tuple[ElementwisePart, ...] = ("norm", "rotary", "loss")
        for part in others:
            if part != item.part:
                assert pass_bytes(replace(item, part=part), changed) == pass_bytes(replace(item, part=part), plain)


def test_a_loss_holds_its_logits_as_its_kernel_does() -> None:
    assert profile_with("torchtitan", "h100-sxm", loss="unfused").logits_bytes == LOGITS_BYTES["unfused"]
    assert profile_with("nemo", "h100-sxm", loss="chunked").logits_bytes == LOGITS_BYTES["chunked"]
    assert profile_with("default", "h100-sxm", loss="fused").logits_bytes == LOGITS_BYTES["fused"]


def test_an_update_has_the_passes_and_launches_of_its_kernels() -> None:
    cluster = load_cluster("dgx-h100:8")
    layout = ff.simulate(PRESET).summary.step.simulation.spec.layout

    def seconds(word: str, size: int) -> float:
        software = profile_with("megatron", "h100-sxm", optimizer=word)
        return Prices(cluster, layout, fitted().kernels("h100-sxm", software), software).update(size)

    large = 10**10
    assert seconds("foreach", large) / seconds("fused", large) == pytest.approx(UPDATE_PASSES, rel=1e-2)
    host = fitted().software("megatron").host_launch_seconds
    assert seconds("for-loop", 1000) == pytest.approx((8 * 9 - 1) * host)
    assert seconds("fused", 0) == 0.0


def test_words_of_a_file_are_those_of_what_it_is_based_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_software(path, "nemo", {"gemm_speed": 0.9}, "")
    assert kernels_of(software_named(str(path)), NO_CHOICE, "h100-sxm") == usual_kernels("nemo", "h100-sxm")


def test_a_run_states_its_kernels_in_three_places_with_one_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    usual = ff.simulate(PRESET, FLASH)
    by_key = ff.simulate(PRESET, [FLASH, "cluster.norms=unfused", "cluster.optimizer=foreach"])
    by_option = ff.simulate(PRESET, FLASH, kernels=["norms=unfused,optimizer=foreach"])
    assert usual.step_seconds < by_key.step_seconds == by_option.step_seconds
    assert by_key.to_json(advice=False)["kernels"] == by_option.to_json(advice=False)["kernels"]
    assert usual.to_json(advice=False)["kernels"]["norms"] == "fused"
    shown = (
        "kernels: attention flash-2, norms unfused, loss fused, rotary fused, optimizer foreach, tp collectives exposed"
    )
    assert shown in by_key.lines()
    assert "kernels" not in ff.simulate(PRESET, ["cluster.software=fourfold", FLASH]).to_json(advice=False)
    with pytest.raises(SystemExit, match="0"):
        main(["simulate", PRESET, "--kernels", "attention=recomputed", "--json"])
    assert json.loads(capsys.readouterr().out)["kernels"]["attention"] in WRITTEN


def test_collectives_dispatch_and_graphs_are_words_too() -> None:
    """Each changes the step of a run that has it, in the direction of its name; a run without it stays as it was."""
    everywhere = {"tp_collectives=overlapped", "launches=graph"}
    of_experts = {"dispatcher=deepep", "ep_collectives=overlapped"}
    for run, words in (("preset:mixtral-8x22b-256", everywhere | of_experts), ("preset:llama3-70b", everywhere)):
        usual = ff.simulate(run).step_seconds
        for word in everywhere | of_experts:
            found = ff.simulate(run, kernels=word).step_seconds
            assert (found < usual) if word in words else (found == usual), (run, word)


def test_a_schedule_that_hides_dispatch_has_the_word_for_it() -> None:
    """DualPipe pairs passes, and DeepSeek's software hides dispatch in the pairs; under 1F1B it does not."""
    paired, alone = (
        ff.simulate("preset:deepseek-v3-2k", more).to_json(advice=False)["kernels"]["ep_collectives"]
        for more in ([], ["layout.schedule=1f1b", "layout.virtual_stages=1"])
    )
    assert (paired, alone) == ("overlapped", "exposed")
    run = "preset:deepseek-v3-2k"
    usual, stated, denied = (
        ff.simulate(run, kernels=f"ep_collectives={word}" if word else ()).step_seconds
        for word in ("", "overlapped", "exposed")
    )
    assert usual == stated < denied


def test_a_graph_is_stated_by_the_run_or_by_the_word() -> None:
    """`run.cuda_graphs` holds for other software too; a word wins over it."""
    plain, by_run, by_word, denied = (
        ff.simulate(PRESET, [FLASH, *more]).step_seconds
        for more in (
            [], ["run.cuda_graphs=true"], ["cluster.launches=graph"], ["run.cuda_graphs=true", "cluster.launches=single"],
        )
    )  # fmt: skip
    assert by_run == by_word < plain == denied


def test_a_plan_is_priced_with_the_runs_graphs() -> None:
    """By any software's prices, fourfold's own too, and on another number of devices."""
    question = {
        "model": "llama3-8b",
        "cluster": "dgx-h100:8",
        "sequence_length": 2048,
        "batch_sequences": 64,
        "budget": 1,
    }
    plain, by_run, by_word = (
        ff.plan(**question, software="deepspeed", **more).best.seconds  # type: ignore[arg-type]
        for more in ({}, {"overrides": ["run.cuda_graphs=true"]}, {"kernels": ["launches=graph"]})
    )
    assert by_run == by_word < plain
    own, graphs = (
        ff.plan(**question, overrides=[f"run.cuda_graphs={word}"])  # type: ignore[arg-type]
        for word in ("false", "true")
    )
    assert graphs.best.seconds < own.best.seconds
    software = graphs.request.on(load_cluster("dgx-h100:16")).software
    assert software.host_launch_seconds == software.host_instruction_seconds == 0


def test_unfused_kernels_are_planned_and_bounded() -> None:
    question = {"model": "llama3-8b", "cluster": "dgx-a100:16", "sequence_length": 4096, "batch_sequences": 64}
    options = {"software": "megatron", "budget": 1, **question}
    usual, slow = (
        ff.plan(**options, kernels=words)  # type: ignore[arg-type]
        for words in ((), ("attention=unfused,norms=unfused", "optimizer=for-loop"))
    )
    assert usual.best.seconds < slow.best.seconds
    assert all(each.bound_seconds <= each.seconds * 1.001 for each in slow.found.found.best)


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        (
            "atention=flash-2",
            "did you mean attention? allowed: attention, norms, softmax, loss, rotary, optimizer, tp_collectives, "
            "dispatcher, ep_collectives, experts, launches",
        ),
        ("norms=fast", "allowed: fused, unfused; a value that works: norms=unfused"),
        ("norms", "allowed: fused, unfused; a value that works: norms=unfused"),
        ("attention=flash-3", "a100-sxm-80 is none; allowed there: flash, flash-1, flash-2, cudnn"),
    ],
)
def test_a_wrong_word_is_one_message(argument: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", PRESET, "--kernels", argument])
    assert part in capsys.readouterr().err


def test_a_wrong_word_of_a_run_file_is_one_message() -> None:
    with pytest.raises(UserError, match=r"cluster.optimizer = 'apex'.*'fused', 'foreach' or 'for-loop'"):
        ff.simulate(PRESET, "cluster.optimizer=apex")
    with pytest.raises(UserError, match=r"cluster\.norms=fused: fourfold's own program says what runs"):
        ff.simulate(PRESET, ["cluster.software=fourfold", FLASH, "cluster.norms=fused"])
    with pytest.raises(UserError, match=r"launches=graph.*what works: run\.cuda_graphs=true"):
        ff.simulate(PRESET, ["cluster.software=fourfold", FLASH, "cluster.launches=graph"])


def test_words_of_options_are_completed_by_the_run_files() -> None:
    section = KernelChoice(attention="unfused", norms="fused")
    found = SoftwareOverrides(kernels=parse_choice(["attention=flash-1"])).kernels.completed(section)
    assert found == KernelChoice(attention="flash-1", norms="fused")


def test_another_command_is_told_the_same_kernels() -> None:
    """Options given several times, or as one text from Python, are one flag."""
    for stated in ("norms=unfused,loss=chunked", ["norms=unfused", "loss=chunked"]):
        told = repeated(SoftwareOptions(kernels=stated), "megatron")
        assert told == " --software megatron --kernels norms=unfused,loss=chunked"
    assert "--kernels" not in repeated(SoftwareOptions(), "megatron")
