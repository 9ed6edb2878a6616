"""`fourfold plan --for TRAINER` and `layout.KEY=VALUE`: the search is held to them, and says which of them nothing can meet."""

from pathlib import Path

import pytest

from tests.cli.planning import ASKED, DECIDED, SMALL, document, text


def layouts(found: dict) -> list[dict]:
    return [each["layout"] for each in found["best"]]


def test_stated_keys_hold_the_best_the_baseline_and_the_alternatives(fourfold) -> None:
    keys = ("layout.tp=2,4", "layout.pp=2", "layout.recompute=none,selective", "layout.schedule=1f1b", "layout.zero=1")
    found = document(fourfold, *SMALL, *keys)
    every = [*found["best"], *found["pareto"], found["heuristic_baseline"]]
    assert not found["heuristic_baseline_is_outside"]
    for layout in (each["layout"] for each in every):
        assert layout["tp"] in (2, 4)
        assert layout["recompute"] in ("none", "selective")
        assert (layout["pp"], layout["schedule"], layout["zero"]) == (2, "1f1b", 1)
    assert found["constraints"] == {
        "tp": [2, 4], "pp": [2], "recompute": ["none", "selective"], "schedule": ["1f1b"], "zero": [1],
    }  # fmt: skip
    assert "searched: layout.tp=2,4, layout.pp=2" in text(fourfold, *SMALL, *keys)


def test_a_stated_key_cannot_make_the_best_better(fourfold) -> None:
    free, held = document(fourfold, *SMALL), document(fourfold, *SMALL, "layout.tp=8")
    assert held["best"][0]["step_seconds"] >= free["best"][0]["step_seconds"]
    same = document(fourfold, *SMALL, *(f"layout.{key}={value}" for key, value in free["best"][0]["layout"].items()
                                        if key != "recompute" and key != "sequence_parallel"))  # fmt: skip
    assert same["best"][0]["step_seconds"] == free["best"][0]["step_seconds"]


EXPERTS = (
    "--model",
    "mixtral-8x7b",
    "--cluster",
    "dgx-h100:32",
    "--sequence-length",
    "4096",
    "--batch-sequences",
    "128",
)


@pytest.mark.rest
@pytest.mark.parametrize("ep", ["", "layout.ep=8"], ids=["any", "ep 8"])
def test_overlap_of_experts_may_be_stated(fourfold, ep: str) -> None:
    """Whatever layouts are the fastest without it: these hold less, and may not fit with it."""
    for stated in ("true", "false"):
        found = document(fourfold, *EXPERTS, *filter(None, [ep]), f"layout.overlap_experts={stated}")
        every = [*layouts(found), *(each["layout"] for each in found["pareto"])]
        assert {layout["overlap_experts"] for layout in every} == {stated == "true"}
    asked = (*EXPERTS, "--keep", "1", "layout.overlap_experts=true")
    assert "searched: layout.overlap_experts=true" in text(fourfold, *asked)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ((*SMALL, "layout.overlap_experts=true"), "layout.overlap_experts=true: this model has no experts"),
        (
            (*EXPERTS, "--software=megatron", "layout.overlap_experts=true"),
            "layout.overlap_experts=true: software 'megatron' runs no experts",
        ),
        (
            (*EXPERTS, "layout.ep=1", "layout.overlap_experts=true"),
            "layout.ep=1 rules out every layout",
        ),
    ],
)
def test_overlap_that_nothing_can_run_is_refused(fourfold, asked: tuple[str, ...], why: str) -> None:
    result = fourfold("plan", *asked)
    assert result.code == 2
    assert why in result.err


def test_offload_may_be_ruled_out_but_not_asked_for(fourfold) -> None:
    assert not any(
        "offload" in str(each["offload"]) for each in layouts(document(fourfold, *SMALL, "layout.offload=none"))
    )
    result = fourfold("plan", *SMALL, "layout.offload=activations")
    assert result.code == 2
    assert "finds by itself which blocks offload" in result.err


