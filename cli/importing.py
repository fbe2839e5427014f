"""`maka journal import`: session files of other tools become journals of the root. Arguments in, an answer out."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from . import exits
from .console import Console
from .journal import Json, Root
from .parsing import WrongUsage

if TYPE_CHECKING:
    from .documents import Doc
    from .text import Painter

#: From so many files on processes of their own are worth their start; so many of them.
_MANY: Final = 16
_AT_ONCE: Final = 4
#: Seconds for which one is tried again that another of them is in the way of, and between two tries.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.05
#: What would become of a session.
_WOULD: Final = {"created": "would be created", "grown": "would be grown  ", "unchanged": "unchanged       "}
#: Characters of paths that a sentence names.
_SHOWN: Final = 400


def import_(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Session files, or directories that are searched for them.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be made, and write nothing.")] = False,
    original: Annotated[
        bool, typer.Option("--original/--no-original", help="Keep each file itself beside the journal made of it.")
    ] = True,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="The backend of your app that is to go on with the sessions."),
    ] = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Make journals of the sessions of Claude Code, Codex, DeepSeek Harness and pi.

    The files are only read. What is imported already stays as it is; what has grown since becomes a fork.

    Exit code: 0 imported, 4 something is none of these or cannot be read, 3 another import of it runs, 2 no such file
    or an error while writing.
    """
    from ..journal.store import FileStore

    console: Console = context.obj
    place = FileStore(root).root
    found = list(_files(paths))
    done = _Done(dry_run=dry_run, root=place)
    progress = [f"importing {len(found)} files"]
    with console.working(lambda: progress[0]):
        one = partial(outcome, root=place, dry_run=dry_run, original=original, backend=backend)
        for number, taken in enumerate(_each(one, found), 1):
            progress[0] = f"importing file {number} of {len(found)}: {found[number - 1][0].name}"
            done.take(taken)
            if not as_json and "doc" in taken:
                console.write(_rows(taken["doc"], console.paint, dry_run=dry_run))
    if as_json:
        console.document(done.to_json())
    else:
        console.write(["", done.summary()] if len(found) > 1 else [])
    if not done.files and not done.failed and not as_json:
        console.say(f"no session file of a tool that is known here is in {' or '.join(paths)}"[:_SHOWN])
    if backend is not None and (kept := done.kept_by_others(backend)):
        console.say(_unset(kept, backend, root), "yellow")
    for failure in done.failed:
        console.say(f"maka: {failure['message']}", "red")
    return done.code


def _each(one: "Callable[[tuple[Path, bool]], Doc]", found: list[tuple[Path, bool]]) -> "Iterator[Doc]":
    """What became of each, in their order. Of many several are imported at once: most of their time is the disk's."""
    if len(found) < _MANY:
        yield from (_patiently(one, item, one(item)) for item in found)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    context = get_context("spawn")
    pool = ProcessPoolExecutor(_AT_ONCE, mp_context=context, initializer=_undisturbed, initargs=(os.getpid(),))
    try:
        for item, taken in zip(found, pool.map(one, found), strict=True):
            yield _patiently(one, item, taken)
    finally:
        pool.shutdown(cancel_futures=True)


def _patiently(one: "Callable[[tuple[Path, bool]], Doc]", item: tuple[Path, bool], taken: "Doc") -> "Doc":
    """Files of one session are in each other's way as long as they are imported at once."""
    deadline = time.monotonic() + _PATIENCE
    while taken.get("again") and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        taken = one(item)
    return taken


def _undisturbed(parent: int) -> None:
    """An interrupt is the parent's matter: what was begun is finished. Where the parent is gone, so is this process."""
    from threading import Thread

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()


def outcome(item: tuple[Path, bool], *, root: Path, dry_run: bool, original: bool, backend: str | None) -> "Doc":
    """Imports a file: ``{doc}``, ``{skipped}`` or ``{failed, code, again}``. The second of ``item``: a person has named
    it, so that it is an error if it is nothing to import.
    """
    from ..journal.errors import JournalConflict, JournalError, JournalLocked, JournalWriteError, SessionNotFound
    from ..journal.store import FileStore
    from ..repair.foreign import EMPTY, opened
    from ..repair.importing import import_file

    path, named = item
    try:
        with opened(path) as file:
            if file is None:
                if not named:
                    return {"skipped": str(path)}
                return _failed(path, f"{path} is no session file of a tool that is known here", exits.REFUSED)
            if file.format == EMPTY:
                return {"doc": {"path": str(path), "format": EMPTY, "bytes": 0, "sessions": []}}
            store = FileStore(root)
            report = import_file(file.raw, file.format, store, dry_run=dry_run, original=original, backend=backend)
            for older in file.older:
                report.report.add("older_generation", f"{older.name} is what this session was before it was migrated")
            return {"doc": report.to_json()}
    except JournalLocked:
        said = f"{path} is being imported by another process; wait for that one"
        return {**_failed(path, said, exits.LOCKED), "again": True}
    except JournalConflict as error:
        return {**_failed(path, str(error), exits.USAGE), "again": True}
    except (JournalWriteError, SessionNotFound) as error:
        return _failed(path, str(error), exits.USAGE)
    except JournalError as error:
        return _failed(path, str(error), exits.REFUSED)


