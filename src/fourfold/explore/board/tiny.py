"""The small model whose pipeline the board is: one block a stage, so that a few CPU ranks train it in seconds."""

from pathlib import Path
from typing import Any

import tomli_w

from fourfold.explore.board.request import Board

STEPS = 8
_SEQUENCE, _HIDDEN, _HEADS = 256, 256, 4


def model_keys(blocks: int, hidden: int = _HIDDEN, tokens: int = _SEQUENCE) -> dict[str, Any]:
    """The keys of the model, its data and the length of its run, dotted. `tokens`: of a sequence."""
    return {
        "model.num_layers": blocks,
        "model.hidden_size": hidden,
        "model.num_heads": _HEADS,
        "model.ffn_size": 4 * hidden,
        "data.corpus": "stdlib",
        "data.tokenizer": "bytes",
        "batch.sequence_length": tokens,
        "batch.steps": STEPS,
        "layout.microbatch_sequences": 1,
    }


def run_keys(board: Board, schedule: Path) -> dict[str, Any]:
    """The keys of the run, dotted. `schedule`: the file that holds the board's text."""
    stages = len(board.stage_ranks)
    return {
        **model_keys(stages),
        "batch.global_sequences": board.num_microbatches,
        "layout.pp": board.num_ranks,
        "layout.virtual_stages": board.virtual_stages,
        "layout.segments_per_stage": [2, *[1] * (stages - 2), 2],
        "layout.schedule": f"file:{schedule}",
        "run.device": "cpu",
    }


def write_run(folder: Path, board: Board) -> Path:
    """Writes the board's schedule file and the run file that names it; the run file."""
    schedule, run_file = folder / "board.txt", folder / "board.toml"
    schedule.write_text(board.text, encoding="utf-8")
    tables: dict[str, dict[str, Any]] = {}
    for key, value in run_keys(board, schedule).items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    run_file.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return run_file
