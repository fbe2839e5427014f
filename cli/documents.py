"""The documents that commands answer with, exactly as `--json` prints them: library calls in, plain JSON out.

A journal that cannot even be opened still gets its document, with the verdict `unreadable` and the reason as finding.
"""

from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..journal.errors import JournalConflict, JournalError, JournalLocked, JournalWriteError, SessionNotFound
from ..journal.findings import Finding, verdict_of
from ..journal.reader import JOURNAL, open_source, resolve, session_name
from ..journal.scan import Consumer, ScanResult, scan
from . import exits, owner

if TYPE_CHECKING:
    from ..repair.foreign import ForeignSession
    from ..repair.session import Session
    from .onward import Step, Words

Doc = dict[str, Any]

#: Bytes of a journal in which its first message is looked for, and columns of it that are shown.
_HEAD: Final = 8 * 1024
_TITLE: Final = 40
_CLAUDE: Final = "anthropic"
_OPENAI: Final = "openai-chat"
#: Formats → the form that the tool's provider takes; others are of a tool that asks many.
_FORMS: Final = {
    "claude-code": _CLAUDE,
    "codex": "openai-responses",
    "dsh": _OPENAI,
    **{form: form for form in (_CLAUDE, _OPENAI, "openai-responses")},
}
#: How a journal begins.
_OURS: Final = b'{"seq":0,'


@attrs.frozen
class Answer:
    """A document, the exit code, and the sentence for standard error where not all was done that was asked for."""

    doc: Doc
    code: int
    refusal: str | None = None


def inspection(target: str, root: str | None, events: bool) -> Answer:
    """Of `inspect`. Raises SessionNotFound."""
    from ..repair.session import survey

    if (found := foreign_session(target, root, events=events)) is not None:
        doc = {**found.to_json(), "live": None, "next": _of_foreign(found, target, root)}
        return Answer(doc, exits.OF_VERDICT[found.verdict])
    session = survey(target, root)
    doc = session.to_json(events=events)
    doc["live"] = live(session)
    doc["next"] = _next(session, doc, words_of(target, root, None))
    return Answer(doc, exits.OF_VERDICT[doc["verdict"]])


def foreign_session(
    target: str, root: str | None, *, histories: bool = False, events: bool = False
) -> "ForeignSession | None":
    """What a target stands for, if that is a session file of another tool. Raises JournalError where it needs what is
    not installed, and SessionNotFound for a directory that only holds such files; what else cannot be read is nobody's,
    and a journal's matter to tell.
    """
    if not _may_be_foreign(target, root):
        return None
    from ..repair.foreign import foreign

    try:
        found = foreign(target, histories=histories, events=events)
    except OSError:
        return None
    if found is None:
        _look_below(Path(target))
    return found


def refuse_foreign(target: str, root: str | None) -> None:
    """Raises JournalError for a session file of another tool, where only a journal will do; the file is not read."""
    if not _may_be_foreign(target, root):
        return
    from ..repair.foreign import no_journal

    told = no_journal(target)
    if told is not None:
        raise JournalError(told, path=target)
    _look_below(Path(target))


def _may_be_foreign(target: str, root: str | None) -> bool:
    """Cheap: a journal is told by its first bytes, and a directory with a journal in it by its name."""
    path = Path(target)
    try:
        if _is_of_root(target, root):
            return False
        if path.is_dir():
            return not (path / JOURNAL).exists()
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(_OURS)) != _OURS
    except (OSError, ValueError):
        return False


def _is_of_root(target: str, root: str | None) -> bool:
    """Is it the id of a session of the root, which counts before what is called so here?"""
    try:
        return resolve(target, root) not in (Path(target), Path(target, JOURNAL))
    except SessionNotFound:
        return False


def _look_below(directory: Path) -> None:
    """Raises SessionNotFound for a directory that is no session, and in which some of other tools are."""
    from ..repair.foreign import session_below

    below = session_below(directory) if directory.is_dir() else None
    if below is not None:
        ways = (
            f"`maka journal import {quote(str(directory))}` makes journals of all of them, and `maka journal inspect "
        )
        ways += f"{quote(str(below))}` looks at one"
        raise SessionNotFound(
            f"{directory} holds session files of other tools, and is none itself; {ways}", path=directory
        )


