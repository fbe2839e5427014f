"""What a session held so far, read from its file for the loop; of a fork, what its parents said before it."""

import os
from pathlib import Path

from ..journal.events import Event
from ..journal.reader import read
from ..journal.scan import Consumer
from ..repair.session import fold
from .continuation.shapes import Facts
from .conversation import Conversation


def facts_of(path: Path, *, repaired: bool = False) -> Facts:
    """The journal at ``path`` as it stands on disk, ``repaired`` with the closers in memory. Writes nothing.

    Raises SessionNotFound, JournalDamaged, JournalUnsupported, JournalError.
    """
    conversation = Conversation()

    def begin() -> Consumer:
        nonlocal conversation
        conversation = Conversation()
        return conversation.observe

    session_id, state = fold(path, observe=begin, repaired=repaired)
    return Facts(session_id, state, conversation)


def conversation_of(path: str | os.PathLike[str]) -> Conversation:
    """The conversation of the journal at ``path``. Open the session for writing first: then nothing comes in between.

    Raises SessionNotFound, and JournalError where the file cannot be read.
    """
    conversation = Conversation()

    def observe(event: Event) -> None:
        conversation.observe(event)

    def begin() -> Consumer:
        nonlocal conversation
        conversation = Conversation()
        return observe

    read(path, observe=begin)
    return conversation
