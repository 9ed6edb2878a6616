"""Origins of the tokens of a sample: the file, the record and the place in it that each stretch of a row came from.

Text is found by the order in which it was encoded: training documents, file by file. The record's number is found by reading the
file again. Token ids are found where they lie.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from fourfold.config import RunFailure, UserError
from fourfold.config.errors import shortened
from fourfold.data.corpus import list_sources
from fourfold.data.formats import read_records
from fourfold.data.indexed import TokenStream, open_indexed
from fourfold.data.manifest import Split
from fourfold.data.prepared import PreparedData, PreparedPart


@dataclass(frozen=True)
class Stretch:
    """Tokens of one document in a row.

    columns: (first, behind the last) in the row. file: below the corpus's root for text, as it lies for token ids. document: its
    number, from 0, among the documents of the file, or for text among those for training. offset: of the first of these tokens in
    its document; file_offset: in a file of token ids, None for text.
    """

    columns: tuple[int, int]
    file: str
    document: int
    offset: int
    file_offset: int | None = None


class Origins:
    """The origins of a part's training tokens. Raises `RunFailure` where its files are damaged."""

    def __init__(self, prepared: PreparedData, part: PreparedPart, text_key: str) -> None:
        """text_key: of the run's data, by which text is read again."""
        self._prepared, self._part, self._text_key = prepared, part, text_key
        self._stream: TokenStream = prepared.streams(part)[0]
        self._is_text = part.kind == "text"
        if self._is_text:
            self._offsets = open_indexed(prepared.folder / part.folder / "train").document_offsets
            self._listed, self._ends, self._split = _text_files(prepared, part)
            return
        self._files = prepared.token_files(part)
        arrays = [file.open() for file in self._files]
        self._starts = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        self._arrays, self._known = arrays, dict[int, np.ndarray]()

    def of(self, start: int, count: int) -> list[Stretch]:
        """Stretches of `count` training tokens from `start` on."""
        return self._of_text(start, count) if self._is_text else self._of_ids(start, count)

    def records(self, stretches: Collection[Stretch]) -> dict[tuple[str, int], int]:
        """The number of the record, line or row, from 1, of each document by file and number. For text each file is read once
        more; documents of one that is not there any more, or another, are left out."""
        if not self._is_text:
            return {(each.file, each.document): each.document + 1 for each in stretches}
        wanted: dict[str, set[int]] = {}
        for each in stretches:
            wanted.setdefault(each.file, set()).add(each.document)
        found = {file: self._records(file, documents) for file, documents in wanted.items()}
        return {(file, document): number for file, numbers in found.items() for document, number in numbers.items()}

    def _of_text(self, start: int, count: int) -> list[Stretch]:
        found = []
        for first, stop, document in _split(start, count, self._offsets):
            file = bisect_right(self._ends, document)
            before = self._ends[file - 1] if file else 0
            columns, offset = (first - start, stop - start), first - int(self._offsets[document])
            found.append(Stretch(columns, self._listed[file][0], document - before, offset))
        return found

    def _of_ids(self, start: int, count: int) -> list[Stretch]:
        starts, found, column = self._starts, [], 0
        for begin, end in self._stream.places(start, count):
            while begin < end:
                file = int(np.searchsorted(starts, begin, side="right")) - 1
                place, stop = begin - int(starts[file]), min(end, int(starts[file + 1])) - int(starts[file])
                offsets = self._document_offsets(file)
                for first, last, document in _split(place, stop - place, offsets):
                    columns = column + first - place, column + last - place
                    offset = first - int(offsets[document])
                    found.append(Stretch(columns, str(self._files[file].ids_path), document, offset, first))
                column += stop - place
                begin += stop - place
        return found

    def _document_offsets(self, file: int) -> np.ndarray:
        if file not in self._known:
            self._known[file] = self._files[file].document_offsets(self._arrays[file], self._prepared.eos)
        return self._known[file]

    def _records(self, path: str, documents: Collection[int]) -> dict[int, int]:
        """Numbers of the records of training documents of a file, by their numbers there."""
        split = self._split
        try:
            listed = list_sources(self._part.name, self._prepared.folder.parent).sources
            known = dict(self._listed)
            [source] = [each for each in listed if each.path == path and each.size_bytes() == known[path]]
            found, document = {}, 0
            for number, record in enumerate(read_records(source, self._text_key), start=1):
                if not isinstance(record, str) or (
                    split.rule != "tail" and split.is_validation(record.encode("utf-8"))
                ):
                    continue
                if document in documents:
                    found[document] = number
                document += 1
                if len(found) == len(documents):
                    break
        except (UserError, ValueError, OSError):
            return {}
        return found


def _text_files(prepared: PreparedData, part: PreparedPart) -> tuple[list[tuple[str, int]], list[int], Split]:
    """(path, size in bytes) of a part's files, training documents up to the end of each, and how documents were divided."""
    try:
        manifest = prepared.manifest_parts()[prepared.parts.index(part)]
        files, split = manifest["files"], Split(**manifest["validation_rule"])
        ends = list(accumulate(int(file["documents"]) - int(file["validation_documents"]) for file in files))
        if not ends or ends[-1] != part.train_documents:
            raise ValueError(f"its files have {ends[-1:]} training documents, not {part.train_documents}")
        return [(str(file["path"]), int(file["size_bytes"])) for file in files], ends, split
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunFailure(
            f"{prepared.folder / 'manifest.json'}: does not fit the tokens beside it ({shortened(str(error))[1:-1]}); delete "
            f"{prepared.folder} and prepare the data again"
        ) from None


def _split(start: int, count: int, offsets: np.ndarray) -> list[tuple[int, int, int]]:
    """(first token, behind the last, document) of each stretch of tokens `start` to `start + count`. offsets: where documents
    begin, and the end of the last."""
    document = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, start + count, side="left"))
    edges = [start, *(int(offset) for offset in offsets[document + 1 : last]), start + count]
    return [(first, stop, document + at) for at, (first, stop) in enumerate(pairwise(edges)) if first < stop]
