"""Planners of others: which cases each can express, in what words, and the null models beside them. No peer is needed."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import peer_calculon
import peer_llm_analysis
import peer_simumax
from case import PublishedCase, SettledPrediction
from fourfold.config.kernel_choice import KernelChoice
from fourfold.cost.fitted import fitted
from other_planners import (
    CALCULON,
    LLM_ANALYSIS,
    SIMUMAX,
    Planner,
    Selection,
    Settled,
    by_other_sources,
    device_and_format,
    is_timed,
    line,
    markdown,
    select,
    table_of,
)
from peer import CannotStateError, PeerError, ask
from row_command import cases_of
from row_files import read_rows

CASES = {case.id: case for case in cases_of(read_rows([Path(__file__).parent / "rows" / "papers.json"])[0])}
GPT = replace(CASES["papers:0"], overlap=None)
"""GPT of 39.1e9 parameters on 512 A100: tp 8, pp 2, dp 32, fully recomputed."""
B200 = replace(CASES["papers:23"], model=replace(CASES["papers:23"].model, tie_embeddings=False))
"""A model on eight B200: tp 8."""


def with_layout(case: PublishedCase, **keys: object) -> PublishedCase:
    return replace(case, layout=replace(case.layout, **keys))  # type: ignore[arg-type]


def with_model(case: PublishedCase, **keys: object) -> PublishedCase:
    return replace(case, model=replace(case.model, **keys))  # type: ignore[arg-type]


def test_calculon_is_given_what_its_own_validation_gives_it() -> None:
    """GPT-3 175B of Korthikanti et al., table 5, as `validation/seqsel/tab5/gpt3-175B_{full,seqsel}.json` of Calculon state it."""
    model = {
        "num_layers": 96,
        "hidden_size": 12288,
        "num_heads": 96,
        "num_kv_heads": 96,
        "head_dim": 128,
        "ffn_size": 49152,
    }
    layout = {"pp": 8, "virtual_stages": 3, "dp_replicate": 1, "dp_shard": 1, "tp": 8, "microbatch_sequences": 1}
    case = replace(with_model(GPT, **model), num_devices=64, global_sequences=64, sequence_length=2048)
    full = with_layout(case, **layout, num_microbatches=64, recompute="full")
    selective = with_layout(full, recompute="selective", recompute_modules=("core_attn",), sequence_parallel=True)
    for stated, (recompute, kind, again) in ((full, ("full", "ar", False)), (selective, ("attn_only", "rs_ag", True))):
        found = peer_calculon.statement(stated)
        assert found["system"] == "a100_80g"
        assert found["application"] == {
            "hidden": 12288, "feedforward": 49152, "seq_size": 2048, "attn_heads": 96, "attn_size": 128, "num_blocks": 96,
        }  # fmt: skip
        assert found["execution"] == {
            "num_procs": 64, "tensor_par": 8, "pipeline_par": 8, "data_par": 1, "tensor_par_net": 0, "pipeline_par_net": 1,
            "data_par_net": 1, "batch_size": 64, "microbatch_size": 1, "datatype": "float16", "fused_activation": False,
            "attention_type": "multihead", "activation_recompute": recompute, "pipeline_interleaving": 3,
            "optimizer_sharding": False, "tensor_par_comm_type": kind, "tensor_par_overlap": "none", "seq_par_ag_redo": again,
            "data_par_overlap": False, "weight_offload": False, "activations_offload": False, "optimizer_offload": False,
            "training": True,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "recompute", "expected"),
    [
        ("unfused", "none", "none"),
        ("flash", "none", "attn_only"),
        ("unfused", "full", "full"),
        ("flash", "full", "full"),
    ],
)
def test_calculon_keeps_scores_only_where_the_kernel_does(attention: str, recompute: str, expected: str) -> None:
    case = replace(GPT, kernels=KernelChoice.model_validate({"attention": attention}))
    found = peer_calculon.statement(with_layout(case, recompute=recompute))
    assert found["execution"]["activation_recompute"] == expected


@pytest.mark.parametrize(
    ("degrees", "inside"),
    [
        ({"tp": 2, "dp_shard": 4, "pp": 1}, ("tp", "dp")),
        ({"tp": 2, "dp_shard": 8, "pp": 2}, ("tp",)),
        ({"tp": 2, "dp_shard": 2, "pp": 2}, ("tp", "dp", "pp")),
        ({"tp": 16, "dp_shard": 1, "pp": 1}, ()),
        ({"tp": 2, "dp_shard": 8, "pp": 4, "outermost": "dp"}, ("tp", "pp")),
    ],
)
def test_axes_of_calculon_are_inside_a_node_as_far_as_they_fill_it(
    degrees: dict[str, int], inside: tuple[str, ...]
) -> None:
    case = with_layout(GPT, dp_replicate=1, **degrees)
    ranks = case.layout.tp * case.layout.dp * case.layout.pp
    execution = peer_calculon.statement(replace(case, num_devices=ranks))["execution"]
    names = {"tp": "tensor_par_net", "dp": "data_par_net", "pp": "pipeline_par_net"}
    assert {axis for axis, name in names.items() if execution[name] == 0} == set(inside)


COMMON: list[tuple[str, Callable[[PublishedCase], PublishedCase]]] = [
    ("number format", lambda case: replace(case, precision=replace(case.precision, low="fp8"))),
    ("host's memory", lambda case: replace(case, offloaded="optimizer")),
    ("windows", lambda case: replace(case, attention_share=0.5)),
    ("multi-token", lambda case: with_model(case, mtp_layers=1)),
    ("schedule", lambda case: with_layout(case, schedule="zb_h1")),
    ("every other block", lambda case: with_layout(case, recompute="alternate")),
    ("device", lambda case: replace(case, device="tpu-v4")),
]
OF_ONE: list[tuple[Planner, str, Callable[[PublishedCase], PublishedCase]]] = [
    (CALCULON, "gated", lambda case: with_model(case, gated=True)),
    (CALCULON, "grouped queries", lambda case: with_model(case, num_kv_heads=case.model.num_heads // 2)),
    (CALCULON, "experts", lambda case: with_model(case, num_experts=8)),
    (CALCULON, "context", lambda case: with_layout(case, cp=2)),
    (CALCULON, "ZeRO-3", lambda case: with_layout(case, zero=3)),
    (SIMUMAX, "ZeRO-2", lambda case: with_layout(case, zero=2)),
    (
        SIMUMAX,
        "writes its scores",
        lambda case: replace(case, kernels=KernelChoice.model_validate({"attention": "unfused"})),
    ),
    (SIMUMAX, "ring", lambda case: with_layout(replace(case, file="others"), cp=2, cp_method="ring")),
    (SIMUMAX, "selective", lambda case: with_layout(case, recompute="selective", recompute_modules=())),
    (LLM_ANALYSIS, "experts", lambda case: with_model(case, num_experts=8)),
    (LLM_ANALYSIS, "context", lambda case: with_layout(case, cp=2)),
    (LLM_ANALYSIS, "heads", lambda case: with_model(case, head_dim=2 * case.model.head_dim)),
]


def usual(planner: Planner) -> PublishedCase:
    return B200 if planner is SIMUMAX else GPT


@pytest.mark.parametrize("planner", [CALCULON, SIMUMAX, LLM_ANALYSIS], ids=lambda planner: planner.name)
def test_every_peer_can_state_a_usual_case_and_says_why_not_another(planner: Planner) -> None:
    planner.statement(usual(planner))
    cases = [usual(planner), *(change(usual(planner)) for _, change in COMMON)]
    found = select(planner, cases)
    assert found.places == [0]
    assert len(found.statements) == 1
    assert len(found.cannot) == sum(found.cannot.values()) == len(COMMON)
    for word, change in COMMON:
        with pytest.raises(CannotStateError, match=word):
            planner.statement(change(usual(planner)))


@pytest.mark.parametrize(("planner", "word", "change"), OF_ONE, ids=lambda each: getattr(each, "name", None))
def test_what_one_peer_has_no_words_for(
    planner: Planner, word: str, change: Callable[[PublishedCase], PublishedCase]
) -> None:
    with pytest.raises(CannotStateError, match=word):
        planner.statement(change(usual(planner)))


def test_the_network_is_the_one_that_a_row_states() -> None:
    for case, statement, rate in ((GPT, peer_calculon.statement, 25.0), (B200, peer_simumax.statement, 8 * 25.0)):
        network = replace(case.network, devices_per_node=8, internode_bytes_per_second=25e9, assumed=False)
        assert statement(replace(case, network=network))["network_gigabytes_per_second"] == rate
        assumed = replace(case, network=replace(network, assumed=True))
        assert statement(assumed)["network_gigabytes_per_second"] is None


def test_simumax_is_given_experts_mla_and_recomputation_as_it_names_them() -> None:
    experts = {"num_experts": 160, "top_k": 6, "moe_ffn_size": 1536, "num_shared_experts": 2, "first_dense_layers": 1}
    mla = {
        "query_rank": 1536, "key_value_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64, "value_head_dim": 128,
    }  # fmt: skip
    case = with_layout(
        with_model(B200, **experts, **mla), recompute="selective", recompute_modules=("mlp", "layernorm")
    )
    found = peer_simumax.statement(case)
    assert found["model"]["moe_shared_expert_intermediate_size"] == 3072
    assert (found["model"]["attention_type"], found["model"]["kv_head_num"]) == ("mla", case.model.num_heads)
    assert found["strategy"]["megatron_recompute_modules"] == ["layernorm", "mlp"]
    assert found["strategy"]["recompute_layer_num"] == case.model.num_layers
    plain = peer_simumax.statement(with_layout(B200, recompute="none"))["strategy"]
    assert not plain["enable_recompute"]
    assert "recompute_granularity" not in plain
    half = peer_simumax.statement(with_layout(B200, recompute="full", pp=2))["strategy"]
    assert (half["recompute_granularity"], half["recompute_layer_num"]) == (
        "full_block",
        -(-B200.model.num_layers // 2),
    )
    core = with_layout(B200, recompute="selective", recompute_modules=("core_attn",))
    assert not peer_simumax.statement(core)["strategy"]["enable_recompute"], "fused attention keeps no scores"


def test_gradients_are_summed_beside_computation_where_a_row_or_its_software_says_so() -> None:
    split = with_layout(GPT, dp_shard=2)
    for overlap, told in ((None, fitted().software(split.software).overlap_data), (False, False), (True, True)):
        (found,) = select(CALCULON, [replace(split, overlap=overlap)]).statements
        assert found["execution"]["data_par_overlap"] is told
    assert fitted().software(split.software).overlap_data, "silence and no are told apart"


def test_a_model_that_would_be_counted_wrong_is_not_stated() -> None:
    broad, tied = with_model(GPT, ffn_size=5 * GPT.model.hidden_size), with_model(B200, tie_embeddings=True)
    for statement, case in ((peer_llm_analysis.statement, broad), (peer_simumax.statement, tied)):
        with pytest.raises(CannotStateError, match=r"another width|tied"):
            statement(case)


def test_llm_analysis_has_the_parameters_of_a_gated_feed_forward() -> None:
    gated = with_model(GPT, gated=True, ffn_size=2 * (GPT.model.hidden_size * 4 // 3))
    for case, matrices in ((gated, 3), (GPT, 2)):
        found = peer_llm_analysis.statement(case)
        assert 2 * found["model"]["ffn_embed_dim"] == matrices * case.model.ffn_size
        assert found["model"]["expansion_ratio"] * case.model.hidden_size == found["model"]["ffn_embed_dim"]
        assert found["training"]["mlp_gated_linear_units"] == case.model.gated


def sources(seconds: dict[str, list[float]], **keys: str) -> list[PublishedCase]:
    return [
        replace(GPT, file=file, measured=replace(GPT.measured, step_seconds=each), **keys)  # type: ignore[arg-type]
        for file, times in seconds.items()
        for each in times
    ]


def test_a_null_model_is_made_of_all_other_sources() -> None:
    cases = sources({"a": [1.0, 1.0], "b": [3.0], "c": [9.0] * 7})
    measured = np.array([case.measured.step_seconds for case in cases])
    found = by_other_sources(cases, np.ones(len(cases)), measured, lambda case: "")
    # |f / t - 1| of the two others, each as one run, is least at the shorter time
    assert found.tolist() == [3.0, 3.0, 1.0, *[1.0] * 7]
    alone = [*cases, *sources({"d": [5.0]}, device="h100-sxm")]
    measured = np.array([case.measured.step_seconds for case in alone])
    assert by_other_sources(alone, np.ones(len(alone)), measured, device_and_format)[-1] in measured[:-1]


def test_a_null_models_constant_has_the_least_mean_error() -> None:
    draw = np.random.default_rng(3)
    times = np.exp(draw.normal(0, 0.8, 41))
    cases = sources({f"s{number}": [float(each)] for number, each in enumerate(times)})
    found = by_other_sources(cases, np.ones(41), times, lambda case: "")
    for out in (0, 17, 40):
        others = np.delete(times, out)
        best = min(np.abs(each / others - 1).mean() for each in np.linspace(0.05, 5, 2000))
        assert np.abs(found[out] / others - 1).mean() <= best + 1e-9


def test_tables_hold_each_run_once_beside_every_prediction() -> None:
    times = {"others": [4.0, 2.0, 3.0], "korthikanti_2022": [5.0], "nanotron_playbook_sweep": [1.0, 2.0]}
    cases = sources(times)
    settled = [Settled(case, SettledPrediction(case.measured.step_seconds, None, True)) for case in cases]
    selection = Selection(list(range(6)), [{}] * 6, {"gated": 3})
    answers = [
        {"step_seconds": 2 * (case.measured.step_seconds or 0), "memory_bytes": 1e9, "note": "rough"}
        for case in cases[:-1]
    ]
    right = np.array([case.measured.step_seconds for case in cases])
    partial = np.where(right > 2, right, np.nan)
    found = table_of(
        CALCULON, 9, selection, [*answers, {"refused": "too deep"}], settled, {"fourfold": right, "left out": partial}
    )
    assert (found.timed, found.stated, found.refused, found.notes) == (9, 6, {"too deep": 1}, {"rough": 5})
    assert {part.name: part.runs for part in found.parts} == {
        "runs of others, scores written": 3, "a sweep of layouts": 1, "its own runs": 1,
    }  # fmt: skip
    peer, ours, left_out = found.parts[0].lines
    assert (peer.step.mean, ours.step.mean, ours.step.count, left_out.step.count) == (1.0, 0.0, 3, 2)
    assert (peer.ranking.correlation_mean, peer.ranking.regret_mean, left_out.ranking.groups) == (1.0, 0.0, 0)
    text = "\n".join(markdown(found))
    assert "| fourfold | 3 | 0.0 | 0.0 | +0.0 | 1 | 1.00 |" in text
    assert "3  cannot be stated: gated" in text
    assert "1  refused by the peer: too deep" in text


def test_efficiency_of_other_sources_scales_a_peer_that_asks_for_one() -> None:
    cases = sources({"a": [2.0], "b": [2.0, 4.0], "c": [2.0]})
    settled = [Settled(case, SettledPrediction(1.0, None, True)) for case in cases]
    selection = Selection([0, 1, 2, 3], [{}] * 4, {})
    answers = [{"step_seconds": 0.5, "memory_bytes": 1.0}] * 4
    part = table_of(LLM_ANALYSIS, 4, selection, answers, settled, {}).parts[0]
    default, scaled = part.lines
    assert default.step.median == pytest.approx(0.75)
    assert (scaled.step.median, scaled.step.count) == (pytest.approx(0.0), 4)
    assert line("x", cases, np.full(4, np.nan)).step.count == 0


def test_kernels_that_nobody_names_are_the_usual_ones() -> None:
    for software, fused in (("nemo", True), ("deepspeed", False)):
        case = replace(B200, software=software, source="x", kernels=KernelChoice())
        assert select(SIMUMAX, [case]).statements[0]["strategy"]["cross_entropy_loss_fusion"] is fused
        stated = replace(case, kernels=KernelChoice.model_validate({"loss": "unfused"}))
        assert select(SIMUMAX, [stated]).statements[0]["strategy"]["cross_entropy_loss_fusion"] is False


def test_only_runs_that_ended_are_timed() -> None:
    assert is_timed(GPT)
    for keys in ({"failed": True}, {"time_counts": False}, {"step_seconds": None}):
        assert not is_timed(replace(GPT, measured=replace(GPT.measured, **keys)))  # type: ignore[arg-type]


def test_a_peers_process_answers_each_question_or_refuses_it(tmp_path: Path) -> None:
    script = tmp_path / "peer_small.py"
    published = Path(peer_calculon.__file__).parent
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(published)!r})\nfrom peer import serve\n"
        "def answer(asked):\n    print('chatter')\n    assert asked['n'] < 3, 'too many'\n    return {'step_seconds': asked['n']}\n"
        "serve(answer)\n",
        encoding="utf-8",
    )
    assert ask(sys.executable, str(script), [{"n": 1}, {"n": 3}, {"n": 2}]) == [
        {"step_seconds": 1}, {"refused": "AssertionError: too many"}, {"step_seconds": 2},
    ]  # fmt: skip
    script.write_text("raise SystemExit('no such module')", encoding="utf-8")
    with pytest.raises(PeerError, match="no such module"):
        ask(sys.executable, str(script), [{"n": 1}])
    with pytest.raises(PeerError, match="cannot be started"):
        ask(str(tmp_path / "python"), str(script), [])