def _of_foreign(found: "ForeignSession", target: str, root: str | None) -> "list[Step]":
    """What can be done with it."""
    named = quote(target) + ("" if root is None else f" --root {quote(root)}")
    if not found.turns():
        return []
    model = found.settings().get("model")
    form = _FORMS.get(found.format) or (_CLAUDE if "claude" in str(model).lower() else _OPENAI)
    return [
        {"command": f"maka journal import {named}", "why": "to keep it as a journal, closed, and to go on from it"},
        {
            "command": f"maka journal export {quote(target)} --to {form}",
            "why": "to have its history as a provider takes it",
        },
    ]


def live(session: "Session") -> Doc | None:
    """What a writer that lives has under way; None where none does."""
    from ..repair.plan import appended_json
    from ..repair.session import writer_of
    from . import under_way

    if writer_of(session.path) is None:
        return None
    return under_way.live(appended_json(session.pending), session.asked(), session.turns())


def next_steps(target: str, root: str | None, app: str | None = None) -> "list[Step]":
    """What `inspect` says that can be done next, with the app that was named. Raises SessionNotFound."""
    from ..repair.session import survey

    session = survey(target, root)
    return _next(session, session.to_json(), words_of(target, root, app))


def words_of(target: str, root: str | None, app: str | None) -> "Words":
    """How commands name the session and the app, as they were typed here."""
    from . import onward

    return onward.Words(onward.words_of(target, root), lambda: _app_words(app, root))


def _app_words(name: str | None, root: str | None) -> str:
    """What a command needs behind TARGET to have the app that this one was given, or that it lacks; else nothing."""
    import os

    if name is not None:
        return f" --app {quote(name)}"

    from ..runtime.app import find_app
    from ..runtime.errors import AppError

    try:
        found = find_app(None, place_of_config(root), os.environ)
    except AppError:
        found = None  # a configuration that cannot be used is the matter of whoever runs the app
    return " --app MODULE:OBJECT" if found is None else ""


def place_of_config(root: str | None) -> Path:
    """Where the configuration is looked for that names the app."""
    from ..journal.store import default_root

    return Path(root) if root is not None else default_root()


def _next(session: "Session", doc: Doc, words: "Words") -> "list[Step]":
    from . import onward

    return onward.steps(doc, session.unknown_calls(), session.newest_run, words, lost=session.lost)


def conversation(target: str, root: str | None, *, for_people: bool) -> Answer:
    """Of `show`: the provider history, or for people everything that was said and done. Raises SessionNotFound."""
    from ..repair.session import survey
    from . import onward, under_way

    if (found := foreign_session(target, root, histories=True)) is not None:
        history = found.history()
        said: Doc = {"messages": history.messages()}
        if for_people:
            said = {"entries": history.annotated(), "turns": [{**turn, "goes_on_from": None} for turn in found.turns()]}
            said["words"] = onward.words_of(target, root)
        return Answer(said, exits.OF_READING[found.verdict], first_refusal(found.path, found.findings))
    session = survey(target, root)
    refusal = first_refusal(session.path, session.findings)
    if for_people:
        head = -1 if session.head is None else session.head.seq
        doc: Doc = {"entries": session.history().annotated(), "turns": _with_sources(session)}
        doc = {**under_way.conversation(doc, live(session), head), "words": onward.words_of(target, root)}
    else:
        doc = {"messages": session.messages()}
    return Answer(doc, exits.OF_READING[session.verdict], refusal)


def _with_sources(session: "Session") -> list[Doc]:
    """The turns, and of each that goes on from another one ``goes_on_from``, that one's number."""
    turns = session.turns()
    numbers = {turn["turn_id"]: turn["turn"] for turn in turns}
    sources = {
        claim["target"]["turn_id"]: numbers.get(claim["source"]["turn_id"])
        for claim in session.continuations()
        if claim["purpose"] == "resume"
    }
    return [{**turn, "goes_on_from": sources.get(turn["turn_id"])} for turn in turns]


