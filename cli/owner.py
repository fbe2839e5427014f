"""Whether it is the host of a root that has a session open: how that is said, and how it is asked to let go."""

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..journal.errors import JournalLocked, SessionNotFound

if TYPE_CHECKING:
    from ..runtime.host.endpoint import Registration

T = TypeVar("T")

#: Seconds in which a host that is alive lets go of a session.
_PATIENCE: Final = 5.0
#: How a turn stands → the verb for it, where it is another than in a table.
_STANDS: Final = {"admitted": "is about to begin"}


def host_of(error: JournalLocked) -> "Registration | None":
    """The host of the session's root, where it is the one that holds this lock. The registration is a hint."""
    if error.path is None or error.holder is None:
        return None
    return _registered(Path(os.path.realpath(error.path)).parent, error.holder)


def host_with(session: Path) -> "Registration | None":
    """The host that has the session of this directory open; None where none has."""
    from ..journal.lock import holder, is_locked

    directory = Path(os.path.realpath(session))
    held = holder(directory)
    return _registered(directory, held) if held is not None and is_locked(directory) else None


def _registered(session: Path, holder: dict[str, Any]) -> "Registration | None":
    from ..journal.store import SESSIONS
    from ..runtime.host.endpoint import read_registration

    if session.parent.name != SESSIONS:
        return None
    registered = read_registration(session.parents[1])
    own = registered is not None and registered.pid == holder.get("pid") and holder.get("host") == os.uname().nodename
    return registered if own else None


def locked(error: JournalLocked) -> str:
    """The error's sentence, or where the root's host has the session open, one that names the way through it."""
    registered = host_of(error)
    if registered is None:
        return str(error)
    session = Path(str(error.path)).parent
    if (runs := under_way(session, registered)) is not None:
        return f"{runs}, which stops that turn too, then try again"
    name, below = quote(session.name), _below(registered)
    return (
        f"session {name} is open in the host of {registered.root} (process {registered.pid}), which needs it; go on "
        f"with it there, with `maka run --session {name}{below} TEXT` or `maka chat --session {name}{below}`; or end "
        f"the host with `maka host stop{below}`, then try again"
    )


def under_way(session: Path, host: "Registration") -> str | None:
    """That the host runs a turn of the session in this directory, and what can be done; None where it runs none.

    The sentence ends with how the host is ended.
    """
    from ..journal.reader import JOURNAL
    from ..repair.session import survey
    from . import documents
    from .under_way import WORDS

    try:
        found = survey(session / JOURNAL)
    except SessionNotFound:
        return None
    live = documents.live(found)
    if live is None or not live["turns"]:
        return None
    turn = live["turns"][-1]
    number = next((row["turn"] for row in found.turns() if row["turn_id"] == turn["turn_id"]), "?")
    name, below = quote(session.name), _below(host)
    return (
        f"turn {number} of session {name} {_STANDS.get(turn['status'], WORDS[turn['status']])} in the host of "
        f"{host.root} (process {host.pid}), so nothing is to be mended or gone on with; watch, answer or stop it with "
        f"`maka chat --session {name}{below}`, or end the host with `maka host stop{below}`"
    )


def _below(host: "Registration") -> str:
    """``--root`` for a command, where the host's is not the one that is meant without."""
    from ..journal.store import default_root

    try:
        usual = os.path.realpath(default_root())
    except SessionNotFound:
        usual = ""
    return "" if usual == host.root else f" --root {quote(host.root)}"


def released(work: Callable[[], T], *, ask: bool = True) -> T:
    """What ``work`` gives. Where the root's host has the session open it is asked to let go, and ``work`` done again.

    Raises JournalLocked where another process has it, and where the host needs it, or ``ask`` is False.
    """
    try:
        return work()
    except JournalLocked as error:
        registered = host_of(error) if ask else None
        if registered is None or not _let_go(error):
            raise
    return work()


def _let_go(error: JournalLocked) -> bool:
    import asyncio

    from ..runtime.errors import RuntimeFailure
    from ..runtime.host import connect

    session = Path(os.path.realpath(str(error.path))).parent

    async def ask() -> None:
        async with connect(session.parents[1], surface="cli", timeout=_PATIENCE, reconnect=False) as client:
            await client.release_session(session.name)

    try:
        asyncio.run(ask())
    except RuntimeFailure:
        return False
    return True
