"""Fresh ids, and a look at those that a program gives. No I/O."""

import uuid

from ..journal.codec import encodable
from ..journal.errors import InvalidEvent
from ..journal.shapes import MAX_ID


def new_id() -> str:
    """32 hex digits, never given before."""
    return uuid.uuid4().hex


def unsuitable(value: object) -> str | None:
    """Why a value can be no id: the journal would refuse it, or keep another one in its place."""
    if not isinstance(value, str):
        return f"must be a text, not {type(value).__name__}"
    if not value:
        return "is empty; give one, or none for a fresh one"
    if len(value) > MAX_ID:
        return f"has {len(value)} characters; at most {MAX_ID} are allowed"
    if encodable(value) != value:
        return "holds half a character (a lone surrogate), which cannot be written"
    return None


def check_id(name: str, value: object) -> None:
    """Raises InvalidEvent for what can be no id."""
    if (wrong := unsuitable(value)) is not None:
        raise InvalidEvent(f"{name} {wrong}", type="turn/start", key=name)
