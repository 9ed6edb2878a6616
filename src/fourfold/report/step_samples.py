"""Samples of a step: the source, file and record that each row of its batch came from, and how the text begins."""

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

from fourfold.config import RunConfig, UserError
from fourfold.config.schema import SkippedData
from fourfold.config.stages import Course, Stage, course_of
from fourfold.data.batches import GlobalBatches
from fourfold.data.origins import Origins
from fourfold.data.prepared import PreparedData
from fourfold.data.stage_place import place_of

_SHOWN_TOKENS = 24


def stage_of_step(config: RunConfig, step: int) -> tuple[Course, Stage]:
    """The course of a run, and the stage of a step. Raises `UserError` for a step that the run has not."""
    course = course_of(config)
    if not 0 <= step < course.steps:
        last = course.steps - 1
        raise UserError(
            f"--step {step}: allowed: 0 to {last}, the steps of this run; a value that works: --step {last}"
        )
    return course, course.stage_at(step)


def step_samples(
    prepared: PreparedData,
    config: RunConfig,
    step: int,
    row: int | None = None,
    skips: Sequence[SkippedData] = (),
) -> dict[str, Any]:
    """The document of `fourfold data --step`: the rows of a step's global batch, or one of them. `prepared`: the data of its stage;
    `skips`: data that the run left out. Raises `UserError` for a step or row that the run has not."""
    course, stage = stage_of_step(config, step)
    config, num_rows = stage.config, course.batch_at(step).sequences
    batches = GlobalBatches.of_run(prepared, config, place_of(course, stage, [*config.data.skip_sequences, *skips]))
    if row is not None and not 0 <= row < num_rows:
        raise UserError(f"--row {row}: allowed: 0 to {num_rows - 1}, the rows of a batch; a value that works: --row 0")
    rows = list(range(num_rows)) if row is None else [row]
    samples, tokens = batches.samples(step, rows), batches.batch(step, rows).tokens
    length, text_key = tokens.shape[1], config.data.text_key
    origins = {part: Origins(prepared, prepared.parts[part], text_key) for part in {each.part for each in samples}}
    stretches = [origins[each.part].of(each.start, length) for each in samples]
    of_part = {
        part: [found for each, found in zip(samples, stretches, strict=True) if each.part == part] for part in origins
    }
    records = {part: origins[part].records(list(chain.from_iterable(found))) for part, found in of_part.items()}
    tokenizer = prepared.load_tokenizer()
    return {
        "step": step,
        "sequence_length": length,
        "rows": [
            {
                "row": number,
                "source": prepared.parts[sample.part].name,
                "sample": sample.index,
                "epoch": sample.epoch,
                "tokens": ids.tolist(),
                "documents": [
                    {
                        "columns": list(each.columns),
                        "file": each.file,
                        "record": records[sample.part].get((each.file, each.document)),
                        "document": each.document,
                        "offset": each.offset,
                        "file_offset": each.file_offset,
                        "text": tokenizer.decode(ids[slice(*each.columns)][:_SHOWN_TOKENS]),
                    }
                    for each in found
                ],
            }
            for number, sample, ids, found in zip(rows, samples, tokens, stretches, strict=True)
        ],
    }


def step_lines(table: dict[str, Any]) -> list[str]:
    """The document as text."""
    count = len(table["rows"])
    lines = [f"step {table['step']}: {count} sequence{'s' if count != 1 else ''} of {table['sequence_length']} tokens"]
    for row in table["rows"]:
        lines.append(f"row {row['row']:<5} {row['source']}: sample {row['sample']}, epoch {row['epoch']}")
        for each in row["documents"]:
            first, stop = each["columns"]
            record = (
                f"record {each['record']}" if each["record"] is not None else f"training document {each['document']}"
            )
            where = f", token {each['file_offset']} of the file" if each["file_offset"] is not None else ""
            place = f"{each['file']}, {record}, from its token {each['offset']} on{where}"
            lines.append(f"  {first:>6} to {stop - 1:<6} {place}: {json.dumps(each['text'], ensure_ascii=False)}")
    return lines
