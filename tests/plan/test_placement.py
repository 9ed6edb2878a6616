"""In which order the axes lie on the devices: what is nearer is faster, and the program is the same."""

from dataclasses import replace

import pytest

from fourfold.config import ModelSection, UserError
from fourfold.export import EXPORTS, TrainerJob
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.candidate import Candidate
from fourfold.plan.constraints import parse_fixed
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.plan.queue import other_orders
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.program import lower_pipeline

MODEL = {"num_layers": 6, "hidden_size": 8192, "num_heads": 64, "num_kv_heads": 8, "ffn_size": 1024, "vocab_size": 512}
LAYOUT = Candidate(
    pp=8, schedule="1f1b", virtual_stages=1, dp_replicate=2, dp_shard=2, zero=1, cp=1, cp_method="ring", tp=1, ep=1, etp=1,
    microbatch_sequences=1, recompute="none",
)  # fmt: skip


def asked(devices: int = 32, **more) -> Request:
    return Request.of(resolve_model(ModelSection(**MODEL | more)), load_cluster(f"dgx-h100:{devices}"), 4096, 32)


def priced(request: Request, layout: Candidate) -> Priced:
    step = Pricer(request).predict(layout)
    return Priced(layout, step.seconds, step.device_bytes)


def transfer(request: Request, layout: Candidate) -> float:
    return request.prices(candidate_spec(request, layout).layout).transfer(10**8, 1, 2)


def reduction(request: Request, layout: Candidate) -> float:
    return request.prices(candidate_spec(request, layout).layout).collective("reduce_scatter", "dp_shard", 10**8)


def test_messages_between_stages_stay_in_a_node_where_data_is_outermost() -> None:
    request, near = asked(), replace(LAYOUT, outermost="dp")
    assert transfer(request, near) < transfer(request, LAYOUT) / 3
    assert reduction(request, near) > reduction(request, LAYOUT) * 3
    replicas = replace(LAYOUT, outermost="dp_replicate", dp_shard=1, dp_replicate=4)
    assert transfer(request, replicas) == transfer(request, near), "whole pipelines in nodes, either way"


def test_the_pipeline_that_leaves_its_node_is_waited_for() -> None:
    """6 stages of pipelines on nodes of 8: the first lies in its node, the second does not."""
    request = asked(24)
    layout = replace(LAYOUT, pp=6, dp_replicate=1, dp_shard=4, outermost="dp")
    assert transfer(request, layout) == transfer(request, replace(layout, outermost="pp"))
    longer = replace(layout, pp=8)
    assert transfer(asked(32), longer) < transfer(request, layout) / 3


def test_every_rank_runs_the_same_program_in_any_order() -> None:
    spec = [candidate_spec(asked(), replace(LAYOUT, outermost=order)) for order in ("pp", "dp_replicate", "dp")]
    assert len({tuple(program.instructions for program in lower_pipeline(each)) for each in spec}) == 1


def test_the_best_order_is_kept() -> None:
    request = asked()
    every = [priced(request, replace(LAYOUT, outermost=order)) for order in ("pp", "dp_replicate", "dp")]
    best = min(every, key=lambda p: p.seconds)
    keys = (
        "tp",
        "cp",
        "pp",
        "schedule",
        "virtual_stages",
        "dp_replicate",
        "dp_shard",
        "zero",
        "microbatch_sequences",
        "recompute",
    )
    found = search(request, keep=1, fixed={key: getattr(LAYOUT, key) for key in keys}).best[0]
    assert found.seconds == pytest.approx(best.seconds, rel=1e-12)
    assert found.candidate.outermost == best.candidate.outermost != "pp", "messages outweigh gradients in this model"
    assert found.seconds < every[0].seconds


def test_orders_that_change_nothing_are_not_tried() -> None:
    request = asked()
    assert list(other_orders(request, LAYOUT)) == ["dp_replicate", "dp"]
    assert list(other_orders(request, replace(LAYOUT, dp_replicate=1, dp_shard=4))) == ["dp"]
    assert list(other_orders(request, replace(LAYOUT, dp_replicate=4, dp_shard=1))) == ["dp_replicate"]
    assert list(other_orders(request, replace(LAYOUT, pp=1, dp_shard=16))) == []
    assert list(other_orders(asked(8), replace(LAYOUT, pp=2))) == [], "one node: all devices are as near"


def test_an_order_that_is_asked_for_is_kept() -> None:
    found = search(asked(), keep=3, fixed={"outermost": "dp_replicate", "pp": 4})
    assert {p.candidate.outermost for p in found.best} == {"dp_replicate"}
    assert parse_fixed("outermost=dp") == {"outermost": "dp"}
    with pytest.raises(UserError, match=r"outermost=tp: .*allowed: pp, dp_replicate, dp"):
        parse_fixed("outermost=tp")


def test_other_trainers_are_told_or_cannot_be() -> None:
    near = replace(LAYOUT, outermost="dp")
    replicas = replace(near, outermost="dp_replicate", dp_shard=1)
    assert "--use-tp-pp-dp-mapping" in EXPORTS["megatron"](TrainerJob(asked(), near)).text
    assert "--use-tp-pp-dp-mapping" not in EXPORTS["megatron"](TrainerJob(asked(), LAYOUT)).text
    assert "--use-tp-pp-dp-mapping" in EXPORTS["megatron"](TrainerJob(asked(), replicas)).text
    experts = EXPORTS["megatron"](TrainerJob(asked(num_experts=8, top_k=2), replace(near, ep=2))).left_out
    assert any("ep x etp = tp x cp" in each for each in experts)
    for trainer in ("torchtitan", "deepspeed"):
        assert any("outermost" in each for each in EXPORTS[trainer](TrainerJob(asked(), near)).left_out)
        assert not any("outermost" in each for each in EXPORTS[trainer](TrainerJob(asked(), LAYOUT)).left_out)


def test_torchtitan_takes_a_pipeline_s_full_batch_at_once_and_accumulates_without_one() -> None:
    """Accumulation is global_batch_size / (local_batch_size x dp) there; a pipeline cuts the local batch into microbatches."""
    pipelined = EXPORTS["torchtitan"](TrainerJob(asked(), LAYOUT)).text
    assert "local_batch_size=8,\n" in pipelined, "32 sequences, dp 4"
    assert "pipeline_parallel_microbatch_size=1" in pipelined
    alone = EXPORTS["torchtitan"](TrainerJob(asked(), replace(LAYOUT, pp=1, dp_shard=16))).text
    assert "local_batch_size=1,\n" in alone
    assert "global_batch_size=32,\n" in alone
