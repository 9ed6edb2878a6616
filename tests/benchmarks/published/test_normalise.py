"""A row's statements are taken as they are; a documented default fills what it leaves out, and the case says so."""

from dataclasses import replace

import pytest

from as_case import as_case
from case import PublishedCase, Skip
from defaults import DEFAULTS
from fourfold.config import parse_run
from fourfold.config.check_model import check_model
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.counts import num_parameters
from fourfold.program.schedule import check_schedule
from fourfold.validate import case_spec
from machine import DEVICE_KEYS
from normalise import normalise
from tests.support.published import CASES, ROWS


def _reason(name: str) -> str:
    skip = normalise(ROWS[name])
    assert isinstance(skip, Skip)
    return skip.reason


def _imputed(name: str, setting: str) -> bool:
    return any(text.startswith(f"{setting} = ") for text in CASES[name].defaults)


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_a_run_that_this_project_accepts(name: str) -> None:
    case, layout = CASES[name], CASES[name].layout
    check_model(case.model)
    check_schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches)
    assert case.device in DEVICE_KEYS
    section = {
        key: getattr(layout, key)
        for key in (
            "pp", "virtual_stages", "schedule", "dp_replicate", "dp_shard", "zero", "cp", "tp", "sequence_parallel", "ep", "etp",
            "microbatch_sequences",
        )
    }  # fmt: skip
    section["recompute"] = layout.policies(case.model.num_layers)
    config = parse_run(
        {
            "model": {"preset": "tiny"},
            "batch": {"global_sequences": case.global_sequences, "sequence_length": case.sequence_length, "steps": 1},
            "layout": section,
        }
    )
    resolved = resolve_layout(config, case.model, case.num_devices)
    assert resolved.num_microbatches == layout.num_microbatches


def test_a_row_that_states_everything_is_taken_as_it_is() -> None:
    case = CASES["sweep:0"]
    assert (case.layout.pp, case.layout.dp, case.layout.tp, case.layout.zero) == (2, 4, 2, 1)
    assert (case.layout.microbatch_sequences, case.layout.num_microbatches) == (2, 32)
    assert case.layout.sequence_parallel
    assert case.model.family == "llama"
    assert case.model.tie_embeddings
    assert case.software == "nanotron"
    assert case.precision.name == "bf16"
    assert not _imputed("sweep:0", "recompute")
    assert not CASES["sweep:1"].layout.sequence_parallel


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sweep:5", "stages"),
        ("vendor:3", "ep x etp"),
        ("vendor:4", "LoRA"),
        ("vendor:6", "state-space"),
        ("vendor:7", "dimensions"),
        ("papers:7", "layout is not stated"),
        ("papers:8", "neither a step time nor memory"),
        ("papers:10", "no multiple"),
        ("papers:12", "formula"),
        ("papers:13", "one layer"),
        ("papers:14", "device tables"),
        ("papers:15", "offloaded"),
        ("papers:21", "does not divide the heads"),
        ("papers:22", "does not divide 512 devices"),
        ("flags:7", "does not divide 8 devices"),
    ],
)
def test_what_cannot_be_asked_says_why(name: str, word: str) -> None:
    assert word in _reason(name)


def test_every_other_block_has_experts_where_the_model_is_known_to_alternate() -> None:
    model = CASES["vendor:9"].model
    assert [model.is_moe(layer) for layer in range(4)] == [False, True, False, True]
    assert (model.moe_ffn_size, model.num_shared_experts, model.ffn_size) == (8192, 1, 16384)
    weights = 3 * 5120 * (24 * (128 + 1) * 8192 + 24 * 16384) + 2 * 202048 * 5120 + 48 * 2 * 5120 * (5120 + 1024)
    assert num_parameters(model) == pytest.approx(weights, rel=1e-3)


