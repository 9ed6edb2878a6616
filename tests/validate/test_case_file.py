"""Files of cases: what stands above holds for all, a case's own words win, and every mistake is one message."""

from pathlib import Path

import pytest

from fourfold.config import UserError, load_run
from fourfold.hardware import load_cluster
from fourfold.launch.resolve import stated_vocab_size
from fourfold.validate import Case, checked_prediction, read_cases

CASES = Path(__file__).parent / "cases.toml"
HEAD = """
cluster = "dgx-h100:8"
model = { preset = "llama3.2-1b" }
batch = { global_sequences = 8, sequence_length = 2048 }
"""


def cases() -> dict[str, Case]:
    return {case.name: case for case in read_cases(CASES)}


def read(folder: Path, text: str) -> list[Case]:
    (folder / "some.toml").write_text(text)
    return read_cases(folder / "some.toml", stated_vocab_size)


def test_what_stands_above_holds_and_a_cases_own_keys_win() -> None:
    found = cases()
    assert list(found) == ["fsdp", "tp", "ddp", "own", "too large"]
    assert {case.source for case in found.values()} == {"made up"}
    assert {case.software.name for name, case in found.items() if name != "own"} == {"torchtitan-2025"}
    assert found["own"].software.is_own
    assert (found["tp"].run.layout.tp, found["tp"].run.layout.zero, found["ddp"].run.layout.zero) == (2, 3, 0)
    long = found["too large"].run.batch
    assert (long.sequence_length, long.global_sequences) == (131_072, 16), "key by key"
    assert [case.num_devices for case in found.values()] == [8] * 5


def test_the_step_time_follows_from_any_rate() -> None:
    found = cases()
    tokens = 16 * 4096
    assert found["fsdp"].measured_seconds == 0.35
    assert found["tp"].measured_seconds == pytest.approx(tokens / (20_000 * 8))
    assert found["own"].measured_seconds == pytest.approx(tokens / 150_000)
    ddp = found["ddp"]
    assert ddp.device_flops / (ddp.measured_seconds * ddp.peak_flops) == pytest.approx(0.4)
    assert found["too large"].measured_seconds is None


def test_layouts_of_one_model_cluster_and_batch_are_a_group() -> None:
    found = cases()
    assert found["fsdp"].group == found["tp"].group == found["ddp"].group
    assert len({case.group for case in found.values()}) == 3


def test_software_that_stands_above_keeps_its_name(tmp_path: Path) -> None:
    text = 'software = "torchtitan-2025"\n' + HEAD
    for case in ("{ eager = true }", '"fourfold"', '{ name = "megatron-2025", eager = true }'):
        text += f"[[case]]\nsoftware = {case}\nmeasured = {{ mfu = 0.4 }}\n"
    found = [(case.software.name, case.software.eager) for case in read(tmp_path, text)]
    assert found == [("torchtitan-2025", True), ("fourfold", None), ("megatron-2025", True)]


def test_a_case_may_start_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[model]\npreset = "tiny"\n[batch]\nglobal_sequences = 8\nsequence_length = 256\n[layout]\ntp = 2\n[run]\nseed = 3\n'
    )
    measured = 'cluster = "dgx-h100:8"\nmeasured = { step_seconds = 1 }\n'
    [mine, named] = read(
        tmp_path,
        f'[[case]]\nrun = "run.toml"\n{measured}layout = {{ pp = 2 }}\n[[case]]\nrun = "preset:llama3-405b-16k"\n{measured}',
    )
    assert (mine.run.layout.tp, mine.run.layout.pp, mine.name) == (2, 2, "some 1")
    assert mine.model.vocab_size == 4096, "its tokenizer's"
    assert named.run.layout == load_run(Path("preset:llama3-405b-16k")).layout