def _failed(path: Path, message: str, code: int) -> "Doc":
    return {"failed": {"path": str(path), "message": message}, "code": code}


class _Done:
    """What has been done so far."""

    def __init__(self, *, dry_run: bool, root: Path) -> None:
        self._dry_run = dry_run
        self._root = root
        self.files: list[Doc] = []
        self._skipped: list[str] = []
        self.failed: list[Doc] = []
        self.code = exits.DONE

    def take(self, taken: "Doc") -> None:
        if "doc" in taken:
            self.files.append(taken["doc"])
        elif "skipped" in taken:
            self._skipped.append(taken["skipped"])
        else:
            self.failed.append(taken["failed"])
            # What could not be written counts more than what could not be read.
            self.code = taken["code"] if self.code == exits.DONE else min(self.code, taken["code"])

    def to_json(self) -> "Doc":
        return {
            "root": str(self._root),
            "dry_run": self._dry_run,
            "files": self.files,
            "skipped": self._skipped,
            "failed": self.failed,
            "sessions": self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(("created", "grown", "unchanged"), 0)
        for doc in self.files:
            for session in doc["sessions"]:
                counts[session["action"]] += 1
        return counts

    def kept_by_others(self, backend: str) -> list[str]:
        """The sessions that were there, imported for another backend than this one."""
        from ..journal.errors import JournalError
        from ..journal.reader import first_event, open_source
        from ..journal.store import FileStore

        store, out = FileStore(self._root), dict[str, None]()
        for session in (session for doc in self.files for session in doc["sessions"]):
            if session["action"] == "unchanged":
                with suppress(JournalError, OSError), open_source(store.path(session["session_id"])) as source:
                    header = first_event(source)
                    if header is not None and header.data.get("backend") != backend:
                        out[session["session_id"]] = None
        return [*out]

    def summary(self) -> str:
        counts = self._counts()
        would = "would be " if self._dry_run else ""
        said = f"{len(self.files)} files: {counts['created']} sessions {would}created, {counts['grown']} {would}grown"
        said += f", {counts['unchanged']} unchanged"
        return said + (f"; {len(self._skipped)} files are no sessions" if self._skipped else "")


def _files(paths: list[str]) -> Iterator[tuple[Path, bool]]:
    """The files, each with whether it was named. A directory of DeepSeek Harness is one. Raises WrongUsage."""
    from ..repair.foreign import ENDINGS, generations

    for given in paths:
        path = Path(given)
        if not os.path.lexists(path):
            raise WrongUsage(f"there is no file {given[:200]}; name session files, or directories that hold some")
        if not path.is_dir():
            yield path, True
            continue
        for directory, folders, names in os.walk(path):
            folders.sort()
            place = Path(directory)
            taken = {each.name for each in generations(place)}
            if taken:
                yield place, False
            for name in sorted(set(names) - taken):
                if name.endswith(ENDINGS) and (place / name).is_file() and not (place / name).is_symlink():
                    yield place / name, False


def _unset(kept: list[str], backend: str, root: str | None) -> str:
    """Of sessions that were there: that they have the backend that they had, and how one goes on by this one."""
    from .onward import words_of

    what = f"{kept[0]} is" if len(kept) == 1 else f"{len(kept)} sessions are"
    way = f"`maka run --session {words_of(kept[0], root)} --backend {quote(backend)} TEXT` goes on by it"
    return f"{what} on record already, and --backend changes nothing there; {way}"


def _rows(doc: "Doc", paint: "Painter", *, dry_run: bool) -> list[str]:
    """What became of a file, for a person."""
    rows = [f"{doc['path']}  {doc['format']}"]
    if not doc["sessions"]:
        return [f"{rows[0]}: nothing to import"]
    named = quote(doc["path"])
    for session in doc["sessions"]:
        made = f"{session['turns']} turns, {session['events']} events" if session["events"] else "on record already"
        of = f" of {session['of']}" if session.get("of") else ""
        action = _WOULD[session["action"]] if dry_run else f"{session['action']:<9}"
        rows.append(f"  {action} {paint(session['session_id'], 'bold')}  {session['kind']}{of}: {made}")
    worst = [finding for finding in doc["findings"] if finding["severity"] not in ("info", "notice")]
    rows += [f"  {finding['code']}{_place(finding)}: {finding['message']}" for finding in worst[:5]]
    if len(worst) > 5:
        rows.append(f"  … and {len(worst) - 5} findings more; `maka journal inspect {named}` lists them")
    return rows


def _place(finding: dict[str, Any]) -> str:
    return f" (line {finding['line']})" if finding.get("line") else ""
