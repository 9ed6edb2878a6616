"""The scan of a text corpus: every file's size, hash, documents and split, and the identity of the whole.

Which documents are for validation is a rule on each document's own content, so that order and place do not matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fourfold.config import UserError
from fourfold.config.schema import DataSection
from fourfold.data.corpus import WORKS, CorpusFiles, list_sources
from fourfold.data.formats import BadRecord, is_json_text, read_documents, read_records
from fourfold.data.source import Source, UnreadError, UnreadFile, fingerprint

Rule = Literal["hash", "last", "tail"]
_NAMED = 3
"""So many of the records and files that are left out are named in words."""
_ACCEPTED_SHARE = 0.01
"""This share of a corpus's bytes may stand in files that are not read."""


@dataclass(frozen=True)
class Split:
    """Divides documents into a training and a validation set.

    rule "hash": for validation where SHA-256 of `key` and the document, as an integer, is a multiple of `every`.
    rule "last": the "hash" rule left one of the sets empty; for validation where the SHA-256 is `threshold` or above.
    rule "tail": there is one document only (or copies of one); the last 1/`every` of its length is for validation.
    Equal documents always fall on the same side.
    """

    rule: Rule
    every: int
    threshold: str = ""
    key: str = ""

    def is_validation(self, document: bytes) -> bool:
        """Whether a document is for validation as a whole. Not for the rule "tail"."""
        digest = _digest(self.key, document)
        return digest >= self.threshold if self.rule == "last" else int(digest, 16) % self.every == 0

    def divide(self, text: str) -> tuple[str, str]:
        """(training text, validation text): one of them is empty, except under "tail"."""
        if self.rule == "tail":
            cut = self.cut(len(text))
            return text[:cut], text[cut:]
        return ("", text) if self.is_validation(text.encode("utf-8")) else (text, "")

    def cut(self, length: int) -> int:
        """Under "tail": where the validation tail of something of this length begins."""
        return length - max(1, length // self.every)


class SplitSurvey:
    """Sees every document once, then knows the `Split` that leaves neither set empty; with `every` 1, all are for validation."""

    def __init__(self, every: int, key: str = "") -> None:
        self._every, self._key = every, key
        self._sides: set[bool] = set()
        self._digests: set[str] = set()

    def add(self, document: bytes) -> bool:
        """Counts a document in; returns whether the "hash" rule holds it out."""
        digest = _digest(self._key, document)
        validation = int(digest, 16) % self._every == 0
        self._sides.add(validation)
        # Digests matter for the fallbacks alone: they need not be kept once both sides have a document.
        if len(self._sides) < 2 and self._every > 1:
            self._digests.add(digest)
        return validation

    def finish(self) -> Split:
        """The split to use, given at least one document."""
        if len(self._sides) == 2 or self._every == 1:
            return Split("hash", self._every, key=self._key)
        if len(self._digests) < 2:
            return Split("tail", self._every, key=self._key)
        num_validation = max(1, len(self._digests) // self._every)
        return Split("last", self._every, sorted(self._digests)[-num_validation], self._key)


def _digest(key: str, document: bytes) -> str:
    return sha256(key.encode() + document).hexdigest()


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
    """A scanned text corpus.

    skipped: files that are none of it, by rule; unread: those that cannot be read.
    text_key: the key in JSON, the column in Parquet.
    json_texts: `.json` files without records, which are text.
    bad_records: those that hold no document and were left out, the first few of them in words in `first_bad_records`.
    """

    name: str
    files: tuple[FileRecord, ...]
    skipped: dict[str, int]
    split: Split
    text_key: str
    corpus_id: str
    sources: tuple[Source, ...]
    unread: tuple[UnreadFile, ...] = ()
    json_texts: int = 0
    bad_records: int = 0
    first_bad_records: tuple[str, ...] = ()

    def documents(self) -> Iterator[tuple[str, str]]:
        """(training text, validation text) of every document in order; one is empty, except under a tail split."""
        for source in self.sources:
            for text in read_documents(source, self.text_key, "skip"):
                yield self.split.divide(text)

    def left_out(self) -> dict[str, Any]:
        """The share of the corpus that is not among its documents, as fields of `PreparedPart`."""
        return {
            "unread_files": len(self.unread),
            "unread_bytes": sum(file.size_bytes for file in self.unread),
            "named_unread_files": named_files(self.unread),
            "json_texts": self.json_texts,
            "bad_records": self.bad_records,
            "first_bad_records": "; ".join(self.first_bad_records),
        }

    def manifest(self) -> dict[str, Any]:
        """The corpus's part of the manifest, as JSON."""
        return {
            "name": self.name,
            "kind": "text",
            "corpus_id": self.corpus_id,
            "skipped_files": self.skipped,
            "unread": [asdict(file) for file in self.unread],
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

    Raises `UserError` when it holds no document, for a record that holds none where `data.bad_records` is "error", and for files
    that cannot be read: unless `data.skip` accepts it, when one is damaged, or when they hold more than 1 % of all bytes.
    """
    listing = list_sources(name, Path(section.directory))
    scan = _Scan(section)
    while scan.begin_again:
        scan.read(listing.sources)
    unread = [*listing.unread, *scan.unread.values()]
    if not scan.files:
        raise UserError(f"data.corpus = {name!r}: holds no text{_explain(listing, unread)}; {WORKS}")
    if scan.json_texts == len(scan.files):
        raise UserError(
            f"data.corpus = {name!r}: nothing in it but JSON without records: no object in {scan.files[0].path} has its text under "
            f"{section.text_key!r} (data.text_key); what works: JSON Lines, or an array of objects with this key, or another name "
            "than .json for what is to be trained on as it stands"
        )
    if not section.skip:
        _refuse_unread(name, unread, sum(file.size_bytes for file in scan.files))
    files, sources, text_key = scan.files, scan.sources, section.text_key
    split = scan.survey.finish()
    if split.rule == "tail" and any(len(t) < 2 for source in sources for t in read_documents(source, text_key, "skip")):
        raise UserError(f"data.corpus = {name!r}: holds one character, which cannot be divided; {WORKS}")
    if split.rule != "hash":
        files = [_recount(source, file, split, text_key) for source, file in zip(sources, files, strict=True)]
    corpus_id = identify((file.path, file.size_bytes, file.sha256) for file in files)
    return TextCorpus(
        name=name,
        files=tuple(files),
        skipped=dict(listing.skipped),
        split=split,
        text_key=text_key,
        corpus_id=corpus_id,
        sources=tuple(sources),
        unread=tuple(sorted(unread, key=lambda file: file.path)),
        json_texts=scan.json_texts,
        bad_records=scan.bad_records,
        first_bad_records=tuple(scan.first_bad_records),
    )


class _Scan:
    """One pass over the files of a corpus. A file that turns out unreadable after some of its documents were counted is noted in
    `unread`, and the pass begins again without it."""

    def __init__(self, section: DataSection) -> None:
        self._section = section
        self.unread: dict[str, UnreadFile] = {}
        self.begin_again = True

    def read(self, sources: Iterable[Source]) -> None:
        """Fills `files`, `sources` and `survey` with what can be read."""
        self.begin_again = False
        self.survey = SplitSurvey(self._section.validation_every, self._section.validation_key)
        self.files: list[FileRecord] = []
        self.sources: list[Source] = []
        self.bad_records, self.first_bad_records = 0, list[str]()
        self.json_texts = 0
        for source in sources:
            if source.path in self.unread:
                continue
            counted = self.bad_records
            documents = validation = 0
            try:
                size, digest = fingerprint(source)
                for record in read_records(source, self._section.text_key):
                    if isinstance(record, BadRecord):
                        self._note(record)
                    else:
                        documents += 1
                        validation += self.survey.add(record.encode("utf-8"))
            except UserError as error:
                if isinstance(error, _BadRecordError) or not (self._section.skip or isinstance(error, UnreadError)):
                    raise
                reason = (
                    error.reason if isinstance(error, UnreadError) else str(error).removeprefix(f"{source.location}: ")
                )
                self.unread[source.path] = UnreadFile(source.path, reason, source.size_bytes())
                if documents or self.bad_records > counted:
                    self.begin_again = True
                    return
                continue
            if documents == 0:
                reason = "no record of it holds a document" if self.bad_records > counted else "empty"
                self.unread[source.path] = UnreadFile(source.path, reason, size)
                continue
            self.json_texts += is_json_text(source, self._section.text_key)
            self.sources.append(source)
            self.files.append(FileRecord(source.path, size, digest, documents, validation))

    def _note(self, record: BadRecord) -> None:
        if self._section.bad_records == "error":
            raise _BadRecordError(str(record.error()))
        self.bad_records += 1
        if self.bad_records <= _NAMED:
            self.first_bad_records.append(str(record))


class _BadRecordError(UserError):
    """A refused record: no matter of its file."""


def _refuse_unread(name: str, unread: list[UnreadFile], read_bytes: int) -> None:
    unread_bytes = sum(file.size_bytes for file in unread)
    if unread_bytes <= _ACCEPTED_SHARE * (unread_bytes + read_bytes):
        return
    share = 100 * unread_bytes / (unread_bytes + read_bytes)
    raise UserError(
        f"data.corpus = {name!r}: {share:.1f} % of its bytes are in files that are not read: {named_files(unread)}; what works: "
        "convert them or take them out of the corpus, or data.skip = true, which trains without them"
    )


def named_files(unread: Sequence[UnreadFile]) -> str:
    """The largest of some files in words, with their reasons."""
    largest = sorted(unread, key=lambda file: (-file.size_bytes, file.path))
    more = f" and {len(largest) - _NAMED} more" if len(largest) > _NAMED else ""
    return ", ".join(map(str, largest[:_NAMED])) + more


def _recount(source: Source, file: FileRecord, split: Split, text_key: str) -> FileRecord:
    """The validation documents of a file under a fallback rule, known only once the full corpus has been seen.

    Under the rule "tail" a document lies in both sets; it is counted as a training document.
    """
    if split.rule == "tail":
        return replace(file, validation_documents=0)
    validation = sum(split.is_validation(text.encode("utf-8")) for text in read_documents(source, text_key, "skip"))
    return replace(file, validation_documents=validation)


def _explain(listing: CorpusFiles, unread: list[UnreadFile]) -> str:
    by_rule = [f"{count} {reason}" for reason, count in sorted(listing.skipped.items())]
    reasons = "; ".join([*by_rule, *([named_files(unread)] if unread else [])])
    found = f" (files not read: {reasons})" if reasons else " (there is no file in it)"
    pair = next((source.location for source in listing.sources if source.location.endswith(".idx")), None)
    return found + (f"; a Megatron pair must be named itself: corpus = {pair!r}" if pair else "")
