"""Where sessions live: a small protocol, and its implementation over a root directory of files."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from . import files, listing, snapshot
from .errors import InvalidEvent, JournalConflict, JournalError, SessionNotFound
from .events import Event, JsonObject
from .findings import Verdict
from .lock import SessionLock
from .reader import JOURNAL, first_event, open_source
from .scan import Consumer, scan
from .shapes import SESSION_ID
from .state import State
from .writer import Hook, JournalWriter, draft, wall_ms

# `list` is a method's name below, so the classes cannot say it.
Events = list[Event]
Rows = list[JsonObject]
Ids = list[str]

SESSIONS: Final = "sessions"
TRASH: Final = "trash"
#: The LF and the sum that end a journal: what a snapshot's first line is compared with.
_END: Final = 43


class Writer(Protocol):
    """A session open for writing."""

    @property
    def next_seq(self) -> int: ...
    def append(self, event: Any, *, expected_seq: int | None = None) -> Event: ...
    def append_batch(self, events: Iterable[Any], *, expected_seq: int | None = None) -> list[Event]: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Store(Protocol):
    """A place for sessions. What each method raises is the contract, and the tests of it run against any backend."""

    def create(self, header: Any, batch: Iterable[Any] = ()) -> Writer:
        """A new session, durable with its first batch. Raises JournalConflict if the id is taken, InvalidEvent."""
        ...

    def open(self, session_id: str) -> Writer:
        """Open for writing, alone. Raises SessionNotFound, JournalLocked, and what keeps it from being written to."""
        ...

    def list(self) -> Rows:
        """Rows ``{session_id, name, last_activity, turns, verdict, labels, flagged, archived, unsettled, active_plan,
        pending_handoff, queued, admitted}``, by id; damaged sessions too. What a look at the file's ends cannot tell is
        None.
        """
        ...

    def read(self, session_id: str, after: int = -1) -> Iterator[Event]:
        """The events behind number ``after``, in order. Raises SessionNotFound, JournalError where it is unreadable."""
        ...

    def append(self, session_id: str, events: Iterable[Any], *, expected_seq: int | None = None) -> Events:
        """Append a batch durably to a session that nobody has open. Raises what ``open`` and the writer raise."""
        ...


def default_root() -> Path:
    """``$MAKA_HOME``, else ``$XDG_STATE_HOME/maka``, else ``~/.local/state/maka``.

    Raises SessionNotFound for a user who has no home directory.
    """
    if home := os.environ.get("MAKA_HOME"):
        return Path(home)
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / "maka"
    try:
        return Path.home() / ".local" / "state" / "maka"
    except RuntimeError:
        raise SessionNotFound(
            "there is no home directory to look for sessions in; set MAKA_HOME to where they are", path="~"
        ) from None


class FileStore:
    """Sessions as directories under ``root``, each with its journal. Implements Store."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        clock: Callable[[], int] = wall_ms,
        on_append: Hook | None = None,
        verdict: Callable[[State], Verdict] | None = None,
        places: Mapping[str, Path] | None = None,
    ) -> None:
        """``clock``, ``on_append`` and ``verdict`` are handed to every writer (see JournalWriter.open). ``places`` are
        journals that lie elsewhere, by session id: they are opened there, and listed nowhere.

        Raises SessionNotFound for a root that is empty or no path.
        """
        self._places = dict(places or {})
        self.root = _root(root) if root is not None else default_root()
        self._writer: dict[str, Any] = {"clock": clock, "on_append": on_append, "verdict": verdict}

    def directory(self, session_id: str) -> Path:
        """The session's directory, whether or not it is there. Raises SessionNotFound for what is no session id."""
        if not _is_id(session_id):
            raise SessionNotFound(
                f"{repr(session_id)[:200]} is not a session id (letters, digits, '.', '_', '-'; at most 128)",
                path=self.root,
            )
        return self.root / SESSIONS / session_id

    def path(self, session_id: str) -> Path:
        """The session's journal, whether or not it is there. Raises SessionNotFound for what is no session id."""
        elsewhere = self._places.get(session_id)
        return self.directory(session_id) / JOURNAL if elsewhere is None else elsewhere

    def create(self, header: Any, batch: Iterable[Any] = ()) -> JournalWriter:
        """See Store. The directories are made as needed, 0700. Raises JournalWriteError where that is refused."""
        header = draft(header)
        session_id = header.data.get("session_id")
        if not _is_id(session_id):
            raise InvalidEvent(
                "session/header: session_id is not a session id (letters, digits, '.', '_', '-'; at most 128)",
                type=header.type,
                key="session_id",
            )
        directory = self.directory(session_id)
        try:
            files.refuse_shared(place for place in (self.root, directory.parent, directory) if place.exists())
            files.make_dirs(directory)
        except OSError as error:
            raise files.write_error(error, directory, "create") from None
        return JournalWriter.create(directory / JOURNAL, header, batch, **self._writer)

    def open(self, session_id: str) -> JournalWriter:
        """See Store."""
        return JournalWriter.open(self.path(session_id), **self._writer)

    def read(self, session_id: str, after: int = -1) -> Iterator[Event]:
        """See Store."""
        events: list[Event] = []

        def begin() -> Consumer:
            events.clear()
            return events.append

        path = self.path(session_id)
        try:
            with open_source(path) as source:
                scan(source, begin)
        except OSError as error:
            raise JournalError(f"cannot read {path}: {error.strerror}; the bytes were not touched", path=path) from None
        return iter([event for event in events if event.seq > after])

    def append(self, session_id: str, events: Iterable[Any], *, expected_seq: int | None = None) -> Events:
        """See Store."""
        with self.open(session_id) as writer:
            appended = writer.append_batch(events, expected_seq=expected_seq)
            writer.flush()
        return appended

    def list(self) -> Rows:
        """See Store. Nothing is folded: snapshots that fit, else header and end of the file. Raises as ``ids`` does."""
        place = os.path.join(self.root, SESSIONS)
        rows = (_row(f"{place}/{name}", name) for name in self.ids())
        return [row for row in rows if row is not None]

    def ids(self) -> Ids:
        """What is named as a session under the root, by id; whether it holds a journal, ``row`` tells. Raises
        SessionNotFound for a root that is no directory, and JournalError where it cannot be read; a root that is not
        there has no sessions.
        """
        place = os.path.join(self.root, SESSIONS)
        try:
            return sorted(filter(SESSION_ID.fullmatch, os.listdir(place)))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise SessionNotFound(
                f"{self.root} is no directory; name the root that holds sessions/", path=self.root
            ) from None
        except OSError as error:
            raise JournalError(
                f"cannot list {place}: {error.strerror}; make it readable for this user", path=place
            ) from None

    def row(self, session_id: str) -> JsonObject | None:
        """The row of ``list`` of one session; None where there is none."""
        return _row(str(self.path(session_id).parent), session_id)

    def delete(self, session_id: str) -> Path:
        """Move a session to the trash folder; returns where it went. Nothing is removed.

        Raises SessionNotFound, JournalLocked while a writer has it, JournalConflict while a fork refers to it,
        JournalWriteError.
        """
        path = self.path(session_id)
        with open_source(path):
            pass
        with SessionLock.acquire(path.parent):
            trash = self.root / TRASH
            try:
                for fork in self._forks_of(session_id):
                    raise JournalConflict(
                        f"{path} is the parent of the session {fork}; delete that one first, or keep both", path=path
                    )
                files.make_dirs(trash)
                target, n = trash / session_id, 1
                while target.exists():
                    n += 1
                    target = trash / f"{session_id}.{n}"
                os.rename(path.parent, target)
                files.sync_dir(trash)
                files.sync_dir(path.parent.parent)
            except OSError as error:
                raise files.write_error(error, path.parent, "move to the trash") from None
        return target

    def trashed(self, session_id: str) -> Path | None:
        """Where ``delete`` has moved the newest session of that id; None: it has moved none. Raises SessionNotFound for
        what is no session id.
        """
        trash, newest = self.root / TRASH, None
        there, n = trash / self.directory(session_id).name, 1
        while there.exists():
            newest, n = there, n + 1
            there = trash / f"{session_id}.{n}"
        return newest

    def _forks_of(self, session_id: str) -> Iterator[str]:
        for name in sorted(os.listdir(self.root / SESSIONS)):
            try:
                with open_source(self.root / SESSIONS / name / JOURNAL) as source:
                    header = first_event(source)
            except (JournalError, OSError):
                continue
            parent = header.data.get("parent") if header is not None else None
            if isinstance(parent, dict) and parent.get("session_id") == session_id:
                yield name


