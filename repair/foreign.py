"""A session file of another tool as a view: what an import would make of it, what is wrong. Never writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Final

import attrs

from ..journal.errors import JournalError, SessionNotFound
from ..journal.events import Event, JsonObject
from ..journal.findings import FindingList, Verdict, verdict_of
from ..journal.foreign import reading
from ..journal.foreign.detect import detect
from ..journal.foreign.dsh import generation
from ..journal.foreign.findings import Report
from ..journal.foreign.records import MAIN
from ..journal.history import History
from ..journal.reader import FileSource, open_source
from ..journal.state import State
from .closers import plan_closers
from .plan import appended_json
from .session import facts_of

#: How a journal of ours begins: no foreign file is looked for behind it.
_OURS: Final = b'{"seq":0,'
EMPTY: Final = "empty"
#: What is looked into in a directory, and in how many folders to tell whether there is any.
ENDINGS: Final = (".jsonl", ".zstd")
_FOLDERS: Final = 200
#: What a person is told that a file of a format is; of others it is an array.
_SAID: Final = {
    "claude-code": "a session file of Claude Code",
    "codex": "a session file of Codex",
    "dsh": "a session file of DeepSeek Harness",
    "pi": "a session file of pi",
}


@attrs.frozen
class Opened:
    """A foreign file, and the originals beside it that a migration of its tool left."""

    format: str
    raw: FileSource
    older: tuple[Path, ...] = ()

    @property
    def path(self) -> Path:
        return self.raw.path


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Opened | None]:
    """The foreign file, or None where it is none that we know, or a journal. A directory of DeepSeek Harness stands for
    its newest generation. Raises SessionNotFound, and JournalError where it cannot be read.
    """
    path, older = _file_of(Path(path))
    with open_source(path) as raw:
        format = None if raw.read(0, len(_OURS)) == _OURS else detect(raw, path.name)
        if format is None or format == "maka":
            yield None
        else:
            yield Opened(format, raw, older)


def foreign(
    target: str | os.PathLike[str], *, histories: bool = False, events: bool = False
) -> "ForeignSession | None":
    """What a path stands for, if that is a session file of another tool. Raises JournalError where it is unreadable."""
    path = Path(target)
    if "\0" in str(target) or not path.exists() or (path.is_dir() and not generations(path)):
        return None
    with opened(path) as found:
        return None if found is None else ForeignSession(found, histories=histories, events=events)


def no_journal(path: str | os.PathLike[str]) -> str | None:
    """What a file is that was taken for a journal, and what makes one of it, in a sentence; None where it is of no tool
    that we know.
    """
    try:
        with opened(path) as found:
            format = EMPTY if found is None else found.format
    except (JournalError, OSError):
        return None
    if format == EMPTY:
        return None
    told = _SAID.get(format, f"an array of messages ({format})")
    return f"{path} is {told}, and no journal; make one of it with `maka journal import {quote(os.fspath(path))}`"


def session_below(directory: Path) -> Path | None:
    """A session file of another tool in a directory, if one is soon found."""
    for place, folders, names in islice(os.walk(directory), _FOLDERS):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if name.endswith(ENDINGS) and path.is_file() and no_journal(path) is not None:
                return path
    return None


def _file_of(path: Path) -> tuple[Path, tuple[Path, ...]]:
    """The file that a path stands for, and of a directory the older generations beside it."""
    if not path.is_dir():
        return path, ()
    found = generations(path)
    if not found:
        raise SessionNotFound(f"there is no session file in {path}; name the file itself", path=path)
    return found[0], tuple(found[1:])


def generations(directory: Path) -> list[Path]:
    """The files of one session of DeepSeek Harness in a directory, the newest generation first."""
    newest, older = generation(directory)
    return [] if newest is None else [newest, *older]


class ForeignSession:
    """What a file holds, read once. Turns, runs and messages show how an import closes what the file leaves open."""

    def __init__(self, opened: Opened, *, histories: bool = False, events: bool = False) -> None:
        """``histories`` for ``history``, ``events`` for ``events`` and an ``event_list`` of them."""
        self.path = opened.path
        self.format = opened.format
        self.bytes = opened.raw.size
        self._report = Report()
        self._threads: dict[str, reading.Thread] = {}
        if opened.format == EMPTY:
            written = datetime.fromtimestamp(os.fstat(opened.raw.fd).st_mtime, UTC).isoformat(" ", "seconds")
            self._report.add("empty_file", f"the file is empty, maybe being created: it was written to at {written}")
        else:
            self._report, self._threads = reading.fold(opened.raw, opened.format, self.path.name, histories=histories)
        for older in opened.older:
            self._report.add("older_generation", f"{older.name} is what this session was before it was migrated")
        #: What an import would write of the session itself; nothing where it was not asked for.
        self.events: list[Event] = []
        self._lists = events
        if events and opened.format != EMPTY:
            self.events += reading.events(opened.raw, opened.format, self.path.name)
        main = self._threads.get(MAIN)
        self.header = None if main is None else main.header
        self._state = State() if main is None else main.state
        self._facts = facts_of(self._state)
        self.pending = [] if main is None else _closed(main)

    @property
    def session_id(self) -> str:
        """The tool's own id; where the file has none, its name."""
        origin = {} if self.header is None else self.header["imported_from"]
        return origin.get("session_id") or self.path.stem

    @property
    def findings(self) -> FindingList:
        return self._report.findings

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.findings)

    def turns(self) -> list[JsonObject]:
        """As a journal's."""
        return self._state.turn_rows()

    def settings(self) -> JsonObject:
        """As a journal's."""
        return self._state.session.settings()

    def history(self, thread: str = MAIN) -> History:
        """The conversation, with the closers; of a session that was opened for its ``histories``."""
        found = self._threads.get(thread)
        return History() if found is None or found.history is None else found.history

    def to_json(self) -> JsonObject:
        """The document of ``inspect``, as of a journal, with ``format`` the tool's name and ``events`` the lines of the
        file; ``threads`` are its branches and subagents, ``lines`` those that stand for nothing in a conversation, by
        the tool's own word for them.
        """
        listed = {"event_list": [event.to_json() for event in self.events]} if self._lists else {}
        return {
            "session_id": self.session_id,
            "path": str(self.path),
            "format": self.format,
            "verdict": self.verdict,
            "events": self._report.lines,
            "bytes": self.bytes,
            "head": None,
            "header": self.header,
            "settings": self.settings(),
            "writer": None,
            "findings": [finding.to_json() for finding in self.findings],
            "turns": self.turns(),
            "runs": self._state.run_rows(),
            "executions": self._state.execution_rows(),
            **self._facts,
            "pending": appended_json(self.pending),
            "threads": [_row(name, thread) for name, thread in self._threads.items() if name != MAIN],
            "lines": dict(sorted(self._report.kept.items())),
            **listed,
        }


def _closed(thread: reading.Thread) -> list[Event]:
    """The closers of what the thread leaves open; its fold takes them in."""
    drafts = plan_closers(thread.state).drafts
    events = [
        Event(number, thread.ts, draft.type, draft.data, "") for number, draft in enumerate(drafts, thread.events)
    ]
    for event in events:
        thread.state.apply(event)
        if thread.history is not None:
            thread.history.apply(event)
    return events


def _row(name: str, thread: reading.Thread) -> JsonObject:
    turns = thread.state.turn_rows()
    return {
        "thread": name,
        "kind": "subagent" if "child_of" in thread.header else "branch",
        "name": thread.header.get("name"),
        "turns": len(turns),
        "calls": sum(len(turn["calls"]) for turn in turns),
    }