def repair(target: str, root: str | None, *, dry_run: bool, salvage: bool) -> Answer:
    """Of `repair`. Raises SessionNotFound and JournalWriteError."""
    from ..repair.apply import repair as apply
    from ..repair.session import survey

    if (found := foreign_session(target, root)) is not None:
        doc = _not_begun(found.path, dry_run, found.verdict)
        doc |= {"session_id": found.session_id, "format": found.format}
        return Answer(doc, exits.REFUSED, _not_written(found, target, root))
    path = resolve(target, root)
    try:
        # A host that needs the session for nothing lets go of it.
        report = owner.released(lambda: apply(path, dry_run=dry_run, salvage=salvage), ask=not dry_run)
    except JournalLocked as error:
        doc = {**_not_begun(path, dry_run, survey(path).verdict), "locked": True}
        return Answer(doc, exits.LOCKED, owner.locked(error))
    except (SessionNotFound, JournalWriteError, JournalConflict):
        raise
    except JournalError as error:
        return Answer(_not_begun(path, dry_run, "unreadable"), exits.REFUSED, str(error))
    if report.refused is not None:
        return Answer(report.to_json(), exits.REFUSED, f"{path}: {report.refused}")
    return Answer(report.to_json(), exits.PENDING if dry_run and report.changes else exits.DONE)


def _not_written(found: "ForeignSession", target: str, root: str | None) -> str:
    """Why no repair is made of a session of another tool."""
    from . import onward

    what = f"{found.path} is a session of another tool ({found.format}), which is never written"
    if not found.turns():
        return f"{what}, and holds nothing to import"
    return f"{what}; `maka journal import {onward.words_of(target, root)}` makes a journal of it that is in order"


def _not_begun(path: Path, dry_run: bool, verdict: str) -> Doc:
    return {
        **_identity(path, None),
        "dry_run": dry_run,
        "verdict_before": verdict,
        "verdict_after": verdict,
        "set_aside": [],
        "appended": [],
    }


def verification(target: str, root: str | None, head: str | None) -> Answer:
    """Of `verify`: bytes, numbers and sums only. The refusal says why the journal does not extend `head`."""
    if (told := foreign_session(target, root)) is not None:
        raise SessionNotFound(
            f"{told.path} is a session of another tool ({told.format}), and no journal that could be verified; "
            f"`maka journal inspect {quote(target)}` says what it holds",
            path=told.path,
        )
    path = resolve(target, root)
    unverified: list[int] = []
    found: list[int] = []

    def begin() -> Consumer:
        unverified.clear()
        found.clear()

        def take(event: Any) -> None:
            if not event.verified:
                unverified.append(event.seq)
            if event.sum == head and not found:
                found.extend((event.seq, len(unverified)))

        return take

    try:
        with open_source(path) as source:
            result = scan(source, begin, name=session_name(path))
            size = source.size
    except SessionNotFound:
        raise
    except (JournalError, OSError) as error:
        result, size = ScanResult(), 0
        result.findings.append(_unreadable(error))
    doc: Doc = {
        **_identity(path, result),
        "verdict": verdict_of(result.findings),
        "events": result.events,
        "bytes": size,
        "head": None if result.head is None else {"seq": result.head.seq, "sum": result.head.sum},
        "unverified": unverified,
        "findings": [finding.to_json() for finding in result.findings],
    }
    refusal = None if head is None else _extends(path, head, found)
    return Answer(doc, exits.REFUSED if refusal else exits.OF_VERDICT[doc["verdict"]], refusal)


def _extends(path: Path, head: str, found: list[int]) -> str | None:
    if not found:
        return f"{path} does not extend {head}: no line of it has that sum"
    seq, doubtful = found
    if doubtful:
        return f"{path} may not extend {head}: no sum proves {doubtful} of the lines up to event {seq}"
    return None


def listing(root: str | None) -> tuple[Doc, Path]:
    """Of `list`, and the root that was looked at. A row has ``title`` too: the first words that were said in it."""
    from ..journal.store import FileStore

    store = FileStore(root)
    rows = [_checked(store.path(row["session_id"]), row)[0] for row in store.list()]
    return {"sessions": rows}, store.root


