"""From `[data]` to tokens on disk: scans the corpus, reuses the cache that fits it, or builds it.

The cache is a folder that is there in full or not at all, whoever else builds it and whenever it is interrupted.
"""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np

from fourfold.config import RunConfig, RunFailure, UserError
from fourfold.config.errors import shortened
from fourfold.config.schema import CorpusPart, DataSection
from fourfold.config.whole_file import bounded, write_whole
from fourfold.data.build import Corpus, Report, build_cache
from fourfold.data.corpus import token_files
from fourfold.data.manifest import SplitSurvey, scan_text
from fourfold.data.prepared import MAX_MANIFEST_BYTES, PreparedData, PreparedPart, open_prepared, read_array
from fourfold.data.token_corpus import DIGESTS, TokenCorpus, scan_tokens
from fourfold.data.tokenizer import ByteTokenizer
from fourfold.data.tokenizer_file import TokenizerSpec, parse_tokenizer, read_tokenizer_file
from fourfold.data.weights import fixed_shares, sources_of

_ENCODING = 3
"""Rises when the same files, tokenizer and settings give other tokens than before: older caches then stay unused."""

_TOKEN_RULE = "by content"
"""Changes when documents of token ids are divided in another way."""
_OF_ONE_KIND = {field.name: field.default for field in fields(PreparedPart) if field.default is not MISSING} | {
    "prefix": ""
}
"""Fields that one kind of corpus has alone."""


def ensure_folder(folder: Path, build: Callable[[Path], None]) -> bool:
    """Makes `folder` by `build(temporary folder)` and a rename, unless it is there. Returns whether it was built here.

    One process builds while others that want the same folder wait for it; where the file system has no locks both
    build and the first rename counts. The next build removes what an interrupted one left behind. Raises
    `RunFailure` when the disk refuses.
    """
    if folder.is_dir():
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{folder.name}.lock") as alone:
            if folder.is_dir():
                return False
            if alone:
                for leftover in folder.parent.glob(f".{folder.name}.building-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.building-", dir=folder.parent) as outer:
                # A temporary folder is its owner's alone; one made inside it has the usual permissions.
                inner = Path(outer, folder.name)
                inner.mkdir()
                build(inner)
                return _rename(inner, folder)
    except OSError as error:
        raise RunFailure(f"data.directory = {str(folder.parent)!r}: cannot be written: {error}") from None


