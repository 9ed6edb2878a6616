"""The file of fitted constants: each known, in range and not what would be inherited; a software profile for every name."""

import tomllib
from dataclasses import asdict, fields, replace
from importlib import resources

import pytest

from fourfold.cost.collectives import Links
from fourfold.cost.fitted import LINK_SHARE, Fitted, fitted
from fourfold.cost.kernels import Kernels
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import device_names, load_device

TABLE = tomllib.loads((resources.files("fourfold.cost") / "fitted.toml").read_text(encoding="utf-8"))


def test_every_key_is_a_constant() -> None:
    known = {
        "device": {field.name for field in fields(Kernels)},
        "software": {field.name for field in fields(SoftwareProfile)} - {"name"},
    }
    for part, names in known.items():
        for owner, entry in TABLE[part].items():
            assert set(entry) <= names, (part, owner)
    assert set(TABLE["link"]) <= {field.name for field in fields(Links)} | {"share"}


def test_no_constant_equals_what_would_be_inherited() -> None:
    constants = fitted()
    above = {
        "software": {owner: constants.inherited(owner) for owner in TABLE["software"]},
        "device": {owner: asdict(constants.device("default")) for owner in TABLE["device"]}
        | {"default": asdict(Kernels())},
        "link": {"link": asdict(Links()) | {"share": LINK_SHARE}},
    }
    for part, inherited in above.items():
        for owner, constant in inherited.items():
            entry = TABLE[part] if part == "link" else TABLE[part][owner]
            assert [key for key, each in entry.items() if each == constant[key]] == [], (part, owner)


def test_shares_are_shares() -> None:
    constants = fitted()
    for device in (*device_names(), "unheard-of"):
        for software in (*TABLE["software"], "unheard-of"):
            kernels = constants.kernels(device, constants.software(software))
            shares = (
                kernels.gemm_share,
                kernels.gemm_share * kernels.low_share,
                kernels.attention_share,
                kernels.memory_share,
                kernels.attention_backward_share,
            )
            assert all(0 < share <= 1 for share in shares), (device, software)
            assert 0 <= kernels.fused <= 1
    assert 0 < constants.link_share <= 1


def test_entries_belong_to_devices_that_there_are() -> None:
    for device in set(TABLE["device"]) - {"default"}:
        assert load_device(device).key == device


def test_a_year_that_is_not_listed_has_its_frameworks_constants_and_what_else_the_nearest_year_has() -> None:
    entries = {
        "default": {"fused": 0.5, "link_speed": 0.9},
        "megatron": {"fused": 0.7},
        "megatron-2020": {"fused": 0.1, "dispatch_first": True},
        "megatron-2024": {"fused": 0.9, "dispatcher": "deepep", "gemm_speed": 0.3},
    }
    constants = Fitted({}, entries, {})
    assert constants.software("megatron-2024").fused == 0.9
    for year in (2021, 2026):
        assert constants.software(f"megatron-{year}").fused == 0.7, "what was fitted is the framework's"
    early, late = constants.software("megatron-2021"), constants.software("megatron-2026")
    assert (early.dispatch_first, early.dispatcher) == (True, "alltoall")
    assert (late.dispatch_first, late.dispatcher) == (False, "deepep")
    assert late.name == "megatron-2026"
    assert late.link_speed == 0.9, "what an entry leaves out is the default's"
    assert late.gemm_speed == 1.0, "a number that the framework inherits is the framework's too"
    for unknown in ("deepspeed-2023", "unknown", "", "mega-tron", "megatronic-2x"):
        assert constants.software(unknown).fused == 0.5
    del entries["megatron"]
    assert constants.software("megatron-2026").fused == 0.9


def test_what_an_entry_leaves_out_is_its_familys_then_the_defaults() -> None:
    entries = {
        "default": {"logits_bytes": 12.0, "saved_bytes": 4.0, "fragmentation": 0.03},
        "megatron": {"logits_bytes": 6.0, "saved_bytes": 1.5},
        "megatron-2024": {"saved_bytes": 0.5},
    }
    constants = Fitted({}, entries, {})
    assert (constants.software("megatron-2024").logits_bytes, constants.software("megatron-2024").saved_bytes) == (
        6.0,
        0.5,
    )
    for fork in ("megatron-2025", "megatron-neox-2022", "megatron-new", "megatron"):
        assert (constants.software(fork).logits_bytes, constants.software(fork).saved_bytes) == (6.0, 1.5), fork
    assert constants.software("megatronic-2024").logits_bytes == 12.0, "another family's name only begins alike"
    assert constants.software("megatron-2024").fragmentation == 0.03
    entries["megatron-deepspeed"] = {"logits_bytes": 8.0}
    for platform in ("megatron-deepspeed-rocm-2024", "megatron-deepspeed-rocm"):
        software = constants.software(platform)
        assert (software.logits_bytes, software.saved_bytes) == (8.0, 1.5), "word by word"


def test_this_projects_own_software_holds_what_its_programs_declare() -> None:
    """Nothing of an unknown software profile's, which `default` is, comes upon the program that this project runs, but what every
    process of torch's holds beside its tensors."""
    own, default = fitted().software("fourfold"), fitted().software("default")
    assert (own.extra, own.saved_bytes, own.gathered_bytes, own.unit_bytes, own.logits_bytes) == (0,) * 5
    assert (own.context_bytes, own.fragmentation) == (default.context_bytes, default.fragmentation)
    assert (own.saved_share, own.optimizer_bytes, own.master_bytes) == (1.0, None, None)


def test_constants_reach_the_kernels_of_the_software() -> None:
    constants = Fitted(
        {"default": {"gemm_share": 0.8}, "x": {"gemm_share": 0.5}},
        {"default": {}, "s": {"gemm_speed": 0.5}},
        {},
    )
    assert constants.kernels("x", constants.software("s")).gemm_share == pytest.approx(0.25)
    assert constants.kernels("y", constants.software("none")).gemm_share == pytest.approx(0.8)


def test_low_precision_gemms_have_a_speed_of_their_own_beside_the_others() -> None:
    device = {"gemm_share": 0.8, "low_share": 0.9, "fine_share": 0.5}
    profiles = {"s": {"gemm_speed": 0.5, "low_speed": 1.2}, "fast": {"low_speed": 3.0}}
    constants = Fitted({"default": device}, {"default": {}, **profiles}, {})
    slow = constants.kernels("x", constants.software("s"))
    assert (slow.gemm_share, slow.low_share) == pytest.approx((0.4, 0.9 * 1.2))
    fine = constants.kernels("x", replace(constants.software("s"), fine_scales=True))
    assert fine.low_share == pytest.approx(0.5 * 0.9 * 1.2)
    fast = constants.kernels("x", constants.software("fast"))
    assert fast.gemm_share * fast.low_share == pytest.approx(1.0), "no product passes its peak"
