"""Copies of checkpoints at another place: file by file, read again where they lie, the manifest last.

PLACE/owner.json     the run that the copies are of
PLACE/step-000500/   a copy; without its manifest it is none
PLACE/run/           files of the run's folder, by which it goes on where that folder is lost
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fourfold.checkpoint import folders
from fourfold.checkpoint.checked_file import CheckedFile
from fourfold.checkpoint.file_bytes import CHUNK_BYTES, FileDigest, source_of
from fourfold.checkpoint.manifest import how_to_go_on, read_manifest
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.config.remote_path import is_remote
from fourfold.config.whole_file import write_whole

RUN = "run"
"""The folder of the run's own files beside its copies."""
_THREADS = 4
"""Files that are copied at once."""
_BLOCK_CHUNKS = 64


def copy_checkpoint(source: Path, target: Path, arrived: set[tuple[str, str]], guard: Callable[[], None]) -> int:
    """Copies a complete checkpoint; its bytes. `arrived`: files, each with the name of its save, that an earlier try left whole;
    they are not sent again, and those that arrive are added. `guard`: called before the copy becomes one; raises where it
    must not. Raises `OSError`, and `DamagedCheckpoint` where the checkpoint itself is not what was saved."""
    manifest = read_manifest(source)
    text = (source / folders.MANIFEST).read_text(encoding="utf-8")
    if (target / folders.MANIFEST).is_file():  # of another save of this step
        folders.remove_checkpoint(target)
    target.mkdir(parents=True, exist_ok=True)
    left = [name for name in manifest.files if (manifest.attempt, name) not in arrived]

    def copy(name: str) -> None:
        copy_file(source / name, target / name, manifest.files[name])
        arrived.add((manifest.attempt, name))

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy, left))
    guard()
    write_text(target / folders.MANIFEST, text)
    return sum(file.size_bytes for file in manifest.files.values())


def copy_file(source: Path, target: Path, record: FileDigest) -> None:
    """Copies a rank's file and reads the copy back against its digests. Raises as `copy_checkpoint`."""
    read_from = source_of(source)
    with read_from.opened() as read, target.open("wb") as file:
        for start in range(0, record.size_bytes, _BLOCK_CHUNKS * CHUNK_BYTES):
            block = memoryview(bytearray(min(_BLOCK_CHUNKS * CHUNK_BYTES, record.size_bytes - start)))
            read(block, start)
            file.write(block)
    try:
        verify_file(target, record)
    except DamagedCheckpoint as error:
        verify_file(source, record)
        raise OSError(f"a copy did not arrive as it was sent: {error.problem}") from None


def verify_file(path: Path, record: FileDigest) -> None:
    """Reads a rank's file in full. Raises `DamagedCheckpoint`."""
    file = CheckedFile(path, record, how_to_go_on(path.parent))
    for start in range(0, len(file.all_chunks), _BLOCK_CHUNKS):
        file.verify(file.all_chunks[start : start + _BLOCK_CHUNKS])


def copy_text_files(source: Path, target: Path, names: list[str]) -> None:
    """Copies files of a run's folder as far as they are there; what grows, to the end that it has now. Raises `OSError`."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = source / name
        if not path.is_file():
            continue
        if "/" in name:
            (target / name.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        with path.open("rb") as content, (target / name).open("wb") as file:
            left = path.stat().st_size
            for block in iter(partial(content.read, min(left, 1 << 24)), b""):
                file.write(block[:left])
                left -= len(block)
                if left <= 0:
                    break


def write_text(path: Path, text: str) -> None:
    """Writes a small file in one piece, wherever it lies. Raises `OSError`."""
    if is_remote(path):
        path.write_text(text, encoding="utf-8")
    else:
        write_whole(path, text)
