"""What is said of the software beside its name: the format of its products, its context, its allocator's slack."""

from dataclasses import replace

import pytest

from fourfold.config import ModelSection, UserError
from fourfold.config.schema import PrecisionSection
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.model.work import Attention, Gemm
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.simulate.run_prices import NOTHING_SAID, Said, stack_named

MODEL = resolve_model(ModelSection(preset="llama3-8b"))
PRODUCT, SCORES = Gemm(8192, 4096, 14336), Attention(1, 8192, 8192, 32, 8, 128, 128)


def asked(said: Said = NOTHING_SAID, cluster: str = "dgx-h100:8", dtype: str = "bf16") -> Request:
    precision = PrecisionSection(compute=dtype)
    return Request.of(MODEL, load_cluster(cluster), 8192, 64, precision, said=said)


def test_products_in_fewer_bits_are_faster_and_nothing_else_is() -> None:
    plain, low = asked().template, asked(Said(products="fp8")).template
    assert low.kernel(PRODUCT) < 0.8 * plain.kernel(PRODUCT)
    assert low.kernel(SCORES) == plain.kernel(SCORES)
    assert low.plain.kernel(PRODUCT) == plain.kernel(PRODUCT), "the head's"


def test_a_gradient_is_added_in_a_pass_of_its_own_where_formats_differ() -> None:
    """This project's products add themselves to a sum of their own format."""
    gradient = replace(PRODUCT, accumulates=True)
    template = asked().template
    added = template.stack.gradient_bytes * gradient.rows * gradient.columns
    apart = template.kernel(gradient) - template.kernel(PRODUCT)
    assert apart == pytest.approx(
        added / (template.cluster.device.memory_bytes_per_second * template.kernels.memory_share)
    )
    alike = Request.of(
        MODEL, load_cluster("dgx-h100:8"), 8192, 64, PrecisionSection(compute="bf16", gradients="bf16")
    ).template
    assert alike.stack.gradient_bytes == 0.0 < template.stack.gradient_bytes


def test_scales_of_blocks_cost_more() -> None:
    whole, blocks = (asked(Said(products=each)).template.kernel(PRODUCT) for each in ("fp8", "fp8-block"))
    assert blocks > whole
    narrow = asked(Said(products="nvfp4"), "dgx-b200:8").template.kernel(PRODUCT)
    assert narrow < asked(Said(products="mxfp8"), "dgx-b200:8").template.kernel(PRODUCT)


@pytest.mark.parametrize("said", [Said(products="fp8"), Said(context_bytes=4 * 10**9, slack=0.2)])
def test_bounds_hold_and_the_search_keeps_what_was_said(said: Said) -> None:
    found = search(asked(said), keep=10)
    assert all(each.bound_seconds <= each.seconds * 1.001 for each in found.best)
    assert all(each.memory_bytes <= asked().memory_bytes for each in found.best)
    assert found.best[0].seconds != search(asked(), keep=1).best[0].seconds
    assert found.request.on(load_cluster("dgx-h100:16")).stack == found.request.stack


def test_context_and_slack_come_upon_what_the_program_holds() -> None:
    layout = Candidate(1, 1, "ring", 1, 1, 1, "none", 1, "1f1b", 1, 1, 8, 3)
    own = stack_named(None)
    usual, more = (Pricer(asked(said)).predict(layout) for said in (NOTHING_SAID, Said(None, 3 * 10**9, 0.5)))
    (program,) = {peak.bytes for peak in usual.simulation.peaks}
    assert usual.device_bytes == (int(program * (1 + own.slack)) + int(own.context_bytes),)
    assert more.device_bytes == (int(program * 1.5) + 3 * 10**9,)


@pytest.mark.parametrize(
    ("said", "cluster", "dtype", "part"),
    [
        (Said(products="fp8"), "dgx-a100:8", "bf16", "has no such products; it has none in fewer bits than 16"),
        (Said(products="nvfp4"), "dgx-h100:8", "bf16", "allowed there: fp8, fp8-block, mxfp8"),
        (Said(products="fp8"), "dgx-h100:8", "fp32", "this one is in fp32"),
    ],
)
def test_products_that_a_device_does_not_have_are_refused(said: Said, cluster: str, dtype: str, part: str) -> None:
    with pytest.raises(UserError) as error:
        asked(said, cluster, dtype)
    assert part in str(error.value)


def test_nothing_said_changes_nothing() -> None:
    stack = stack_named("megatron-2025")
    assert NOTHING_SAID.of(stack) == stack
    assert Said(slack=0.1).of(stack) == replace(stack, slack=0.1)
