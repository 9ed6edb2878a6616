"""The documents of the Cluster page are the hardware files', the layout's and the cost model's figures."""

import json
from typing import Any

import pytest

from fourfold.api.simulation import simulate
from fourfold.config import UserError
from fourfold.cost.attention_traffic import FlashLoop, tiles_of
from fourfold.explore.documents import encoded
from fourfold.explore.setup import Malformed
from fourfold.hardware import cluster_names, load_cluster
from fourfold.simulate.step import IDLE

SMALL = {
    "model.preset": "smollm2-135m",
    "batch.global_sequences": 16,
    "batch.sequence_length": 512,
    "precision.compute": "bf16",
}
ATTENTION = {
    "cluster": "dgx-h100",
    "sequences": 2,
    "tokens": 4096,
    "heads": 8,
    "head_dim": 64,
    "causal": True,
    "order": "2023",
}


def document(name: str, **body: Any) -> dict[str, Any]:
    return json.loads(encoded(name, body, lambda text, share: None))


@pytest.mark.parametrize("name", [*cluster_names(), "dgx-h100:102400", "tpu-v5p-8960:64", "gb200-nvl72:144"])
def test_a_cluster_is_its_file_s(name: str) -> None:
    found, cluster = document("cluster", cluster=name), load_cluster(name)
    full = cluster.device.memory_bytes_per_second
    assert (found["devices"], found["source"], found["device"]["source"]) == (
        cluster.devices, cluster.source, cluster.device.source,
    )  # fmt: skip
    rate, below = full, 1
    for shown, level in zip(found["levels"], cluster.levels, strict=True):
        assert (shown["name"], shown["bytes_per_second"], shown["latency_seconds"]) == (
            level.name, level.bytes_per_second, level.latency_seconds,
        )  # fmt: skip
        assert shown["memory_ratio"] * shown["device_bytes_per_second"] == pytest.approx(full)
        assert shown["ratio"] * shown["device_bytes_per_second"] == pytest.approx(rate)
        assert shown["blocks"] * shown["devices"] >= cluster.devices > (shown["blocks"] - 1) * shown["devices"]
        assert shown["parts"] * below >= shown["devices"]
        rate, below = shown["device_bytes_per_second"], shown["devices"]
    assert found["levels"][-1]["blocks"] == 1


def test_a_torus_counts_all_links_of_a_chip() -> None:
    """TPU v5p: six links of 100 GB/s in each direction; a slice of 4 x 4 x 4 wraps around in every dimension."""
    [level] = document("cluster", cluster="tpu-v5p-8960:64")["levels"]
    assert (level["dimensions"], level["wraps"], level["device_bytes_per_second"]) == ([4, 4, 4], [True] * 3, 600e9)