def under_way_in(root: Path, rows: Iterable[Doc] | None, *, none_runs: bool) -> list[Doc]:
    """Rows as of `list`, and in each ``running`` and ``waiting``: the turns that run, and those that wait for a person.

    ``rows`` are the host's, which knows these; without them a writer that lives is believed as far as its journal
    tells, and where that does not both are None, unless there is no host, ``none_runs``.
    """
    from ..journal.store import FileStore

    store, out = FileStore(root), []
    for row in store.list() if rows is None else rows:
        told, under = _checked(store.path(row["session_id"]), row)
        if "running" not in row:
            turns = [] if under is None else under["turns"]
            waiting = [turn["turn_id"] for turn in turns if turn["status"] == "waiting_for_user"]
            tells = under is not None or none_runs
            told["running"] = [turn["turn_id"] for turn in turns] if tells else None
            told["waiting"] = waiting if tells else None
        out.append({"waiting": [], **told})
    return out


def application(name: str | None, root: str | None) -> Doc:
    """Of `app show`. Imports the app. Raises AppError, and SessionNotFound for a user who has no root."""
    import contextlib
    import os
    import sys

    from ..runtime.app import load_app
    from ..runtime.app.telling import Telling
    from ..runtime.permissions import MODES, stance

    place = place_of_config(root)
    # What the app's module prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        app, source = load_app(name, place, os.environ, Path.cwd())
    tools = [
        {
            "name": tool.name,
            "recovery": tool.recovery,
            "parallel_safe": bool(tool.parallel_safe),
            "permissions": {mode: stance(mode, tool) for mode in MODES},
        }
        for tool in app.tools
    ]
    return {
        "app": source.name,
        "named_by": source.origin,
        "backends": list(app.backends),
        "handoff": {name: Telling(app, {"backend": name}).handoff for name in app.backends},
        "default_backend": app.default_backend,
        "model": app.model,
        "permission_mode": app.permission_mode,
        "safety_inspector": app.safety_inspector is not None,
        "tools": tools,
    }


def _checked(path: Path, row: Doc) -> tuple[Doc, Doc | None]:
    """The row with its verdict and the work that waits, where what a listing looks at is all of the file; and what a
    writer that lives has under way.
    """
    from ..journal.listing import TAIL
    from ..repair.session import survey
    from . import onward

    under = None
    try:
        with open(path, "rb") as file:
            row = {**row, "title": first_words(file.read(_HEAD))}
        if row["verdict"] == "unchecked" and path.stat().st_size <= TAIL:
            session = survey(path)
            waits = onward.waiting(session.handoffs(), session.turns()) is not None
            active = any((plan["execution"] or {}).get("status") == "active" for plan in session.plans())
            under = live(session)
            queued = sum(map(len, session.queue().values())) if row["queued"] is None else row["queued"]
            row = {**row, "verdict": session.verdict, "active_plan": active, "pending_handoff": waits, "queued": queued}
    except (OSError, SessionNotFound):
        pass  # gone since it was listed, or no longer to be looked at
    return {"title": None, **row}, under


def first_words(head: bytes) -> str | None:
    """The text of the first message of a session, shortened, of the beginning of its journal; None: it is not there."""
    from ..journal.codec import decode
    from .render import words
    from .text import line

    for raw in head.split(b"\n")[:-1]:
        event = decode(raw.removesuffix(b"\r")) if b'"user/message"' in raw else None
        if event is not None and event.type == "user/message":
            said = words(event.data["content"]).split()
            return line(" ".join(said), _TITLE) if said else None
    return None


def first_refusal(path: Path, findings: Iterable[Finding]) -> str | None:
    """Why not everything of a journal could be read, as one sentence; None where it could."""
    for finding in findings:
        if finding.code == "unreadable":
            return finding.message  # says path and remedy itself
        if finding.severity in ("unsupported", "unreadable"):
            where = "" if finding.offset is None else f" (offset {finding.offset})"
            return f"{path}: {finding.message}{where}; {finding.remedy}"
    return None


def _identity(path: Path, result: ScanResult | None) -> Doc:
    said = result.header.data.get("session_id") if result is not None and result.header is not None else None
    return {"session_id": said if isinstance(said, str) else session_name(path) or path.stem, "path": str(path)}


def _unreadable(error: Exception) -> Finding:
    return Finding("unreadable", str(error))
