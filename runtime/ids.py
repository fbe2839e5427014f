"""Fresh ids, and a look at those that a program gives. No I/O."""

import uuid

from ..journal.codec import encodable
from ..journal.errors import InvalidEvent
from ..journal.shapes import MAX_ID


def new_id() -> str:
    """32 hex digits, never given before."""
    return uuid.uuid4().hex


def check_id(name: str, value: object) -> None:
    """Raises InvalidEvent for what can be no id: the journal would refuse it, or keep another one in its place."""
    if not isinstance(value, str):
        wrong = f"must be a text, not {type(value).__name__}"
    elif not value:
        wrong = "is empty; give one, or none for a fresh one"
    elif len(value) > MAX_ID:
        wrong = f"has {len(value)} characters; at most {MAX_ID} are allowed"
    elif encodable(value) != value:
        wrong = "holds half a character (a lone surrogate), which cannot be written"
    else:
        return
    raise InvalidEvent(f"{name} {wrong}", type="turn/start", key=name)
