"""A file of JSON lines followed while another process writes it."""

from pathlib import Path
from typing import Any

from fourfold.config.json_lines import json_object


class Follower:
    """Gives each complete line once. A file that shrank or was replaced is read from its start again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self.restarted = False
        """Whether the last call read from the start again: what was given before no longer holds."""

    def read(self) -> list[dict[str, Any]]:
        """The objects of the lines that are new since the last call; what is no object is left out."""
        self.restarted = False
        try:
            with open(self._path, "rb") as file:
                self._check_same(file)
                file.seek(self._offset)
                content = file.read()
        except OSError:
            return []
        complete = content.rpartition(b"\n")[0]
        if not complete:
            return []
        self._offset += len(complete) + 1
        return [row for line in complete.split(b"\n") if (row := json_object(line)) is not None]

    def _check_same(self, file: Any) -> None:
        inode = self._path.stat().st_ino
        size = file.seek(0, 2)
        if self._inode not in (0, inode) or size < self._offset:
            self._offset = 0
            self.restarted = True
        self._inode = inode
