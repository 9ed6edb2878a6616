"""In what formats a row says that products, states and sums are."""

from dataclasses import replace

import pytest

from as_case import as_case
from case import PublishedCase
from fourfold.cost.memory import kept_bytes
from fourfold.program import rank_view
from fourfold.program.stage_map import stage_map
from fourfold.validate import case_spec
from normalise import normalise
from settle import predict_case
from tests.support.published import CASES, ROWS, prices_of


def test_number_formats() -> None:
    names = {name: case.precision.name for name, case in CASES.items()}
    assert (names["vendor:0"], names["vendor:1"], names["vendor:2"]) == ("mxfp8", "fp8", "nvfp4")
    assert names["vendor:5"] == "fp8-block", "the finer one on Hopper"
    assert CASES["papers:0"].precision.compute == "fp16"
    assert CASES["papers:16"].precision.gradients == "bf16"
    assert CASES["flags:5"].precision.low == "fp8"


def test_a_format_that_is_not_known_is_remarked() -> None:
    row = ROWS["papers:0"]
    case = normalise(replace(row, precision="posit16"))
    assert isinstance(case, PublishedCase)
    assert case.precision.compute == "bf16"
    assert any("'posit16'" in entry for entry in case.defaults)
    stated = normalise(replace(row, precision="bf16"))
    assert not any("names no number format" in entry for entry in getattr(stated, "defaults", ()))


@pytest.mark.parametrize(
    ("text", "compute", "low", "gradients"),
    [
        ("fp8 by Transformer Engine, Adam moments in fp32", "bf16", "fp8", "fp32"),
        ("fp8 matrix products, fp8 gradients, fp16 master, fp8 + fp16 moments", "bf16", "fp8", "fp32"),
        ("fp32 master, bf16 products", "bf16", None, "fp32"),
        ("bf16, bf16 gradients and reduce-scatter", "bf16", None, "bf16"),
        ("bf16, bf16 gradients reduced in fp32", "bf16", None, "fp32"),
        ("torch_dtype float16", "fp16", None, "fp16"),
        ("bfloat16, fp32 logits", "bf16", None, "fp32"),
        ("fp32", "fp32", None, "fp32"),
    ],
)
def test_formats_of_states_and_sums_are_not_those_of_matmuls(
    text: str, compute: str, low: str | None, gradients: str
) -> None:
    case = normalise(replace(ROWS["torchtitan:6"], precision=text))
    assert isinstance(case, PublishedCase)
    assert (case.precision.compute, case.precision.low, case.precision.gradients) == (compute, low, gradients)


@pytest.mark.parametrize(
    ("text", "master", "gradients"),
    [
        ("bf16 true", "bf16", "bf16"),
        ("bf16, torch_dtype=torch.bfloat16", "bf16", "bf16"),
        ("bf16, loaded in bf16, fp32 masters", "fp32", "fp32"),
        ("bf16 (model loaded in bf16), fp32 master weights and moments", "fp32", "fp32"),
        ("bf16, bf16 moments, master weights kept", "fp32", "fp32"),
        ("bf16 parameters (loaded in bf16), AdamW moments in bf16", "bf16", "bf16"),
        ("bf16", "fp32", "fp32"),
        ("bf16 (weights and moments too)", "bf16", "bf16"),
        ("bf16 (weights, gradients and moments too, no wider copy)", "bf16", "bf16"),
        ("pure bf16", "bf16", "bf16"),
        ("bf16 (autocast, weights fp32)", "fp32", "fp32"),
        ("bf16 (pure)", "bf16", "bf16"),
        ("bf16 (parameters too)", "bf16", "bf16"),
        ("bf16 with fp32 masters", "fp32", "fp32"),
    ],
)
def test_narrow_states_are_read_from_the_words_of_the_precision(text: str, master: str, gradients: str) -> None:
    row = replace(ROWS["torchtitan:6"], precision=text)
    case = normalise(row)
    assert isinstance(case, PublishedCase)
    assert (case.precision.compute, case.precision.master, case.precision.gradients) == ("bf16", master, gradients)
    fp32_masters = predict_case(replace(case, precision=replace(case.precision, master="fp32"))).memory_bytes
    narrow = predict_case(case).memory_bytes
    assert fp32_masters is not None
    assert narrow is not None
    assert (narrow < fp32_masters) == (master == "bf16")


@pytest.mark.parametrize(
    ("source", "precision", "notes", "gradients"),
    [
        ("Megatron-LM, 2021", "fp16", "", "fp16"),
        ("Megatron-LM, 2025", "bf16", "", "fp32"),
        ("Megatron-DeepSpeed, 2022", "fp16", "", "fp32"),
        ("DeepSpeed blog, 2024", "bf16", "", "bf16"),
        ("DeepSpeed blog, 2024", "bf16", "fp32 gradients reduced", "fp32"),
        ("DeepSpeed blog, 2024", "bf16 (autocast)", "", "fp32"),
        ("InternLM/InternEvo performance, 2024", "bf16", "", "bf16"),
        ("a trainer, 2024", "bf16", "", "fp32"),
        ("a trainer, 2024", "bf16 (gradients bf16)", "", "bf16"),
    ],
)
def test_in_what_gradients_are_summed(source: str, precision: str, notes: str, gradients: str) -> None:
    case = normalise(replace(ROWS["vendor:10"], source=source, precision=precision, notes=notes))
    assert isinstance(case, PublishedCase)
    assert case.precision.gradients == gradients