@pytest.mark.parametrize("run", ["preset:llama3-70b", "preset:deepseek-v3-2k", "preset:llama3-405b-16k"])
def test_groups_are_the_layout_s(run: str) -> None:
    first = document("groups", run=run)
    step = simulate(run)
    levels = {each.axes: list(each.levels) for each in step.summary.communication}
    for choice in first["choices"]:
        found = document("groups", run=run, axes=choice["axes"], rank=10**6)
        numbers, layout = found["group_numbers"], step.resolved.layout
        axes = tuple(choice["axes"].split("+"))
        assert (len(numbers), len({*numbers})) == (layout.world_size, choice["groups"])
        for rank in (0, layout.world_size // 3, layout.world_size - 1):
            members = [other for other, number in enumerate(numbers) if number == numbers[rank]]
            assert members == [*layout.group_of(rank, axes)]
        assert sum(choice["hop_shares"]) == pytest.approx(1)
        assert choice["levels"] == levels.get(choice["axes"], choice["levels"])
        coordinates = layout.coordinates(first["world_size"] - 1)
        assert found["coordinates"].items() <= coordinates.items()


def test_the_links_are_what_simulate_prints() -> None:
    found = document("simulate", run="preset:llama3-70b")
    for link in found["links"]:
        assert link["full_share"] * found["step_seconds"] == pytest.approx(link["full_seconds"])
        assert link["full_seconds"] * link["device_bytes_per_second"] == pytest.approx(sum(link["sent_bytes"].values()))
    for each in found["communication"]:
        assert sum(link["sent_bytes"].get(each["axes"], 0) for link in found["links"]) == pytest.approx(
            each["sent_bytes"]
        )


@pytest.mark.parametrize(
    ("run", "overrides"),
    [("preset:llama3-70b", {}), (None, SMALL | {"layout.recompute": "full", "layout.pp": 2}), ("preset:gpt3-175b", {})],
)
def test_the_roofline_s_kernels_are_those_that_a_step_is_priced_by(run: str | None, overrides: dict[str, Any]) -> None:
    body = {"overrides": overrides, **({"run": run} if run else {"cluster": "dgx-h100:8"})}
    found = document("roofline", **body)
    spent = simulate(run or {}, overrides, cluster=None if run else "dgx-h100:8").summary.spent
    expected = {kind: sum(rank.get(kind, 0.0) for rank in spent) / len(spent) for rank in spent for kind in rank}
    sums: dict[str, float] = {}
    for each in found["kernels"]:
        kind = {"matmul": "matmuls", "elementwise": "memory-bound kernels"}.get(each["kind"], each["kind"])
        if each["phase"] == "recomputation":
            kind = "recomputation"
        if each["segment"] != "all parameters":
            sums[kind] = sums.get(kind, 0.0) + each["step_seconds"]
    assert IDLE not in sums
    for kind, seconds in sums.items():  # a step's kernels are slower beside collectives of their own segment
        if run is None:
            assert seconds == pytest.approx(expected[kind], rel=1e-9), kind
        assert 0.9 * expected[kind] <= seconds <= expected[kind] * (1 + 1e-9), kind
    rate = found["memory_bytes_per_second"]
    peak = max(roof["flops_per_second"] for roof in found["roofs"])
    for each in found["kernels"]:
        assert 0 < each["roof_share"] <= 1
        assert each["bytes_per_second"] <= rate
        if each["intensity"] is not None:
            assert each["flops_per_second"] <= min(peak, each["intensity"] * rate)
        else:
            assert (each["flops"], each["bound"]) == (0, "memory")


@pytest.mark.parametrize("placement", ["shard", "owner"])
def test_the_roofline_has_all_kernels_of_the_optimizer(placement: str) -> None:
    """Muon's momentum and its orthogonalization too, wherever it takes place."""
    overrides = {"optimizer.name": "muon", "optimizer.placement": placement}
    found = document("roofline", run="preset:llama3-70b", overrides=overrides)
    spent = simulate("preset:llama3-70b", overrides).summary.spent
    expected = sum(rank["optimizer"] for rank in spent) / len(spent)
    drawn = [each["step_seconds"] for each in found["kernels"] if each["phase"] == "optimizer"]
    assert sum(drawn) == pytest.approx(expected, rel=1e-9)


def test_a_matmul_s_roof_is_that_of_its_format() -> None:
    """The head's are not in the low-precision one."""
    found = document("roofline", run="preset:llama3-70b", gemm_dtype="fp8")
    roofs = {roof["dtype"]: roof["flops_per_second"] for roof in found["roofs"]}
    limited = [each for each in found["kernels"] if each["kind"] == "matmul" and each["bound"] == "compute"]
    assert {each["segment"] == "head" for each in limited} == {True, False}
    for each in limited:
        roof = roofs["bf16" if each["segment"] == "head" else "fp8"]
        assert each["roof_share"] == pytest.approx(each["flops_per_second"] / roof), each["name"]


def test_matmuls_have_the_names_of_their_weights() -> None:
    found = document("roofline", run="preset:deepseek-v3-2k")
    blocks = ("block", "expert block", "head")
    names = {each["name"] for each in found["kernels"] if each["kind"] == "matmul" and each["segment"] in blocks}
    for name in (
        "o_proj",
        "q_a_proj",
        "kv_b_proj, weight gradient",
        "experts' gate_up_proj",
        "gate_proj up_proj",
        "lm_head",
    ):
        assert name in names
    assert not [name for name in names if name.startswith("matmul")]
    alone = document("roofline", run="preset:mixtral-8x22b-256")["kernels"]
    assert not [each for each in alone if each["name"].startswith("matmul")], "one expert a rank"
    assert {"optimizer", "gradient norm"} <= {each["phase"] for each in found["kernels"]}
    assert found["attention"] == {"sequences": 1, "tokens": 4096, "heads": 128, "head_dim": 192}


@pytest.mark.parametrize("tokens", [512, 4096, 65536])
def test_attention_s_frames_end_with_its_total(tokens: int) -> None:
    found = document("attention", **ATTENTION | {"tokens": tokens})
    tiles = tiles_of(tokens, 64, found["fast_bytes"], causal=True)
    assert found["fast_bytes"] == 228 * 1024
    total = FlashLoop(tiles, "2023").total
    assert found["frames"][-1][2:] == [found["computed_tiles"], 16 * total.loaded, 16 * total.stored]
    assert len(found["frames"]) == min(found["computed_tiles"], 2048)
    assert [each[2] for each in found["frames"]] == sorted({each[2] for each in found["frames"]})
    by_name = {each["name"]: each for each in found["algorithms"]}
    assert by_name["2023"]["bytes"] == 16 * total.bytes
    for each in by_name.values():
        assert each["bytes"] == sum(one["loaded_bytes"] + one["stored_bytes"] for one in each["passes"])
        assert each["bytes"] >= found["least_bytes"]
        assert each["seconds"] == each["bytes"] / 3.352e12
    assert by_name["standard"]["bytes"] == 16 * (4 * tokens**2 + 4 * tokens * 64) * 2


@pytest.mark.parametrize(("name", "body", "error"), [
    ("cluster", {}, Malformed), ("cluster", {"cluster": "./mine.toml"}, Malformed), ("cluster", {"cluster": "dgx-h10"}, UserError),
    ("groups", {"run": "preset:llama3-70b", "rank": -1}, Malformed),
    ("groups", {"run": "preset:llama3-70b", "axes": 3}, Malformed), ("roofline", {"run": "../x"}, Malformed),
    ("attention", ATTENTION | {"tokens": 0}, Malformed), ("attention", ATTENTION | {"order": "2021"}, Malformed),
    ("attention", ATTENTION | {"fast_bytes": 16384.0, "head_dim": 512, "tokens": 1 << 20}, UserError),
    ("attention", {**ATTENTION, "cluster": None}, Malformed),
])  # fmt: skip
def test_other_requests_are_refused(name: str, body: dict[str, Any], error: type[UserError]) -> None:
    with pytest.raises(UserError) as found:
        encoded(name, body, lambda text, share: None)
    assert type(found.value) is error
