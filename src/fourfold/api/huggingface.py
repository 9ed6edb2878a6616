"""From a Hugging Face folder to a run file, and from a checkpoint to a Hugging Face folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fourfold.api.checkpoints import SavedCheckpoint
from fourfold.config import RunConfig, RunFailure, UserError, parse_run
from fourfold.config.whole_file import write_whole
from fourfold.huggingface import resolve_model
from fourfold.huggingface.config_json import end_of_text, load_config, stated_family, unread_keys, unread_line
from fourfold.huggingface.tensors import num_modules
from fourfold.launch.machine import require_packages
from fourfold.launch.resolve import resolve_run, stated_vocab_size

_MAX_SEQUENCE = 1024


@dataclass(frozen=True)
class ImportedModel:
    """A model whose run file was written. `notes`: lines on what of it is not used."""

    family: str
    num_parameters: int
    notes: tuple[str, ...]


def import_model(folder: Path, out: Path, corpus: str, tokenizer: str | None, without_dropout: bool) -> ImportedModel:
    """Writes a run file that goes on training the model of a folder. Raises `UserError` and `RunFailure`."""
    if out.exists():
        raise UserError(
            f"--out {out}: exists and is not overwritten; name a new file, for example --out {out.stem}-2.toml"
        )
    if out.suffix != ".toml":
        raise UserError(f"--out {out}: a run file ends in .toml; a value that works: --out {out}.toml")
    require_packages("import", "torch", "safetensors")
    from fourfold.checkpoint import WeightFolder

    raw = load_config(folder)
    weights = WeightFolder(folder)
    config, notes = _imported(folder, raw, weights.names(), corpus, tokenizer, without_dropout)
    resolved = resolve_run(config, None, stated_vocab_size(config.model, config.data))
    notes += weights.check_against(resolved.model)
    stated = config.model_copy(update={"model": resolved.config.model})
    text = tomli_w.dumps(stated.model_dump(mode="json", exclude_unset=True, exclude_none=True))
    _write_new(out, f"# The model of {folder.absolute()}, to be trained further.\n{text}")
    return ImportedModel(resolved.model.family, resolved.num_parameters, notes)


def _imported(
    folder: Path, raw: dict[str, Any], tensors: list[str], corpus: str, tokenizer: str | None, without_dropout: bool
) -> tuple[RunConfig, tuple[str, ...]]:
    """The run, and what there is to say of config.json, which is `raw`. `tensors`: names of those in the folder."""
    stated: dict[str, str | float] = {"hf": str(folder), **({"dropout": 0.0} if without_dropout else {})}
    table = {"model": stated, "batch": {"global_sequences": 8, "sequence_length": 1}}
    model = resolve_model(parse_run(table).model)
    family = stated_family(raw)
    notes = []
    if keys := unread_keys(raw, family):
        notes.append(f"keys of config.json that are not read, nor known for {family.name}: {unread_line(keys)}")
    if dropouts := [f"{key} = {raw[key]}" for key in family.dropouts if raw.get(key)]:
        notes.append(f"config.json has {', '.join(dropouts)}; the model is trained without")
    own = folder / "tokenizer.json"
    data: dict[str, str | int] = {"corpus": corpus}
    if tokenizer is None:
        if not own.is_file():
            raise UserError(
                f'{own}: does not exist; state a tokenizer, for example --tokenizer tokenizer.json or "bytes"'
            )
        tokenizer = str(own.absolute())
        eos = end_of_text(raw)
        if eos is not None:
            data["eos"] = eos
    length = min(_MAX_SEQUENCE, model.max_position)
    modules = num_modules(tensors, model.num_layers) if model.is_mla else 0
    if modules != model.mtp_layers:
        key = family.their_name("mtp_layers")
        notes.append(
            f"config.json has {model.mtp_layers} MTP modules ({key}), the folder has the tensors of {modules}: mtp_layers = "
            f"{modules}"
        )
    stated.update(initial=str(folder.absolute()), mtp_layers=modules)
    run = parse_run(
        {
            "model": stated,
            "data": {**data, "tokenizer": tokenizer},
            "batch": {"global_sequences": 8, "sequence_length": length, "steps": 100},
            "optimizer": {"lr": 2e-5, "warmup_steps": 10},
        },
        source=f"import of {folder}",
    )
    return run, tuple(notes)


def _write_new(path: Path, text: str) -> None:
    """Writes a whole file or none. Raises `RunFailure`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise RunFailure(f"--out {path}: cannot be written ({error.strerror}); name another place") from None


def export_model(found: SavedCheckpoint, out: Path, dtype: str) -> list[str]:
    """Writes a checkpoint as a Hugging Face folder; warnings on what is not in it. The tokenizer comes from its run's folder.
    Raises `UserError` and `RunFailure`."""
    from fourfold.checkpoint import KEPT, export_checkpoint, read_origin
    from fourfold.data.prepared import open_prepared

    tokenizer_file, eos, warnings = None, None, list[str]()
    if found.folder is None:
        warnings.append("the tokenizer is not written: a checkpoint has none; name the folder of its run to write it")
    else:
        try:
            prepared = open_prepared(str(found.folder.data().get("prepared")))
            tokenizer_file, eos = prepared.tokenizer_path, prepared.eos
        except RunFailure as error:
            warnings.append(f"the tokenizer is not written: {error}")
    model, initial = resolve_model(found.config.model), found.config.model.initial
    kept = found.folder.path / KEPT if found.folder is not None else None
    places = [place for place in (kept, Path(initial) if initial is not None else None) if place is not None]
    origin = next((each for place in places if (each := read_origin(place)) is not None), None)
    if initial is not None and origin is None:
        warnings.append(
            f"{initial}, which the weights came from, is gone or has no config.json: its ids of bos and pad, chat "
            "template and generation_config.json are not written; put it back and export again to have them"
        )
    export_checkpoint(found.path, model, out, dtype=dtype, tokenizer_file=tokenizer_file, eos=eos, origin=origin)
    return warnings