@pytest.mark.parametrize(
    ("precision", "compute", "low"),
    [
        ("fp32 (not said; the FP16 table is empty)", "fp32", None),
        ("amp_bf16 (autocast, weights and moments fp32)", "bf16", None),
        ("bf16 (weights without fp32 master, moments fp8, gradients bf16)", "bf16", None),
        ("fp8 (current scaling, mixed with bf16)", "bf16", "fp8"),
        ("fp8 (blockwise e4m3)", "bf16", "fp8-block"),
        ("float8 tensorwise, rest bf16", "bf16", "fp8"),
    ],
)
def test_what_stands_before_a_bracket_names_the_format_of_matmuls(
    precision: str, compute: str, low: str | None
) -> None:
    case = normalise(replace(ROWS["vendor:10"], precision=precision, notes=""))
    assert isinstance(case, PublishedCase)
    assert (case.precision.compute, case.precision.low) == (compute, low)


def test_parameters_without_wider_copies_and_optimizer_states_of_one_byte_are_read_from_notes() -> None:
    row = replace(ROWS["torchtitan:6"], precision="bf16")
    narrow = normalise(replace(row, notes="training dtype bf16 without fp32 masters"))
    assert narrow.precision.master == "bf16"  # type: ignore[union-attr]
    held = []
    for notes in ("", "8-bit paged AdamW", "no 8-bit optimizer", "Adafactor (factored second moment)"):
        case = normalise(replace(row, notes=notes))
        assert isinstance(case, PublishedCase)
        assert (case.moment_bytes == 1.0) == (notes == "8-bit paged AdamW")
        held.append(predict_case(case).memory_bytes)
    assert held[3] < held[1] < held[0] == held[2]


def test_one_device_that_would_not_hold_fp32_states_has_narrow_ones_where_its_row_states_none() -> None:
    row = replace(ROWS["torchtitan:6"], num_devices=1, global_sequences=1, microbatch_sequences=1, recompute="full")
    row = replace(row, sequence_length=1024)
    row = replace(row, layout=replace(row.layout, dp=1, zero=None, fsdp=False))
    silent, stated = (normalise(replace(row, precision=text)) for text in ("bf16", "bf16 with fp32 masters"))
    assert isinstance(silent, PublishedCase)
    assert isinstance(stated, PublishedCase)
    assert predict_case(stated).fits is False, "16 bytes a parameter"
    found = predict_case(silent)
    assert found.fits
    assert any("weights and optimizer states in bf16" in text for text in found.taken)
    megatron = normalise(replace(row, precision="bf16", source="Megatron-LM, 2025"))
    assert isinstance(megatron, PublishedCase)
    assert predict_case(megatron).fits is False, "Megatron keeps masters in fp32"
    small = replace(row, precision="bf16", model=replace(row.model, num_layers=8), global_sequences=64)
    many = normalise(replace(small, microbatch_sequences=None, sequence_length=8192, recompute="none"))
    assert isinstance(many, PublishedCase)
    assert many.layout.microbatch_sequences > 1
    assert not any("weights and optimizer states" in text for text in predict_case(many).taken), (
        "smaller microbatches first"
    )


def test_transformer_engine_saves_inputs_of_matmuls_in_8_bits() -> None:
    """A block saves 12 h + 6 f bytes a token at most: inputs of three matmuls halve, attention's output has a copy beside it."""
    row = replace(ROWS["torchtitan:6"], source="Megatron-LM, 2025", precision="fp8", notes="", recompute="none")
    row = replace(row, layout=replace(row.layout, tp=1, sequence_parallel=False))

    def kept(**changes: object) -> float:
        case = normalise(replace(row, **changes))  # type: ignore[arg-type]
        assert isinstance(case, PublishedCase)
        spec = case_spec(as_case(case))
        footprint = rank_view(spec).footprint(stage_map(spec).segments["b1"])
        software = prices_of(case).software
        return kept_bytes(footprint.saved_bytes, footprint.saved_parts, software) / footprint.saved_bytes

    case = normalise(row)
    assert isinstance(case, PublishedCase)
    hidden, ffn = case.model.hidden_size, case.model.ffn_size
    keys = 2 * case.model.num_kv_heads * case.model.head_dim
    full_bytes = 2 * (5 * hidden + keys + 3 * ffn)
    assert kept() == pytest.approx(1 - (hidden + ffn) / full_bytes, rel=0.01)
    assert kept(precision="bf16") == 1.0
    assert kept(source="torchtitan, 2025") == 1.0, "torchao keeps them in 16 bits"
    assert kept(source="torchtitan, 2025", notes="products by Transformer Engine") == kept()
    assert kept(precision="nvfp4") < kept()
