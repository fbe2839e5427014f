"""What is over, kept as JSON text: a long session folds into little memory and a snapshot costs next to nothing. No I/O.

A row is a list whose first item is its key. Objects for each of a million ended turns would need gigabytes and slow the
garbage collector; their text needs a few hundred bytes each and is taken over from a snapshot as it is.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import orjson


@attrs.define(slots=True)
class Closed:
    """Rows in the order in which they were closed. ``text`` holds one JSON list a line."""

    text: bytearray = attrs.field(factory=bytearray)
    _at: dict[str, int] | None = attrs.field(factory=dict, eq=False, repr=False)

    def add(self, row: list[Any]) -> None:
        """Append a row. A later row of a key takes the place of an earlier one for ``get``."""
        self.add_text(row[0], orjson.dumps(row))

    def add_text(self, key: str, row: bytes) -> None:
        if self._at is not None:
            self._at[key] = len(self.text)
        self.text += row
        self.text += b"\n"

    def __contains__(self, key: object) -> bool:
        return key in (self._at if self._at is not None else self._index())

    def __len__(self) -> int:
        return len(self._at if self._at is not None else self._index())

    def get(self, key: str) -> list[Any] | None:
        start = (self._at if self._at is not None else self._index()).get(key)
        if start is None:
            return None
        row: list[Any] = orjson.loads(memoryview(self.text)[start : self.text.index(b"\n", start)])
        return row

    def __iter__(self) -> Iterator[list[Any]]:
        """Rows, oldest first, parsed a stretch at a time."""
        start, text = 0, self.text
        while start < len(text):
            cut = text.find(b"\n", start + (1 << 20))
            end = len(text) if cut < 0 else cut + 1
            yield from orjson.loads(b"[" + bytes(text[start : end - 1]).replace(b"\n", b",") + b"]")
            start = end

    def _index(self) -> dict[str, int]:
        self._at = at = {}
        start = 0
        for row in self:
            at[row[0]] = start
            start = self.text.index(b"\n", start) + 1
        return at

    def to_json(self) -> str:
        return self.text.decode()

    @classmethod
    def from_json(cls, text: str) -> "Closed":
        """Raises ValueError or TypeError where ``text`` is no such text."""
        if not isinstance(text, str) or (text and not text.endswith("\n")):
            raise ValueError("not the text of closed rows")
        return cls(bytearray(text.encode()), None)
