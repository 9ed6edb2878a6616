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
        self._in_long_line = False
        self.restarted = False
        """Whether the last call read from the start again: what was given before no longer holds."""
        self.more = False
        """Whether the last call stopped before the end of the file."""

    def read(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """The objects of the lines that are new since the last call, of at most `most_bytes`; what is no object, or a line
        longer than that, is left out."""
        self.restarted = self.more = False
        try:
            with open(self._path, "rb") as file:
                self._check_same(file)
                file.seek(self._offset)
                content = file.read(most_bytes)
        except OSError:
            return []
        self.more = len(content) == most_bytes
        end = content.rfind(b"\n") + 1
        if end == 0:
            if self.more:
                self._offset, self._in_long_line = self._offset + len(content), True
            return []
        self._offset += end
        lines = content[: end - 1].split(b"\n")
        if self._in_long_line:
            lines, self._in_long_line = lines[1:], False
        return [row for line in lines if (row := json_object(line)) is not None]

    def _check_same(self, file: Any) -> None:
        inode = self._path.stat().st_ino
        size = file.seek(0, 2)
        if self._inode not in (0, inode) or size < self._offset:
            self._offset, self._in_long_line = 0, False
            self.restarted = True
        self._inode = inode