def test_a_cluster_is_a_name_a_file_or_a_table(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "Mine"\nsource = "me"\ndevice = "h100-sxm"\ndevices = 8\n[[levels]]\nname = "nvlink"\nkind = "switch"\n'
        "devices = 8\nbytes_per_second = 450e9\nlatency_seconds = 2e-6\n"
    )
    table = (
        '{ name = "Mine", source = "me", device = "h100-sxm", devices = 8, levels = [{ name = "nvlink", kind = "switch", '
        "devices = 8, bytes_per_second = 450e9, latency_seconds = 2e-6 }] }"
    )
    text = HEAD.replace('"dgx-h100:8"', "@")
    case = "[[case]]\nmeasured = { step_seconds = 1 }\ndevice_memory_bytes = 40e9\n"
    named, file, stated = (
        read(tmp_path, text.replace("@", cluster) + case)[0] for cluster in ('"dgx-h100:8"', '"mine.toml"', table)
    )
    assert named.cluster.levels == load_cluster("dgx-h100:8").levels
    assert file.cluster.levels == stated.cluster.levels
    assert stated.cluster.key == "Mine"
    assert {case.cluster.device.memory_bytes for case in (named, file, stated)} == {40_000_000_000}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["holds no cases", "[[case]]"]),
        ("case = 3", ["holds no cases"]),
        ("case = [", ["not valid TOML"]),
        ("[[case]]\nname = 'a'", ["case 'a'", "'measured' is missing", "step_seconds"]),
        ("[[case]]\nmeasured = 3", ["measured = 3", "allowed: a table"]),
        ("[[case]]\nmeasured = {}", ["nothing is measured", "tokens_per_second"]),
        ("[[case]]\nmeasured = { step_second = 3 }", ["'step_second'", "did you mean 'step_seconds'"]),
        ("[[case]]\nmeasured = { step_seconds = -3 }", ["measured.step_seconds = -3", "greater than 0"]),
        ("[[case]]\nmeasured = { step_seconds = 3, mfu = 0.4 }", ["step_seconds and mfu", "keep the one"]),
        ("[[case]]\nmeasured = { mfu = 40 }", ["measured.mfu = 40"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nlayuot = { tp = 2 }", ["'layuot'", "did you mean 'layout'"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nlayout = { tq = 2 }", ["layout.tq", "did you mean 'tp'"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nlayout = 'auto'", ['layout = "auto"', "that ran"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nmodel = { preset = 'lama' }", ["model.preset = 'lama'"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\ncluster = 'dgx-h10'", ["did you mean dgx-h100"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\ncluster = 3", ["cluster = 3", "dgx-h100:64"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\ncluster = { name = 'x' }", ["'source' is missing"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nrun = 'nowhere.toml'", ["nowhere.toml", "no such run file"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nrun = 3", ["run = 3", "allowed: a text"]),
        (
            "[[case]]\nmeasured = { mfu = 0.4 }\nsoftware = 'megatrom-2025'",
            ["'megatrom-2025'", "did you mean megatron"],
        ),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nsoftware = { eagre = true }", ["'eagre'", "did you mean 'eager'"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nsoftware = { eager = true }", ["software.eager", "torchtitan-2025"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nattention_share = 2", ["attention_share = 2", "at most 1"]),
        ("[[case]]\nmeasured = { mfu = 0.4 }\nname = 3", ["case 1", "name = 3"]),
    ],
)
def test_a_mistake_names_the_file_the_case_the_key_and_what_works(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, HEAD + text)
    for each in ("some.toml", *expected):
        assert each in str(error.value)


WILD = (
    *("3", "-1", "0", "1.5", "inf", "nan", "true", '""', '"?"', "[]", "[3]", "{}", "{ x = 1 }"),
    *("99999999999999999999", "1979-05-27"),
)


@pytest.mark.parametrize(
    "key",
    [
        "name", "source", "run", "cluster", "software", "measured", "attention_share", "device_memory_bytes", "about", "model",
        "batch", "layout", "precision", "data", "optimizer", "software.name", "software.eager", "software.gemm_dtype",
        "software.context_bytes", "measured.step_seconds", "measured.mfu", "measured.memory_counts", "measured.out_of_memory",
        "model.num_layers", "model.vocab_size", "batch.global_sequences", "layout.tp", "layout.recompute", "cluster.levels",
    ],
)  # fmt: skip
def test_wild_values_are_a_case_or_one_mistake(tmp_path: Path, key: str) -> None:
    for value in WILD:
        section, _, inner = key.partition(".")
        stated = {"measured": "{ step_seconds = 1.0 }", section: f"{{ {inner} = {value} }}" if inner else value}
        text = HEAD + "[[case]]\n" + "".join(f"{name} = {each}\n" for name, each in stated.items())
        found, message = [], "some.toml"
        try:
            found = read(tmp_path, text)
        except UserError as error:
            message = str(error)
        assert "some.toml" in message, (key, value)
        for case in found:
            checked_prediction(case)
