"""What is over, kept as JSON text: long sessions fold into little memory, and snapshots cost next to nothing. No I/O.

A row is a list whose first item is its key. Objects for each of a million ended turns would need gigabytes and slow the
garbage collector; their text needs a few hundred bytes each and is taken over from a snapshot as it is.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import orjson


@attrs.define(slots=True)
class Closed:
    """Rows in the order in which they were closed. ``text`` holds one JSON list a line.

    ``sealed`` is the length of what a fork has from its parents. The index is built when a row is first looked for.
    """

    text: bytearray = attrs.field(factory=bytearray)
    sealed: int = 0
    _at: dict[str, int] | None = attrs.field(factory=dict, eq=False, repr=False)

    def add(self, row: list[Any]) -> None:
        """Append a row. A later row of a key takes the place of an earlier one when looked for."""
        self.add_text(row[0], orjson.dumps(row))

    def add_text(self, key: str, row: bytes) -> None:
        """Append a row that is JSON text already, without LF."""
        if self._at is not None:
            self._at[key] = len(self.text)
        self.text += row
        self.text += b"\n"

    def seal(self) -> None:
        """What stands so far is a parent's."""
        self.sealed = len(self.text)

    def __contains__(self, key: object) -> bool:
        return key in self._places()

    def own(self, key: str) -> bool:
        """Is there a row of this key that no parent wrote?"""
        return self._places().get(key, -1) >= self.sealed

    def get(self, key: str) -> list[Any] | None:
        """The newest row of a key."""
        start = self._places().get(key)
        if start is None:
            return None
        row: list[Any] = orjson.loads(self.text[start : self.text.index(b"\n", start)])
        return row

    def __iter__(self) -> Iterator[list[Any]]:
        """Rows, oldest first, parsed a stretch at a time."""
        return self._rows(0)

    def inherited(self) -> Iterator[list[Any]]:
        """The parents' rows, oldest first."""
        return self._rows(0, self.sealed)

    def since(self) -> Iterator[list[Any]]:
        """The rows that no parent wrote, oldest first."""
        return self._rows(self.sealed)

    def _rows(self, start: int, stop: int | None = None) -> Iterator[list[Any]]:
        text = self.text
        stop = len(text) if stop is None else stop
        while start < stop:
            cut = text.find(b"\n", min(start + (1 << 20), stop - 1), stop)
            end = stop if cut < 0 else cut + 1
            yield from orjson.loads(b"[" + bytes(text[start : end - 1]).replace(b"\n", b",") + b"]")
            start = end

    def _places(self) -> dict[str, int]:
        if self._at is None:
            self._at = {}
            start = 0
            for row in self:
                self._at[row[0]] = start
                start = self.text.index(b"\n", start) + 1
        return self._at

    def to_json(self) -> list[Any]:
        return [self.sealed, self.text.decode()]

    @classmethod
    def from_json(cls, value: Any) -> "Closed":
        """Raises ValueError or TypeError where ``value`` was not made by ``to_json``."""
        sealed, text = value
        if sealed.__class__ is not int or (text and text[-1] != "\n"):
            raise ValueError("not the text of closed rows")
        return cls(bytearray(text.encode()), sealed, None)
