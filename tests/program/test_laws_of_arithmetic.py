"""FLOPs of a step, against closed forms: six a parameter and token, what is recomputed, the halves of backward."""

import pytest
from hypothesis import given, settings

from fourfold.config import ModelSection
from fourfold.huggingface import resolve_model
from fourfold.model.counts import num_parameters, step_flops_per_token
from fourfold.program import StepSpec, lower_pipeline
from tests.support.programs import make_spec
from tests.support.strategies import lowerings

SOME = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("preset", ["llama3-405b", "llama3-70b", "llama2-7b"])
def test_a_step_takes_six_flops_a_parameter_and_token(preset: str) -> None:
    """6 N D (Kaplan et al. 2020) within 1 %, at a short sequence, N without the embedding table, which is only looked up."""
    model = resolve_model(ModelSection(preset=preset))
    matrices = num_parameters(model) - model.vocab_size * model.hidden_size
    assert step_flops_per_token(model, 128) == pytest.approx(6 * matrices, rel=0.01)


def test_training_the_405b_model_on_15_trillion_tokens() -> None:
    """6 x 405e9 x 15e12 = 3.645e25 FLOPs: 1,168 years at 989 TFLOP/s, 17.4 days on 24,576 devices at 100 %, 43 at 40 %."""
    model = resolve_model(ModelSection(preset="llama3-405b"))
    flops = step_flops_per_token(model, 128) * 15e12
    assert flops == pytest.approx(3.645e25, rel=0.01)
    seconds = flops / 989e12
    assert seconds / (365.25 * 86400) == pytest.approx(1168, rel=0.01)
    assert seconds / 24576 / 86400 == pytest.approx(17.4, rel=0.01)
    assert seconds / 24576 / 86400 / 0.4 == pytest.approx(43.4, rel=0.01)


@SOME
@given(lowerings(shapes=("dense",), tensor=False))
def test_a_program_does_the_useful_arithmetic_and_what_it_recomputes(spec: StepSpec) -> None:
    """Without recompute: 6 per parameter of a matmul and token, the head's forward among them, and attention's
    forward and 2.5-fold backward (flash attention, Dao et al. 2022, computes the scores again). Over all stages."""
    model, layout = spec.model, spec.layout
    tokens = layout.microbatch_sequences * layout.sequence_length * layout.num_microbatches
    blocks = sum(p.numel for s in spec.segments for p in s.parameters if s.kind == "block" and len(p.shape) == 2)
    multiplied = blocks + model.vocab_size * model.hidden_size
    attention = 2 * layout.sequence_length * model.num_heads * model.head_dim * model.num_layers
    forward = (2 * blocks + attention) // model.num_layers
    recomputed = sum(policy == "full" for policy in layout.recompute) * forward
    total = sum(step.flops for program in lower_pipeline(spec) for step in program.instructions)
    assert total == pytest.approx(
        tokens * (6 * multiplied + 3.5 * attention + recomputed), abs=tokens * model.num_layers
    )


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v"])
def test_the_halves_of_backward_do_its_arithmetic(schedule: str) -> None:
    """Input and weight gradients are half each of the matmuls' backward (Qi et al. 2023); together the full backward."""
    make = {"model": {"num_layers": 6}, "pp": 2, "virtual_stages": 2 if schedule == "zb_v" else 1, "accumulation": 4}
    halves, full = (
        sum(step.flops for p in lower_pipeline(make_spec(**make, schedule=s)) for step in p.instructions)  # type: ignore[arg-type]
        for s in (schedule, "interleaved_1f1b" if schedule == "zb_v" else "1f1b")
    )
    assert halves == full
