"""A prepared corpus in words: its counts, how long its tokens are, and what it reads like."""

import json
from typing import Any

from fourfold.config import RunFailure
from fourfold.config.errors import shortened
from fourfold.config.whole_file import bounded
from fourfold.data.prepared import PreparedData
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


def corpus_summary(prepared: PreparedData) -> dict[str, Any]:
    """The output of `fourfold data --json`. Entropies in nats per token."""
    files = _files(prepared)
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
        "notes": prepared.notices(),
        "excerpt": _excerpt(prepared),
    }


def _files(prepared: PreparedData) -> list[int]:
    """Files of each part, by the manifest; a Megatron pair counts as one. Raises `RunFailure` where that is damaged."""
    path = prepared.folder / "manifest.json"
    try:
        stated = json.loads(bounded(path))["parts"]
        return [len(part.get("files", [None])) for _, part in zip(prepared.parts, stated, strict=True)]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise RunFailure(
            f"{path}: is not the manifest of prepared data ({shortened(str(error))[1:-1]}); delete {prepared.folder} and prepare "
            f"the data again"
        ) from None


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
        share = f", {100 * part['weight']:.1f} % of the samples" if len(summary["parts"]) > 1 else ""
        lines.append(
            f"corpus            {part['name']}: {part['files']:,} file{'s' if part['files'] != 1 else ''}, "
            f"{part['train_documents']:,} documents to train on, {part['validation_documents']:,} for validation{share}"
        )
    length = summary["bytes_per_token"]
    mean = f", {length:.2f} bytes a token" if length else ""
    named = {int(number): f"{text} (id {number})" for number, text in summary["special_tokens"].items()}
    begin = " ".join(named[number] for number in summary["bos"]) or "no token"
    entropy = format_nats(summary["unigram_entropy_nats"], length)
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