def _rename(temporary: Path, folder: Path) -> bool:
    try:
        temporary.rename(folder)
    except OSError:
        if folder.is_dir():
            return False
        raise
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds an advisory lock, which the system drops when the process ends. Yields False where there are no locks."""
    with open(path, "w") as stream:
        yield _lock(stream)


def _lock(stream: IO[str]) -> bool:
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True


def unigram_entropies(
    train_counts: Sequence[np.ndarray], validation_counts: Sequence[np.ndarray], weights: Sequence[float]
) -> tuple[float, float]:
    """(validation cross-entropy, training entropy) in nats per token, for parts blended by `weights` (which sum to 1).

    train_counts, validation_counts: occurrences of each token id in each part, int64 [vocab_size] each.
    With c the counts of a part of N training tokens and V ids, its smoothed distribution is q(t) = (c(t) + 1) / (N + V)
    (Laplace), that of the blend is q = sum of w q, and the cross-entropy is -sum p(t) ln q(t), p the validation shares.
    The training entropy is that of the unsmoothed training shares.
    """
    smoothed = _blend([(counts + 1) / (counts.sum() + len(counts)) for counts in train_counts], weights)
    train = _blend([_shares(counts) for counts in train_counts], weights)
    validation = _blend([_shares(counts) for counts in validation_counts], weights)
    present = train[train > 0]
    return float(-(validation * np.log(smoothed)).sum()), float(-(present * np.log(present)).sum())


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / max(int(counts.sum()), 1)


def _blend(distributions: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    return np.sum([weight * values for weight, values in zip(weights, distributions, strict=True)], axis=0)


def prepare(section: DataSection, report: Report) -> PreparedData:
    """Builds the tokens of a corpus, or finds them built, below `section.directory`.

    The cache folder's name holds the identity of the corpus, of the tokenizer and of the settings that shape the
    tokens: every call reads the corpus to compute it, so that a changed file is a new folder. Any number of processes
    may call this at once. `report` is called with a line of text now and then. Raises `UserError` and `RunFailure`.
    """
    return _prepare(section, parse_tokenizer(section.tokenizer, section.eos, section.bos), report)


def prepare_validation(config: RunConfig, prepared: PreparedData, report: Report) -> dict[str, PreparedData]:
    """The data of each of `run.validation` by its name, all for validation, in the tokens of `prepared`. Raises `UserError` that
    names the set, and `RunFailure`."""
    spec, found = _tokenizer_of(prepared), {}
    for stated in config.run.validation:
        changed = {"corpus": stated.corpus, "token_dtype": stated.token_dtype or config.data.token_dtype}
        section = config.data.model_copy(
            update={**changed, "validation_every": 1, "validation_key": "", "document_mask": False, "bos": "auto"}
        )
        try:
            found[stated.name] = _prepare(section, spec, report)
        except UserError as error:
            raise UserError(f"run.validation {stated.name!r}: {error}") from None
    return found


def prepare_in_tokens_of(prepared: PreparedData, section: DataSection, report: Report) -> PreparedData:
    """Another corpus in the tokens of prepared data, whatever tokenizer the section names. Raises as `prepare` does."""
    return _prepare(section, _tokenizer_of(prepared), report)


def _tokenizer_of(prepared: PreparedData) -> TokenizerSpec:
    """The tokenizer of prepared data, as one of a file."""
    digest = sha256(read_tokenizer_file(prepared.tokenizer_path).content).hexdigest()[:12]
    begin = "".join(f"-bos{number}" for number in prepared.bos)
    identity = f"file-{digest}-eos{prepared.eos}{begin}"
    return TokenizerSpec("file", identity, 0, prepared.tokenizer_path, prepared.eos, prepared.bos)


def _prepare(section: DataSection, spec: TokenizerSpec, report: Report) -> PreparedData:
    corpora = [_scan(part, section, spec) for part in sources_of(section)]
    corpus_id = _corpus_id(corpora)
    folder = Path(section.directory).expanduser().absolute() / _folder_name(corpus_id, corpora, section, spec)
    build = partial(
        build_cache, corpus_id=corpus_id, corpora=corpora, spec=spec, tokenizer_name=section.tokenizer, report=report
    )
    if not ensure_folder(folder, build):
        report(f"tokens found in {folder}")
    prepared = _describe(folder, corpora, section, fixed_shares(section))
    _check_document_mask(prepared, section)
    return prepared


def _scan(part: CorpusPart, section: DataSection, spec: TokenizerSpec) -> Corpus:
    name, directory = part.path, Path(section.directory)
    files = token_files(name, directory, part.token_dtype or section.token_dtype or "")
    if not files:
        return scan_text(name, section)
    kind = "is a Megatron pair, which holds" if files[0].kind == "pair" else "holds"
    if spec.kind == "bpe":
        raise UserError(
            f"data.tokenizer = {section.tokenizer!r}: data.corpus {name!r} {kind} token ids and no text to train a "
            "tokenizer on; what "
            'works: the path of the tokenizer.json it was made with, or "bytes"'
        )
    if section.bos is True:
        raise UserError(
            f"data.bos = true: data.corpus {name!r} {kind} token ids, which are read as they are; leave data.bos out"
        )
    survey = SplitSurvey(section.validation_every, section.validation_key)
    eos = spec.eos if spec.eos is not None else ByteTokenizer.eos
    return scan_tokens(name, files, survey, eos, directory.expanduser() / DIGESTS)


def _corpus_id(corpora: Sequence[Corpus]) -> str:
    if len(corpora) == 1:
        return corpora[0].corpus_id
    return sha256("\n".join(corpus.corpus_id for corpus in corpora).encode()).hexdigest()


def _folder_name(corpus_id: str, corpora: Sequence[Corpus], section: DataSection, spec: TokenizerSpec) -> str:
    # Files of token ids stay where they are, so the same files in another place need a description of their own.
    places = [[_TOKEN_RULE, *map(asdict, corpus.files)] for corpus in corpora if isinstance(corpus, TokenCorpus)]
    keyed = [section.validation_key] if section.validation_key else []
    settings = json.dumps([_ENCODING, section.text_key, section.validation_every, places, *keyed])
    return f"{corpus_id[:16]}-{spec.identity}-{sha256(settings.encode()).hexdigest()[:8]}"


def _describe(folder: Path, corpora: Sequence[Corpus], section: DataSection, shares: Sequence[float]) -> PreparedData:
    """The description of a cache folder for this run. Its weights, and the names that it asks by, decide no token: another run
    that finds the same tokens has a description of its own, in which it finds its names."""
    found = _from_manifest(folder, shares)
    parts = tuple(
        replace(part, name=corpus.name, **_left_out(corpus)) for part, corpus in zip(found.parts, corpora, strict=True)
    )
    prepared = replace(found, tokenizer=section.tokenizer, parts=parts)
    if prepared != found or len(shares) > 1:
        prepared = replace(prepared, path=folder / f"prepared-{sha256(prepared.dump().encode()).hexdigest()[:8]}.json")
    if not prepared.path.exists():
        try:
            write_whole(prepared.path, prepared.dump())
        except OSError as error:
            raise RunFailure(f"{prepared.path}: cannot be written: {error}") from None
    prepared = open_prepared(prepared.path)
    prepared.require_unchanged()
    return prepared


def _left_out(corpus: Corpus) -> dict[str, Any]:
    return {} if isinstance(corpus, TokenCorpus) else corpus.left_out()


def _from_manifest(folder: Path, shares: Sequence[float]) -> PreparedData:
    """The description for the run that made the folder."""
    source = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(bounded(source, MAX_MANIFEST_BYTES))
        stated = [
            {**_OF_ONE_KIND, **part, "weight": share} for part, share in zip(manifest["parts"], shares, strict=True)
        ]
        parts = tuple(PreparedPart(**{each.name: part[each.name] for each in fields(PreparedPart)}) for part in stated)
        made_with = {key: manifest[key] for key in ("corpus_id", "tokenizer", "vocab_size", "eos")}
        begin = tuple(manifest["bos"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise RunFailure(
            f"{source}: is not the manifest of prepared data ({shortened(str(error))[1:-1]}); delete {folder} and prepare the data "
            "again"
        ) from None
    counts = [read_array(folder / part.folder / "counts.npy") for part in parts]
    validation_nats, train_nats = unigram_entropies([c[0] for c in counts], [c[1] for c in counts], shares)
    return PreparedData(
        path=folder / "prepared.json",
        **made_with,
        bos=begin,
        parts=parts,
        unigram_entropy_nats=validation_nats,
        unigram_train_entropy_nats=train_nats,
    )


def _check_document_mask(prepared: PreparedData, section: DataSection) -> None:
    """A mask that finds no end of a document would do nothing, silently."""
    if not section.document_mask:
        return
    for part in prepared.parts:
        if part.kind != "text" and not read_array(prepared.folder / part.folder / "counts.npy")[0, prepared.eos]:
            raise UserError(
                f"data.document_mask = true: {'the Megatron pair ' if part.prefix else ''}{part.name!r} holds no end-of-text (id "
                f"{prepared.eos} of {section.tokenizer!r}), so documents cannot be told apart; what works: document_mask = false, "
                f"{'or a pair written with --append-eod' if part.prefix else 'or data.eos = the id that ends its documents'}"
            )