def test_where_optimizer_states_lie_may_be_stated(fourfold) -> None:
    for stated in (True, False):
        found = document(fourfold, *SMALL, f"layout.offload_optimizer={stated}")
        assert {layout["offload_optimizer"] for layout in layouts(found)} == {stated}
        assert (found["seconds_per_gigabyte_of_states"] is None) == stated
    for other in ("--for=megatron", "--software=megatron"):
        result = fourfold("plan", *SMALL, other, "layout.offload_optimizer=true")
        assert result.code == 2
        assert "layout.offload_optimizer=true: software 'megatron' copies nothing to the host's memory" in result.err


@pytest.mark.rest
def test_a_model_that_fits_with_its_states_on_the_host_alone_is_planned_so(fourfold) -> None:
    asked = ("--model", "llama3-70b", "--cluster", "dgx-h100:8", "--sequence-length", "4096", "--batch-sequences", "64")
    found = document(fourfold, *asked)
    assert all(layout["offload_optimizer"] for layout in layouts(found))
    assert "optimizer states on the host" in fourfold("plan", *asked, "--keep", "1").out
    nothing = fourfold("plan", *asked, "layout.offload_optimizer=false")
    assert nothing.code == 1
    assert "nothing fits" in nothing.out


def test_a_run_file_s_layout_is_not_looked_at_but_the_command_line_s_binds(fourfold, here: Path) -> None:
    text = (here / "run.toml").read_text() + "[layout]\npp = 2\nprefetch = 2\n"
    (here / "own.toml").write_text(text)
    asked = ("own.toml", "--cluster", "dgx-h100:4", "--out", "planned.toml")
    found = document(fourfold, *asked, "layout.zero=3", "layout.dp_shard=2", "layout.sequence_parallel=false")
    assert all((layout["zero"], layout["dp_shard"]) == (3, 2) for layout in layouts(found))
    planned = (here / "planned.toml").read_text()
    assert "prefetch = 2" in planned
    assert "sequence_parallel = true" not in planned
    same = document(fourfold, "run.toml", *asked[1:3], "layout.prefetch=2")
    assert document(fourfold, *asked[:3])["best"] == same["best"], "pp = 2 in the file says nothing"


def test_a_value_that_the_search_would_not_try_is_tried_where_it_is_stated(fourfold) -> None:
    asked = (*ASKED[:-1], "96", "--keep", "1")
    found = document(fourfold, *asked, "layout.microbatch_sequences=3", "layout.schedule=gpipe", "layout.pp=2")
    (layout,) = layouts(found)
    assert (layout["microbatch_sequences"], layout["schedule"]) == (3, "gpipe")


def test_an_explanation_takes_other_values_of_its_own_keys_alone(fourfold) -> None:
    found = document(fourfold, *ASKED, "--keep", "3", "layout.tp=8", "layout.zero=1", "--explain", "tp=1")
    (explained,) = found["explanations"]
    assert (explained["layout"]["layout"]["tp"], explained["layout"]["layout"]["zero"]) == (1, 1)
    assert explained["layout"]["step_seconds"] < found["best"][0]["step_seconds"], "it is no rival of the best"
    assert all(layout["tp"] == 8 for layout in layouts(found))
    printed = text(fourfold, *ASKED, "--keep", "3", "layout.tp=8", "layout.zero=1", "--explain", "tp=1")
    assert "with tp = 1: outside of what was searched, and " in printed
    assert "faster than the best, since it spends" in printed


def test_a_baseline_that_cannot_keep_to_the_keys_is_marked_as_outside(fourfold) -> None:
    asked = (*SMALL, "layout.cp=2")
    found = document(fourfold, *asked)
    assert found["heuristic_baseline_is_outside"]
    assert all(layout["cp"] == 2 for layout in layouts(found))
    assert "is outside of what was searched, and " in text(fourfold, *asked)
    assert ", outside of what was searched\n" in fourfold("plan", *asked).out


