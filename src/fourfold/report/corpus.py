"""A prepared corpus in words: its counts, how long its tokens are, and what it reads like."""

from collections.abc import Mapping
from typing import Any

from fourfold.config import RunConfig, UserError
from fourfold.config.stages import course_of
from fourfold.data.batches import GlobalBatches, Reading
from fourfold.data.prepared import PreparedData
from fourfold.data.stage_place import place_of
from fourfold.data.tokenizer_file import read_tokenizer_file
from fourfold.report.units import format_nats

_SAMPLE_TOKENS = 1 << 16
_EXCERPT_TOKENS = 160


def bytes_per_token(prepared: PreparedData) -> float | None:
    """Mean UTF-8 bytes of a validation token, measured on the first 65,536 of each part; None where nothing decodes."""
    tokenizer = prepared.load_tokenizer()
    mean = 0.0
    for part in prepared.parts:
        tokens = prepared.streams(part)[1].read(0, _SAMPLE_TOKENS)
        if len(tokens):
            mean += part.weight * len(tokenizer.decode(tokens).encode("utf-8", "replace")) / len(tokens)
    return mean or None


def corpus_summary(
    prepared: PreparedData, config: RunConfig | None = None, sets: Mapping[str, PreparedData] | None = None
) -> dict[str, Any]:
    """The output of `fourfold data --json`. Entropies in nats per token. `config`: of the run that reads it; `sets`: the data of
    its `run.validation`, by name."""
    steps, readings = _readings(prepared, config)
    files = [len(part.get("files", [None])) for part in prepared.manifest_parts()]
    return {
        "prepared": str(prepared.path),
        "corpus_id": prepared.corpus_id,
        "tokenizer": prepared.tokenizer,
        "vocab_size": prepared.vocab_size,
        "eos": prepared.eos,
        "bos": list(prepared.bos),
        "special_tokens": _special_tokens(prepared),
        "train_tokens": prepared.train_tokens,
        "validation_tokens": prepared.validation_tokens,
        "unigram_entropy_nats": prepared.unigram_entropy_nats,
        "unigram_train_entropy_nats": prepared.unigram_train_entropy_nats,
        "bytes_per_token": bytes_per_token(prepared),
        "parts": [
            {
                "name": part.name,
                "kind": part.kind,
                "weight": part.weight,
                "share": readings[index].share if readings else None,
                "epochs": readings[index].epochs if readings else None,
                "step_beyond_4_epochs": readings[index].step_beyond if readings else None,
                "files": files[index],
                "train_documents": part.train_documents,
                "validation_documents": part.validation_documents,
                "train_tokens": part.train_tokens,
                "validation_tokens": part.validation_tokens,
                "unread_files": part.unread_files,
                "unread_bytes": part.unread_bytes,
                "json_texts": part.json_texts,
                "bad_records": part.bad_records,
                "inner_ends": part.inner_ends,
            }
            for index, part in enumerate(prepared.parts)
        ],
        "validation_sets": [
            {
                "name": name,
                "corpus": each.parts[0].name,
                "documents": each.parts[0].validation_documents,
                "tokens": each.validation_tokens,
            }
            for name, each in (sets or {}).items()
        ],
        "steps": steps,
        "notes": [
            *prepared.notices(),
            *(line for each in (sets or {}).values() for line in each.notices()),
            *(line for each in readings if (line := each.notice(steps or 0)) is not None),
        ],
        "excerpt": _excerpt(prepared),
    }


def _readings(prepared: PreparedData, config: RunConfig | None) -> tuple[int | None, list[Reading]]:
    """(steps of the run, or of its first stage, what they read from each part); None and nothing where the run does not say how
    long it is, or is too short for a sequence of its own."""
    if config is None or (config.batch.steps is None and config.batch.tokens is None):
        return None, []
    course = course_of(config)
    steps, stage = course.stages[0].end, course.stages[0]
    try:
        return steps, GlobalBatches.of_run(prepared, stage.config, place_of(course, stage)).readings(steps)
    except UserError:
        return steps, []


def _special_tokens(prepared: PreparedData) -> dict[str, str]:
    """The texts of the tokens that stand before and behind documents, by their ids."""
    texts = {number: text for text, number in read_tokenizer_file(prepared.tokenizer_path).ids().items()}
    return {str(number): texts.get(number, "") for number in (*prepared.bos, prepared.eos)}


def _excerpt(prepared: PreparedData) -> str:
    tokens = prepared.streams(prepared.parts[0])[0].read(0, _EXCERPT_TOKENS)
    return prepared.load_tokenizer().decode(tokens)


def corpus_lines(summary: dict[str, Any]) -> list[str]:
    """The summary as text."""
    lines = []
    for part in summary["parts"]:
        of_run = part["weight"] if part["share"] is None else part["share"]
        share = f", {100 * of_run:.1f} % of the samples" if len(summary["parts"]) > 1 else ""
        if part["epochs"] is not None:
            share += f", read {part['epochs']:.2f} times in {summary['steps']:,} steps"
        lines.append(
            f"corpus            {part['name']}: {part['files']:,} file{'s' if part['files'] != 1 else ''}, "
            f"{part['train_documents']:,} documents to train on, {part['validation_documents']:,} for validation{share}"
        )
    length = summary["bytes_per_token"]
    mean = f", {length:.2f} bytes a token" if length else ""
    named = {int(number): f"{text} (id {number})" for number, text in summary["special_tokens"].items()}
    begin = " ".join(named[number] for number in summary["bos"]) or "no token"
    entropy = format_nats(summary["unigram_entropy_nats"], length)
    for each in summary["validation_sets"]:
        lines.append(
            f"validation set    {each['name']}: {each['documents']:,} documents of {each['corpus']}, {each['tokens']:,} tokens"
        )
    return [
        *lines,
        *(f"note              {line}" for line in summary["notes"]),
        f"tokens            {summary['train_tokens']:,} to train on, {summary['validation_tokens']:,} for validation",
        f"tokenizer         {summary['tokenizer']}: {summary['vocab_size']:,} entries{mean}",
        f"documents         {begin} before each, {named[summary['eos']]} behind it",
        f"unigram loss      {entropy}: that of knowing only how often each token occurs",
        f"corpus id         {summary['corpus_id']}",
        f"prepared          {summary['prepared']}",
        "",
        "It begins:",
        *("  " + line for line in summary["excerpt"].splitlines()),
    ]
