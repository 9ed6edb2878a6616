"""The result of `prepare`: a JSON file that tells where the tokens lie and what they are. Any process can open it."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fourfold.config import FinalFailure, RunFailure
from fourfold.config.errors import shortened
from fourfold.config.whole_file import bounded
from fourfold.data.file_digests import file_digests
from fourfold.data.indexed import TokenStream, all_tokens, open_indexed
from fourfold.data.token_corpus import DIGESTS, token_streams
from fourfold.data.token_files import TokenFile
from fourfold.data.tokenizer import Tokenizer, load_tokenizer

FORMAT = 2
MAX_MANIFEST_BYTES = 1 << 32
TOKEN_FILES = "token_files.json"
"""In the folder of a part: its files of token ids, unless these are one Megatron pair."""
_SAMPLES, _SAMPLE_TOKENS = 32, 1024
_EVERY_BYTE = "bytes:"


@dataclass(frozen=True)
class PreparedPart:
    """One corpus of a blend. `folder` is below the cache folder; `prefix` is the pair of a Megatron corpus, else "" ("tokens":
    files of token ids).

    weight: its share of the validation set, and of the samples where weights do not change; those of all parts sum to 1.
    sha256: over every byte of the token files of text, as they were written.
    unread_files: files of the corpus that cannot be read, the largest of them in words in `named_unread_files`.
    json_texts: `.json` files that hold no records, and are text.
    inner_ends: end-of-text tokens inside documents, which the tokenizer makes of their text.
    bad_records: records without a document that were left out, the first of them in words in `first_bad_records`.
    """

    name: str
    kind: Literal["text", "megatron", "tokens"]
    weight: float
    folder: str
    prefix: str
    train_tokens: int
    validation_tokens: int
    train_documents: int
    validation_documents: int
    sha256: str = ""
    unread_files: int = 0
    unread_bytes: int = 0
    named_unread_files: str = ""
    json_texts: int = 0
    inner_ends: int = 0
    bad_records: int = 0
    first_bad_records: str = ""

    def notices(self) -> list[str]:
        """A line for each kind of thing that is in the corpus and not in its tokens, or only there."""
        lines = []
        if self.unread_files:
            lines.append(
                f"{_counted(self.unread_files, 'file')} of {self.unread_bytes:,} bytes not read: {self.named_unread_files}"
            )
        if self.json_texts:
            lines.append(f"{_counted(self.json_texts, '.json file')} read as text: without records")
        if self.bad_records:
            more = "; and more" if self.bad_records > self.first_bad_records.count("; ") + 1 else ""
            lines.append(f"{_counted(self.bad_records, 'record')} left out: {self.first_bad_records}{more}")
        if self.inner_ends:
            lines.append(
                f"{_counted(self.inner_ends, 'end-of-text token')} inside documents: the tokenizer makes them of plain text"
            )
        return [f"{self.name}: {line}" for line in lines]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


@dataclass(frozen=True)
class PreparedData:
    """Tokens ready to be trained on. `path` is this description's own file, which `open_prepared` reads in any process.

    bos: the ids that stand before every document of text, () for none.
    unigram_entropy_nats: cross-entropy per validation token under the smoothed unigram distribution of training tokens.
    unigram_train_entropy_nats: entropy of the training tokens' own unigram distribution.
    """

    path: Path
    corpus_id: str
    tokenizer: str
    vocab_size: int
    eos: int
    parts: tuple[PreparedPart, ...]
    unigram_entropy_nats: float
    unigram_train_entropy_nats: float
    bos: tuple[int, ...] = ()

    @property
    def folder(self) -> Path:
        """The cache folder: manifest.json, tokenizer.json and the tokens of every part."""
        return self.path.parent

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def train_tokens(self) -> int:
        """Training tokens of all parts together."""
        return sum(part.train_tokens for part in self.parts)

    @property
    def validation_tokens(self) -> int:
        """Validation tokens of all parts together."""
        return sum(part.validation_tokens for part in self.parts)

    def left_out(self) -> dict[str, int]:
        """Counts of what is not in the tokens as a person may expect it, by its kind; empty where there is nothing."""
        counts = {
            "unread_files": sum(part.unread_files for part in self.parts),
            "unread_bytes": sum(part.unread_bytes for part in self.parts),
            "bad_records": sum(part.bad_records for part in self.parts),
            "inner_ends": sum(part.inner_ends for part in self.parts),
        }
        return {kind: count for kind, count in counts.items() if count}

    def notices(self) -> list[str]:
        """The lines of all parts about what is left out."""
        return [line for part in self.parts for line in part.notices()]

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer with which the tokens were made."""
        return load_tokenizer(self.tokenizer_path, self.eos)

    def require(self, fingerprint: str) -> None:
        """Raises `FinalFailure` where the tokens are not those with which the run began."""
        sampled = not fingerprint.startswith(_EVERY_BYTE)  # of a run that began before every byte was read
        if (self._sampled() if sampled else self.fingerprint()) != fingerprint:
            raise FinalFailure(
                f"the tokens of {self.folder} are not those with which this run began: somebody replaced or damaged them; "
                f"{self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        own = all(part.kind == "text" for part in self.parts)
        return (
            f"delete {self.folder}, and the same command prepares it again"
            if own
            else "put the files of data.corpus back as they were"
        )

    def fingerprint(self) -> str:
        """SHA-256 over every byte of the token files, read when they are made and when the file system says that they have changed
        since. Other tokens under the same names have another one. Raises `RunFailure` for damaged files."""
        digest = sha256()
        for part in self.parts:
            self.streams(part)
            digest.update(self._digest(part).encode())
        return _EVERY_BYTE + digest.hexdigest()

    def require_unchanged(self) -> None:
        """Raises `RunFailure` where token files are not as they were written."""
        for part in self.parts:
            self.streams(part)
            if part.sha256 and self._digest(part) != part.sha256:
                raise RunFailure(
                    f"{self.folder / part.folder}: its token files are not as they were written: somebody changed or damaged them; "
                    f"{self._remedy}"
                )

    def _digest(self, part: PreparedPart) -> str:
        if part.kind == "text":
            return text_digest(self.folder, part.folder)
        ranges = file_digests([self.folder / part.folder / "validation.npy"], self.folder / DIGESTS)
        paths = [path for file in self.token_files(part) for path in file.paths]
        return "".join([*ranges, *file_digests(paths, self.folder.parent / DIGESTS)])

    def _sampled(self) -> str:
        """SHA-256 of samples spread over all tokens, and of their number: the fingerprint of earlier versions."""
        digest = sha256()
        for part in self.parts:
            for stream in self.streams(part):
                digest.update(len(stream).to_bytes(8, "little"))
                for sample in range(_SAMPLES):
                    digest.update(stream.read(sample * len(stream) // _SAMPLES, _SAMPLE_TOKENS).tobytes())
        return digest.hexdigest()

    def streams(self, part: PreparedPart) -> tuple[TokenStream, TokenStream]:
        """(training tokens, validation tokens) of a part, memory-mapped. Raises `RunFailure` for damaged files."""
        folder = self.folder / part.folder
        if part.kind == "text":
            try:
                train, validation = (all_tokens(open_indexed(folder / side).tokens) for side in ("train", "validation"))
            except RunFailure as error:
                raise RunFailure(f"{error}; {self._remedy}") from None
        else:
            train, validation = token_streams(self.token_files(part), read_array(folder / "validation.npy"))
        if (len(train), len(validation)) != (part.train_tokens, part.validation_tokens):
            raise RunFailure(
                f"{part.prefix or folder}: holds {len(train)} training and {len(validation)} validation tokens, but "
                f"{self.path} says {part.train_tokens} and {part.validation_tokens}: it has changed since; prepare the data again"
            )
        return train, validation

    def token_files(self, part: PreparedPart) -> list[TokenFile]:
        """The files of a part of token ids. Raises `RunFailure` where their list is damaged."""
        if part.kind == "megatron":
            return [TokenFile(part.prefix, "pair")]
        path = self.folder / part.folder / TOKEN_FILES
        try:
            return [TokenFile(**each) for each in json.loads(bounded(path))]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunFailure(
                f"{path}: cannot be read: {error}; delete {self.folder} and prepare the data again"
            ) from None

    def manifest_parts(self) -> list[dict[str, Any]]:
        """The entries of the parts in the cache folder's manifest. Raises `RunFailure` where that is damaged."""
        path = self.folder / "manifest.json"
        try:
            parts: list[dict[str, Any]] = json.loads(bounded(path, MAX_MANIFEST_BYTES))["parts"]
            if [part["kind"] for part in parts] != [part.kind for part in self.parts]:
                raise ValueError("it has other parts")
            return parts
        except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            raise RunFailure(
                f"{path}: is not the manifest of prepared data ({shortened(str(error))[1:-1]}); delete {self.folder} and prepare "
                f"the data again"
            ) from None

    def dump(self) -> str:
        """The JSON text of this description."""
        table = asdict(self)
        del table["path"]
        return json.dumps({"format": FORMAT, **table}, indent=1)


def text_digest(cache: Path, folder: str) -> str:
    """SHA-256 over every byte of the token files in a folder of a cache."""
    paths = [cache / folder / f"{side}{end}" for side in ("train", "validation") for end in (".bin", ".idx")]
    return sha256("".join(file_digests(paths, cache / DIGESTS)).encode()).hexdigest()


def open_prepared(path: Path | str) -> PreparedData:
    """Reads a description, or the `prepared.json` of a cache folder. Raises `RunFailure` if it is missing or damaged."""
    file = Path(path)
    try:
        file = file / "prepared.json" if file.is_dir() else file
        table: dict[str, Any] = json.loads(bounded(file))
        if table.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        parts = tuple(PreparedPart(**part) for part in table.pop("parts"))
        bos = tuple(table.pop("bos", ()))
        return PreparedData(path=file.absolute(), parts=parts, bos=bos, **table)
    except OSError as error:
        raise RunFailure(f"{file}: cannot be read: {error.strerror}; prepare the data again") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunFailure(f"{file}: is not a description of prepared data ({error}); prepare the data again") from None


def read_array(path: Path) -> np.ndarray:
    """An integer array that `prepare` wrote. Raises `RunFailure` when it is missing or damaged."""
    try:
        content: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RunFailure(f"{path}: cannot be read: {error}; delete its folder and prepare the data again") from None
    return content
