"""Relative paths of a run file begin at its own folder where something is there."""

from pathlib import Path

import pytest

from fourfold.config import UserError, load_run
from fourfold.config.beside import spell_alike
from fourfold.data.corpus import list_sources
from fourfold.data.tokenizer_file import parse_tokenizer

BATCH = "[batch]\nglobal_sequences = 8\nsequence_length = 64\n"


def written(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(text + BATCH)
    return folder / "run.toml"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, a Megatron pair, a tokenizer and a model, and a current folder elsewhere."""
    place = tmp_path / "project"
    (place / "texts").mkdir(parents=True)
    for name in ("texts/a.txt", "pair.bin", "pair.idx", "tokenizer.json", "config.json", "stdlib", "bytes"):
        (place / name).write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return place


@pytest.mark.parametrize("corpus", ["texts", "texts/a.txt", "texts/*.txt", "pair", "../project/texts"])
def test_a_corpus_is_found_beside_the_run_file(beside: Path, corpus: str) -> None:
    run = load_run(written(beside, f'data.corpus = "{corpus}"\n'))
    assert run.data.corpus == str(beside / corpus)
    assert load_run(beside / "run.toml", as_written=True).data.corpus == corpus


def test_so_are_blends_tokenizers_and_models(beside: Path) -> None:
    text = '[data]\ncorpus = [{path = "texts"}, {path = "gone"}]\ntokenizer = "tokenizer.json"\n[model]\nhf = "."\ninitial = "."\n'
    run = load_run(written(beside, text))
    assert [part.path for part in run.data.corpus] == [str(beside / "texts"), "gone"]  # type: ignore[union-attr]
    assert run.data.tokenizer == str(beside / "tokenizer.json")
    assert (run.model.hf, run.model.initial) == (f"{beside}/.", f"{beside}/.")


def test_so_are_schedules_clusters_and_software(beside: Path) -> None:
    for name in ("order.txt", "lab.toml", "ours.toml", "megatron", "dgx-h100"):
        (beside / name).write_text("")
    text = '[layout]\nschedule = "file:order.txt"\n[cluster]\npreset = "lab.toml"\nsoftware = "ours.toml"\n'
    run = load_run(written(beside, text))
    assert run.layout.schedule == f"file:{beside}/order.txt"
    assert (run.cluster.preset, run.cluster.software) == (f"{beside}/lab.toml", f"{beside}/ours.toml")
    text = '[layout]\nschedule = "file:gone.txt"\n[cluster]\npreset = "dgx-h100"\nsoftware = "megatron"\n'
    run = load_run(written(beside, text))
    assert (run.layout.schedule, run.cluster.preset, run.cluster.software) == ("file:gone.txt", "dgx-h100", "megatron")


@pytest.mark.parametrize("value", ["stdlib", "/tmp", "s3://bucket/texts", "~/texts", "nowhere", ""])
def test_words_urls_and_absolute_paths_stay(beside: Path, value: str) -> None:
    assert load_run(written(beside, f'data.corpus = "{value}"\n')).data.corpus == value
    assert load_run(written(beside, 'data.tokenizer = "bytes"\n')).data.tokenizer == "bytes"


def test_an_override_begins_at_the_current_folder(beside: Path) -> None:
    run = load_run(written(beside, 'data.corpus = "texts"\n'), ["data.corpus=texts"])
    assert run.data.corpus == "texts"


def test_what_is_nowhere_says_where_it_was_looked_for(beside: Path) -> None:
    with pytest.raises(UserError, match=f"looked for {Path.cwd()}/gone, and beside the run file"):
        list_sources("gone", Path())
    with pytest.raises(UserError, match=f"looked for {Path.cwd()}/gone.json, and beside the run file"):
        parse_tokenizer("gone.json")


def test_a_source_that_comes_again_by_another_path_is_the_same(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "link").symlink_to("corpus")
    spellings = [
        "corpus",
        "corpus/",
        "./corpus",
        "x/../corpus",
        str(tmp_path / "corpus"),
        f"{tmp_path}//corpus/",
        "link",
    ]
    others = ["corpus/*.txt", "stdlib", "corpus2", "s3://b/corpus"]
    blend = [{"path": path} for path in (*spellings, *others)]
    table = {
        "data": {"corpus": blend},
        "stage": [{"data": {"corpus": "link/"}}, {"data": {"corpus": "link/*.txt"}}, {}],
    }
    spell_alike(table)
    assert [part["path"] for part in blend] == [*["corpus"] * len(spellings), *others]
    assert [stage.get("data") for stage in table["stage"]] == [{"corpus": "corpus"}, {"corpus": "corpus/*.txt"}, None]
