"""`maka journal import`: session files of other tools become journals of the root. Arguments in, an answer out."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from . import exits
from .console import Console
from .journal import Json, Root
from .parsing import WrongUsage

if TYPE_CHECKING:
    from ..journal.store import FileStore
    from .documents import Doc
    from .text import Painter

#: What is looked into in a directory.
_ENDINGS: Final = (".jsonl", ".zstd")


def import_(
    context: typer.Context,
    paths: Annotated[
        list[str], typer.Argument(metavar="FILE…", help="Session files, or directories that are searched for them.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be made, and write nothing.")] = False,
    original: Annotated[
        bool, typer.Option("--original/--no-original", help="Keep each file itself beside the journal made of it.")
    ] = True,
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
    store = FileStore(root)
    found = list(_files(paths))
    done = _Done(dry_run=dry_run, root=store.root)
    progress = [f"importing {len(found)} files"]
    with console.working(lambda: progress[0]):
        for number, (path, named) in enumerate(found, 1):
            progress[0] = f"importing file {number} of {len(found)}: {path.name}"
            row = done.take(path, named, store, original)
            if not as_json and row:
                console.write(_rows(row, console.paint))
    if as_json:
        console.document(done.to_json())
    else:
        console.write(["", done.summary()] if len(found) > 1 else [])
    for failure in done.failed:
        console.say(f"maka: {failure['message']}", "red")
    return done.code


class _Done:
    """What has been done so far."""

    def __init__(self, *, dry_run: bool, root: Path) -> None:
        self._dry_run = dry_run
        self._root = root
        self._files: list[Doc] = []
        self._skipped: list[str] = []
        self.failed: list[Doc] = []
        self.code = exits.DONE

    def take(self, path: Path, named: bool, store: "FileStore", original: bool) -> "Doc | None":
        """Imports a file. ``named``: a person has named it, so that it is an error if it is nothing to import."""
        from ..journal.errors import JournalError, JournalLocked, JournalWriteError, SessionNotFound
        from ..repair.foreign import EMPTY, opened
        from ..repair.importing import import_file

        try:
            with opened(path) as file:
                if file is None:
                    if named:
                        self._fail(path, f"{path} is no session file of a tool that is known here", exits.REFUSED)
                    else:
                        self._skipped.append(str(path))
                    return None
                if file.format == EMPTY:
                    doc: Doc = {"path": str(path), "format": EMPTY, "bytes": 0, "sessions": []}
                else:
                    report = import_file(
                        file.raw, file.source, file.format, store, dry_run=self._dry_run, original=original
                    )
                    doc = report.to_json()
        except JournalLocked:
            self._fail(path, f"{path} is being imported by another process; wait for that one", exits.LOCKED)
        except (JournalWriteError, SessionNotFound) as error:
            self._fail(path, str(error), exits.USAGE)
        except JournalError as error:
            self._fail(path, str(error), exits.REFUSED)
        else:
            self._files.append(doc)
            return doc
        return None

    def _fail(self, path: Path, message: str, code: int) -> None:
        self.failed.append({"path": str(path), "message": message})
        # The worst for whoever scripts it: what could not be written counts more than what could not be read.
        self.code = code if self.code == exits.DONE else min(self.code, code)

    def to_json(self) -> "Doc":
        return {
            "root": str(self._root),
            "dry_run": self._dry_run,
            "files": self._files,
            "skipped": self._skipped,
            "failed": self.failed,
            "sessions": self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        counts = dict.fromkeys(("created", "grown", "unchanged"), 0)
        for doc in self._files:
            for session in doc["sessions"]:
                counts[session["action"]] += 1
        return counts

    def summary(self) -> str:
        counts = self._counts()
        would = "would be " if self._dry_run else ""
        said = f"{len(self._files)} files: {counts['created']} sessions {would}created, {counts['grown']} {would}grown"
        said += f", {counts['unchanged']} unchanged"
        return said + (f"; {len(self._skipped)} files are no sessions" if self._skipped else "")


def _files(paths: list[str]) -> Iterator[tuple[Path, bool]]:
    """The files, each with whether it was named. A directory of DeepSeek Harness is one. Raises WrongUsage."""
    from ..repair.foreign import generations

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
                if name.endswith(_ENDINGS) and (place / name).is_file() and not (place / name).is_symlink():
                    yield place / name, False


def _rows(doc: "Doc", paint: "Painter") -> list[str]:
    """What became of a file, for a person."""
    rows = [f"{doc['path']}  {doc['format']}"]
    if not doc["sessions"]:
        return [f"{rows[0]}: nothing to import"]
    for session in doc["sessions"]:
        made = f"{session['turns']} turns, {session['events']} events" if session["events"] else "on record already"
        of = f" of {session['of']}" if session.get("of") else ""
        rows.append(f"  {session['action']:<9} {paint(session['session_id'], 'bold')}  {session['kind']}{of}: {made}")
    worst = [finding for finding in doc["findings"] if finding["severity"] not in ("info", "notice")]
    rows += [f"  {finding['code']}{_place(finding)}: {finding['message']}" for finding in worst[:5]]
    if len(worst) > 5:
        rows.append(f"  … and {len(worst) - 5} findings more; `maka journal inspect {doc['path']}` lists them")
    return rows


def _place(finding: dict[str, Any]) -> str:
    return f" (line {finding['line']})" if finding.get("line") else ""