def test_models_by_their_kind() -> None:
    deepseek = CASES["vendor:0"].model
    assert (deepseek.family, deepseek.key_value_rank, deepseek.num_shared_experts) == ("deepseek_v3", 512, 1)
    assert (deepseek.first_dense_layers, deepseek.mtp_layers) == (3, 1)
    assert CASES["vendor:2"].model.mtp_layers == 0, "a row that says without has none"
    row = ROWS["vendor:0"]
    few = replace(row.model, num_layers=8, mtp_layers=None)
    cut = normalise(replace(row, model=few, layout=replace(row.layout, pp=1)))
    assert isinstance(cut, PublishedCase)
    assert cut.model.mtp_layers == 0, "nor has a copy of a few layers"
    gpt = CASES["papers:0"].model
    assert (gpt.family, gpt.norm, gpt.activation, gpt.positions, gpt.linear_bias) == (
        "gpt2",
        "layer",
        "gelu",
        "learned",
        True,
    )
    nemotron = CASES["vendor:10"].model
    assert (nemotron.gated, nemotron.linear_bias, nemotron.positions) == (False, False, "rope")
    assert not CASES["papers:16"].model.linear_bias, "MPT has no biases"
    moonlight = CASES["vendor:8"].model
    assert (moonlight.num_layers, moonlight.num_experts, moonlight.num_shared_experts) == (27, 64, 2)
    mla = CASES["flags:4"].model
    assert (mla.is_mla, mla.norm, mla.positions) == (True, "rms", "rope")


def test_experts_without_a_gate_become_gated_ones_of_as_many_weights() -> None:
    model = CASES["flags:2"].model
    assert (model.gated, model.num_experts, model.top_k) == (True, 8, 2)
    assert 3 * model.moe_ffn_size == pytest.approx(2 * 4 * 512, rel=0.01), "three matrices for two, of 4 x hidden"
    assert any("two thirds" in text for text in CASES["flags:2"].defaults)
    assert CASES["flags:2"].attention_dropout, "it is GPT's kind still"
    shared = replace(ROWS["flags:2"].model, moe_ffn_size=1024, shared_ffn_size=2048)
    case = normalise(replace(ROWS["flags:2"], model=shared))
    assert isinstance(case, PublishedCase)
    assert case.model.num_shared_experts == 2


def test_a_public_model_is_its_preset() -> None:
    stated = parse_run(
        {"model": {"preset": "deepseek-v3"}, "batch": {"global_sequences": 1, "sequence_length": 1, "steps": 1}}
    )
    preset, ours = resolve_model(stated.model), CASES["vendor:0"].model
    for key in (
        "num_layers",
        "hidden_size",
        "head_dim",
        "num_experts",
        "top_k",
        "moe_ffn_size",
        "query_rank",
        "ffn_size",
    ):
        assert getattr(ours, key) == getattr(preset, key)


def test_vocabularies_are_padded_as_the_trainer_does() -> None:
    assert CASES["vendor:1"].model.vocab_size == 128512, "the least multiple of 128 x 4 from 128256 on"
    assert _imputed("vendor:13", "vocab_size")
    assert CASES["flags:0"].model.vocab_size == 50304
    assert CASES["sweep:2"].model.vocab_size == 131072


def test_sharding() -> None:
    hybrid = CASES["vendor:11"].layout
    assert (hybrid.zero, hybrid.dp_shard, hybrid.dp_replicate) == (3, 16, 4)
    assert CASES["papers:16"].layout.zero == 3
    assert CASES["papers:17"].layout.zero == 1, (
        "FSDP that keeps parameters, in a pipeline: gradients are summed once a step"
    )
    assert (CASES["papers:19"].layout.dp_shard, CASES["papers:20"].layout.dp_shard) == (8, 64)
    assert CASES["vendor:10"].layout.zero == 1, "the vendor's recipes shard the optimizer"
    assert _imputed("vendor:10", "zero")
    assert CASES["flags:6"].layout.zero == 3
    for source, zero in (("Megatron-LM README, 2022", 0), ("Megatron-LM README, 2024", 1), ("DeepSpeed blog, 2024", 0)):
        row = replace(ROWS["vendor:10"], source=source, notes="")
        assert normalise(row).layout.zero == zero  # type: ignore[union-attr]


def test_schedules_have_the_names_of_this_project() -> None:
    names = {"sweep:0": "1f1b", "vendor:1": "interleaved_1f1b", "papers:5": "zb_h1", "papers:18": "dualpipe_v"}
    assert {name: CASES[name].layout.schedule for name in names} == names
    assert CASES["papers:6"].layout.virtual_stages == 6, "(46 blocks + embedding + head) / 8 ranks"
    assert CASES["flags:1"].layout.virtual_stages == 6, "12 layers, 1 a stage, 2 ranks"
    assert CASES["papers:17"].layout.virtual_stages == 3, "(48 blocks + embedding + head) / 16 ranks"


def test_a_schedule_of_parts_of_sequences_is_not_asked() -> None:
    found = normalise(replace(ROWS["papers:5"], schedule="Seq1F1B, each sequence cut in 4 parts"))
    assert isinstance(found, Skip)
    assert "cuts sequences into parts" in found.reason


