"""The files of a run's folder by which its ranks start, as the launch wrote them: put back where somebody changed them."""

import os
from contextlib import suppress

from fourfold.config import RunFailure
from fourfold.config.errors import unwritable
from fourfold.launch.run_folder import DATA_FILE, LOGS, RUN_FILE, RunFolder

_EDITED = ".edited"


class KeptFiles:
    """`run.toml` and `data.json` of one launch: ranks that are started again are ranks of the same run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._texts: dict[str, bytes] = {}
        self.take()

    def take(self) -> None:
        """Takes both files as they stand: the launch itself has just written them."""
        self._texts = {}
        for name in (RUN_FILE, DATA_FILE):
            with suppress(OSError):
                self._texts[name] = (self._folder.path / name).read_bytes()

    def put_back(self) -> list[str]:
        """Puts back what differs, and says so in a line each; a changed file stays beside its place, as `run.toml.edited`. Raises
        `RunFailure`."""
        told = []
        for name, text in self._texts.items():
            path = self._folder.path / name
            try:
                found = path.read_bytes() if path.exists() else None
                if found == text:
                    continue
                if found is not None:
                    os.replace(path, path.with_name(name + _EDITED))
                aside = path.with_name(f".{name}.{os.getpid()}.tmp")
                aside.write_bytes(text)
                os.replace(aside, path)
            except OSError as error:
                raise RunFailure(unwritable(path, error)) from None
            told.append(_told(str(path), found is None))
        with suppress(OSError):
            (self._folder.path / LOGS).mkdir(exist_ok=True)
        return told

    @property
    def are_there(self) -> bool:
        """Whether the folder is: one of the files may have been deleted, and not both."""
        return any((self._folder.path / name).exists() for name in self._texts)


def _told(path: str, is_deleted: bool) -> str:
    if is_deleted:
        return f"{path} was deleted while the run went on, and is there again"
    return (
        f"{path} was changed while the run went on, which keeps what it began with: the changed file is {path}{_EDITED}; to change "
        f"a run, stop it and give its command with the new values"
    )