def test_a_trainer_is_searched_at_its_prices_unless_software_is_stated(fourfold) -> None:
    found = document(fourfold, *SMALL, "--for", "deepspeed")
    assert (found["trainer"], found["software"]) == ("deepspeed", "deepspeed")
    assert all(layout["virtual_stages"] == 1 and not layout["sequence_parallel"] for layout in layouts(found))
    other = document(fourfold, *SMALL, "--for", "deepspeed", "--software", "megatron-2025")
    assert other["software"] == "megatron-2025"
    printed = text(fourfold, *SMALL, "--for", "deepspeed", "--out", "planned.toml")
    assert "searched: what DeepSpeed can run" in printed
    assert "fourfold simulate planned.toml --software deepspeed" in printed


def test_a_layout_that_a_trainer_cannot_run_names_the_option_that_finds_one(fourfold) -> None:
    keys = ("layout.pp=2", "layout.schedule=zb_h1")
    hint = "what works: --for megatron"
    assert hint in text(fourfold, *SMALL, *DECIDED, *keys, "--as", "megatron")
    assert hint not in text(
        fourfold, *SMALL, *DECIDED, "layout.pp=2", "layout.schedule=1f1b", "layout.zero=1", "--as", "megatron"
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("layout.tpp=8",), "did you mean layout.tp?"),
        (("layot.tp=8",), "did you mean 'layout'?"),
        (("layout.tp=x",), "allowed: a whole number"),
        (("layout.zero=4",), "allowed: a whole number from 0 to 3"),
        (("layout.tp=",), "states no value"),
        (("layout.schedule=zbh1",), "did you mean layout.schedule=zb_h1?"),
        (("layout.cp_method=ulyses",), "did you mean layout.cp_method=ulysses?"),
        (("layout.recompute=full:4",), "how many need it is found by itself; a value that works: layout.recompute=full"),
        (("layout.segments_per_stage=[1,2]",), "divides segments by cost itself"),
        (("layout.sequence_parallel=maybe",), "allowed: true, false"),
        (("layout.sequence_parallel=true", "--for", "deepspeed"), "tensor parallelism of DeepSpeed does not divide"),
        (("batch.steps=3",), "--batch-sequences state the model and the batch"),
        (("layout.tp=7",), "layout.tp=7 rules out every layout of this model with 64 sequences on 16 devices; values of "
         "layout.tp that work: 1, 2, 4, 8, 16"),
        (("layout.zero=1", "layout.tp=8", "layout.pp=16"), "goes with layout.tp=8 and with layout.pp=16 at once; values of "
         "layout.pp that work: 1, 2"),
        (("layout.pp=2", "layout.zero=3", "--for", "deepspeed"), "goes with DeepSpeed and layout.pp=2 and with layout.zero=3"),
        (("layout.outermost=dp_replicate", "--for", "megatron"), "goes with Megatron-Core and with layout.outermost=dp_replicate"),
        (("layout.pp=4", "layout.schedule=zb_v", "layout.virtual_stages=3"), "layout.schedule=zb_v and with "
         "layout.virtual_stages=3 at once; values of layout.virtual_stages that work: 2"),
    ],
)  # fmt: skip
def test_what_no_layout_can_meet_has_one_message(fourfold, keys: tuple[str, ...], message: str) -> None:
    result = fourfold("plan", *SMALL, *keys)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_where_memory_rules_all_out_the_keys_in_its_way_are_named(fourfold) -> None:
    asked = (
        "--model",
        "llama3-70b",
        "--cluster",
        "dgx-h100:64",
        "--sequence-length",
        "8192",
        "--batch-sequences",
        "64",
    )
    result = fourfold("plan", *asked, "layout.tp=1", "layout.pp=1", "layout.zero=1", "layout.microbatch_sequences=1")
    assert result.code == 1
    assert "nothing fits: of all " in result.out
    assert "without layout.tp=1 or without layout.pp=1 or without layout.zero=1, something may fit" in result.out
    assert "without layout.microbatch_sequences=1" not in result.out