def _is_id(value: object) -> bool:
    return isinstance(value, str) and SESSION_ID.fullmatch(value) is not None


def _root(root: object) -> Path:
    """Raises SessionNotFound for what cannot have been meant."""
    if not isinstance(root, str | os.PathLike) or not os.fspath(root):
        said = "an empty text" if root == "" else f"of type {type(root).__name__}"
        raise SessionNotFound(f"the root is {said}; give the directory that sessions are kept in", path="")
    return Path(root)


def _row(directory: str, name: str) -> JsonObject | None:
    """The row of one session; None for a directory without a journal. Never raises for what it finds."""
    try:
        fd = os.open(f"{directory}/{JOURNAL}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return listing.row(name, "unreadable")
    try:
        size = os.fstat(fd).st_size
        found = snapshot.peek(f"{directory}/{snapshot.SNAPSHOT}")
        if found is not None and found.size == size:
            end = os.pread(fd, _END, max(0, size - _END))
            if end == b',"sum":"%b"}\n' % found.sum.encode():
                return {**listing.row(name), **found.row, "session_id": name, "verdict": found.verdict or "unchecked"}
        if size == 0:
            return listing.row(name, "unreadable")
        tail = os.pread(fd, listing.TAIL, max(0, size - listing.TAIL))
        whole = size <= listing.TAIL
        head = tail if whole else os.pread(fd, listing.HEAD, 0)
        return listing.from_ends(name, head, tail, whole)
    except OSError:
        return listing.row(name, "unreadable")
    finally:
        os.close(fd)