@pytest.mark.parametrize(
    ("words", "framework", "notes", "method"),
    [
        ("", "torchtitan 2025", "", "ring"),
        ("Ulysses", "torchtitan 2025", "", "ulysses"),
        ("a2a", "Megatron-LM 2025", "", "ulysses"),
        ("p2p", "Megatron-LM 2025", "compared with Ulysses", "ring"),
        ("a2a+p2p", "Megatron-LM 2025", "", "ring+ulysses:8"),
        ("all_gather", "Megatron-LM 2025", "", "all_gather"),
        ("", "VeOmni (2025), FSDP2 + Ulysses", "", "ulysses"),
        ("", "DeepSpeed 2025", "no Ulysses here", "ring"),
        ("", "MaxText 2025", "experts by all-to-all", "all_gather"),
        ("zigzag ring, no Ulysses", "torchtitan 2025", "", "ring"),
        ("USP (ulysses 4 x ring 4)", "xDiT 2025", "", "ring+ulysses:4"),
        ("gather KV", "torchtitan 2025", "", "all_gather"),
        ("", "torchtitan 2025", "faster than DeepSpeed-Ulysses by 1.4x", "ring"),
        ("", "torchtitan 2025", "the baseline is DeepSpeed-Ulysses, this row is ring attention", "ring"),
    ],
)
def test_how_sequences_are_split_is_read(words: str, framework: str, notes: str, method: str) -> None:
    row = ROWS["torchtitan:6"]
    layout = replace(row.layout, tp=1, pp=1, dp=1, cp=16, cp_text=words)
    asked = replace(
        row, layout=layout, num_devices=16, framework=framework, notes=notes, source="", sequence_length=65536
    )
    case = normalise(replace(asked, global_sequences=1, microbatch_sequences=1, accumulation=1))
    assert isinstance(case, PublishedCase), case
    assert case.layout.cp_method == method
    assert case_spec(as_case(case)).layout.cp_ulysses == {"ulysses": 16, "ring+ulysses:8": 8, "ring+ulysses:4": 4}.get(
        method, 1
    )


def test_recomputation() -> None:
    policies = {name: (c.layout.recompute, c.layout.recompute_modules) for name, c in CASES.items()}
    assert policies["papers:0"] == ("full", ())
    assert policies["papers:1"] == ("full", ()), "Megatron of 2021 recomputes where its paper says nothing"
    assert policies["sweep:0"] == ("none", ())
    assert policies["vendor:0"] == ("none", ())
    assert policies["vendor:8"] == ("selective", ("mla_up_proj", "mlp"))
    assert policies["vendor:10"] == ("selective", ("core_attn",))
    assert policies["flags:5"] == ("selective", ("layernorm", "mlp"))


def test_a_row_that_contradicts_itself_says_so() -> None:
    texts = " ".join(CASES["papers:11"].defaults)
    assert "dp = 16 is stated" in texts
    assert "accumulation = 7 is stated" in texts
    assert CASES["papers:11"].layout.dp == 32
    assert any("step time by tokens" in text for text in CASES["papers:9"].defaults)


def test_batches_are_derived_where_they_can_be() -> None:
    assert CASES["papers:9"].global_sequences == 4 * 12 * 32
    assert CASES["papers:17"].layout.microbatch_sequences == 1
    assert CASES["vendor:13"].num_devices == 64


def test_every_imputed_default_is_documented() -> None:
    for case in CASES.values():
        for text in case.defaults:
            assert text in DEFAULTS.values() or ": " in text or "taken" in text


def test_torchs_fsdp_in_a_pipeline_keeps_parameters_and_full_gradients() -> None:
    assert CASES["torchtitan:13"].layout.zero == 1
    assert any("sums gradients once a step" in text for text in CASES["torchtitan:13"].defaults)
    assert CASES["torchtitan:6"].layout.zero == 3


def test_selective_recomputation_is_what_the_framework_means_by_it() -> None:
    policies = CASES["torchtitan:1"].layout.policies(6)
    assert policies == ["none", "full"] * 3, "torchtitan: of every other product"
    assert CASES["torchtitan:6"].layout.policies(6) == "full"
    attention = replace(CASES["sweep:0"].layout, recompute="selective", recompute_modules=("core_attn",))
    assert attention.policies(6) == "none", "fused attention keeps no matrix that could be dropped"
    assert replace(attention, recompute_modules=("mlp",)).policies(6) == "selective"
