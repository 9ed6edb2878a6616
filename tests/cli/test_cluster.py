"""`fourfold cluster new`: the file that it writes, and its explanation."""

import json

from fourfold.hardware import load_cluster

NEW = ("cluster", "new", "--nodes", "4", "--device", "a100-40gb:8", "--network", "2x100GbE", "--out", "lab.toml")


def test_the_file_is_a_cluster_for_plan_and_simulate(fourfold) -> None:
    result = fourfold(*NEW)
    assert result.code == 0
    for text in (
        "300 GB/s",
        "3.125 GB/s",
        "5 us",
        "as in the preset aws-p4d",
        "efficiency",
        "use it as: --cluster lab.toml",
    ):
        assert text in result.out
    assert load_cluster("lab.toml").devices == 32
    simulated = fourfold("simulate", "preset:llama3-70b", "--cluster", "lab.toml:64", "--json")
    assert json.loads(simulated.out)["device"] == "a100-sxm-40"
    planned = fourfold(
        *("plan", "--model", "llama3.2-1b", "--cluster", "lab.toml", "--sequence-length", "1024"),
        *("--batch-sequences", "64", "--budget", "0.5", "--json"),
    )
    assert planned.code == 0


def test_the_document_has_every_figure(fourfold) -> None:
    document = json.loads(fourfold(*NEW, "--json").out)
    assert (document["file"], document["devices"]) == ("lab.toml", 32)
    assert [each["what"] for each in document["figures"]][-1] == "efficiency"
    assert all(each["source"] for each in document["figures"])


def test_a_file_that_is_there_is_kept(fourfold, here) -> None:
    (here / "lab.toml").write_text("mine")
    result = fourfold(*NEW)
    assert result.code == 2
    assert "--out lab-2.toml" in result.err
    assert (here / "lab.toml").read_text() == "mine"
    assert fourfold(*NEW[:-1], "none/lab.toml").code == 2
