"""The scan of a text corpus: every file's size, hash, documents and split, and the identity of the whole."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fourfold.config import UserError
from fourfold.config.schema import DataSection
from fourfold.data.corpus import WORKS, list_sources
from fourfold.data.formats import NotTextError, read_documents, read_records
from fourfold.data.records import BadRecord
from fourfold.data.source import Source, fingerprint
from fourfold.data.split import Split, SplitSurvey

_NAMED = 3
"""So many of the records and files that are left out are named in words."""


@dataclass(frozen=True)
class FileRecord:
    """One file: its path below the corpus's root, bytes, SHA-256, documents, and how many of these are for validation."""

    path: str
    size_bytes: int
    sha256: str
    documents: int
    validation_documents: int

    @property
    def split(self) -> str:
        """Which set: "train", "validation", or "mixed" when the file has documents in both sets."""
        if self.validation_documents == 0:
            return "train"
        return "validation" if self.validation_documents == self.documents else "mixed"


@dataclass(frozen=True)
class TextCorpus:
    """A scanned text corpus. `skipped`: files left out, by reason; `text_key`: the key in JSON, the column in Parquet;
    `bad_records`: those that hold no document and were left out, the first few of them in words in `first_bad_records`."""

    name: str
    files: tuple[FileRecord, ...]
    skipped: dict[str, int]
    split: Split
    text_key: str
    corpus_id: str
    sources: tuple[Source, ...]
    bad_records: int = 0
    first_bad_records: tuple[str, ...] = ()

    def documents(self) -> Iterator[tuple[str, str]]:
        """(training text, validation text) of every document in order; one is empty, except under a tail split."""
        for source in self.sources:
            for text in read_documents(source, self.text_key, "skip"):
                yield self.split.divide(text)

    def left_out(self) -> dict[str, Any]:
        """What of the corpus is not among its documents, as fields of `PreparedPart`."""
        return {"bad_records": self.bad_records, "first_bad_records": "; ".join(self.first_bad_records)}

    def manifest(self) -> dict[str, Any]:
        """The corpus's part of the manifest, as JSON."""
        return {
            "name": self.name,
            "kind": "text",
            "corpus_id": self.corpus_id,
            "skipped_files": self.skipped,
            **self.left_out(),
            "validation_rule": asdict(self.split),
            "files": [{**asdict(file), "split": file.split} for file in self.files],
        }


def identify(files: Iterable[tuple[str, int, str]]) -> str:
    """The identity of a set of files: SHA-256 over the sorted lines of path, size in bytes and SHA-256."""
    lines = (f"{path}\0{size}\0{digest}\n" for path, size, digest in sorted(files))
    return sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def scan_text(name: str, section: DataSection) -> TextCorpus:
    """Reads a text corpus once and says what is in it. The cache's folder, which may lie in the corpus's, is left out.

    Raises `UserError` when it holds no document, and for a record that holds none where `data.bad_records` is "error".
    """
    listed, skipped = list_sources(name, Path(section.directory))
    text_key, survey = section.text_key, SplitSurvey(section.validation_every)
    sources, files = [], []
    num_bad, first_bad = 0, []
    for source in listed:
        size, digest = fingerprint(source)
        documents = validation = 0
        try:
            for record in read_records(source, text_key):
                if not isinstance(record, BadRecord):
                    documents += 1
                    validation += survey.add(record.encode("utf-8"))
                    continue
                if section.bad_records == "error":
                    raise record.error()
                num_bad += 1
                first_bad += [str(record)] if num_bad <= _NAMED else []
        except NotTextError:
            skipped["binary"] += 1
            continue
        if documents == 0:
            skipped["empty"] += 1
            continue
        sources.append(source)
        files.append(FileRecord(source.path, size, digest, documents, validation))
    if not files:
        raise UserError(f"data.corpus = {name!r}: holds no text{_explain(listed, skipped)}; {WORKS}")
    split = survey.finish()
    if split.rule == "tail" and any(len(t) < 2 for source in sources for t in read_documents(source, text_key, "skip")):
        raise UserError(f"data.corpus = {name!r}: holds one character, which cannot be divided; {WORKS}")
    if split.rule != "hash":
        files = [_recount(source, file, split, text_key) for source, file in zip(sources, files, strict=True)]
    corpus_id = identify((file.path, file.size_bytes, file.sha256) for file in files)
    return TextCorpus(
        *(name, tuple(files), dict(skipped), split, text_key, corpus_id, tuple(sources), num_bad, tuple(first_bad))
    )


def _recount(source: Source, file: FileRecord, split: Split, text_key: str) -> FileRecord:
    """The validation documents of a file under a fallback rule, known only once the full corpus has been seen.

    Under the rule "tail" a document lies in both sets; it is counted as a training document.
    """
    if split.rule == "tail":
        return replace(file, validation_documents=0)
    validation = sum(split.is_validation(text.encode("utf-8")) for text in read_documents(source, text_key, "skip"))
    return replace(file, validation_documents=validation)


def _explain(listed: list[Source], skipped: Counter[str]) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    found = f" (files skipped: {reasons})" if reasons else " (there is no file in it)"
    pair = next((source.location for source in listed if source.location.endswith(".idx")), None)
    return found + (f"; a Megatron pair must be named itself: corpus = {pair!r}" if pair else "")
