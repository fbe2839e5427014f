"""Text that streams, kept once for all who read it. No I/O."""

from bisect import bisect_right
from typing import Literal

from .protocol import MAX_TEXT

Kind = Literal["text", "thinking"]
#: Of a block: its kind, its message, its place in the message.
Key = tuple[Kind, str, int]


class TextStream:
    """One block of a message. Offsets and lengths count Unicode code points."""

    def __init__(self, key: Key, turn_id: str, run_id: str, text: str = "") -> None:
        self.kind, self.message_id, self.index = key
        self.turn_id = turn_id
        self.run_id = run_id
        self.length = 0
        self._pieces: list[str] = []
        self._ends: list[int] = []
        self.append(text)

    def append(self, text: str) -> None:
        if text:
            self.length += len(text)
            self._pieces.append(text)
            self._ends.append(self.length)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def piece(self, start: int, end: int) -> str:
        """The text from ``start`` on, as much as a frame takes, and not beyond ``end``."""
        place, parts, size = bisect_right(self._ends, start), [], 0
        while place < len(self._pieces) and size < MAX_TEXT and start + size < end:
            begin = self._ends[place] - len(self._pieces[place])
            offset = start + size - begin
            part = self._pieces[place][offset : offset + min(end - start, MAX_TEXT) - size]
            parts.append(part)
            size += len(part)
            place += 1
        text = "".join(parts)
        encoded = text.encode()
        # What is cut in the midst of a code point is left for the next one.
        return text if len(encoded) <= MAX_TEXT else encoded[:MAX_TEXT].decode(errors="ignore")

    def identity(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "turn_id": self.turn_id,
            "run_id": self.run_id,
            "message_id": self.message_id,
            "index": self.index,
        }
