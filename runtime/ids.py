"""Fresh ids. No I/O."""

import uuid


def new_id() -> str:
    """32 hex digits, never given before."""
    return uuid.uuid4().hex
