"""`maka journal export`: a session's history as a provider takes it, or as a document. Arguments in, an answer out."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import attrs
import typer

from . import exits
from .console import Console
from .journal import Json, Root, Target
from .parsing import WrongUsage

if TYPE_CHECKING:
    from pathlib import Path

    from ..journal.events import Event, JsonObject
    from ..journal.export.dialogue import ReadBlob
    from ..journal.history import History
    from ..repair.foreign import ForeignSession
    from ..repair.session import Session

#: Forms, and which of the options each has.
FORMS: Final[dict[str, tuple[str, ...]]] = {
    "anthropic": ("--keep-images", "--thinking", "--whole"),
    "openai-chat": ("--keep-images", "--thinking", "--whole"),
    "openai-responses": ("--keep-images", "--whole"),
    "markdown": (),
}


def export(
    context: typer.Context,
    target: Target,
    to: Annotated[str, typer.Option("--to", metavar="FORM", help=f"One of {', '.join(FORMS)}.")],
    through: Annotated[
        int | None,
        typer.Option("--through", metavar="SEQ", help="The history as it stood after the event of this number."),
    ] = None,
    keep_images: Annotated[
        bool, typer.Option("--keep-images", help="Keep images that no provider takes; else a text says why they went.")
    ] = False,
    thinking: Annotated[
        bool, typer.Option("--thinking", help="Keep signed thinking (anthropic), send reasoning back (openai-chat).")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Texts that the journal holds shortened are written out in full.")
    ] = False,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Print a session's history as a provider takes it, or as a document.

    Never writes. What is printed is legal for that provider, whatever the journal holds; damaged ones too.

    Exit code: 0 printed, 4 unreadable or unsupported, 2 no such session, form or event.
    """
    from ..repair.session import survey
    from . import documents

    console: Console = context.obj
    _check(console, to, {"--keep-images": keep_images, "--thinking": thinking, "--whole": whole})
    with console.working(f"reading {target}"):
        foreign = documents.foreign_session(target, root, histories=True, events=to == "markdown" or thinking)
        session = foreign or survey(target, root)
        history = _history(session, through)
        if to == "markdown":
            text = "".join(_document(session, history, through))
        else:
            keeps = thinking and (to != "anthropic" or _unchanged(console, session))
            form = _form(to, history.messages(), _blobs(session.path), whole, keep_images, keeps)
            said = bool(form["messages"] if isinstance(form, dict) else form)
    if to != "markdown":
        console.document(form)
    elif as_json:
        console.document({"markdown": text})
    else:
        console.put(text)
    refusal = documents.first_refusal(session.path, session.findings)
    if refusal is not None:
        console.say(f"maka: {refusal}", "red")
    elif to != "markdown" and not said:
        console.say(_nothing(session, through), "yellow")
    return exits.OF_READING[session.verdict]


def _nothing(session: "Session | ForeignSession", through: int | None) -> str:
    """Of a history without a message: why, and that what was printed is empty."""
    if through is not None:
        return f"nothing had been said at event {through} of {session.path}, so the history that is printed is empty"
    damaged = next((finding for finding in session.findings if finding.severity == "damage"), None)
    if damaged is None:
        return f"{session.path} holds no message, so the history that is printed is empty"
    what = f"{session.path} holds no message that can be read ({damaged.message}), so the history that is printed is"
    return f"{what} empty; look for a copy"


def _check(console: Console, form: str, given: dict[str, bool]) -> None:
    if form not in FORMS:
        raise WrongUsage(f"--to {form[:40]!r} is no form; give one of {', '.join(FORMS)}")
    for option, is_given in given.items():
        if is_given and option not in FORMS[form]:
            takers = ", ".join(name for name, options in FORMS.items() if option in options)
            console.say(f"{option} changes nothing of {form}; it is an option of {takers}", "yellow")


def _form(
    to: str, messages: "list[JsonObject]", read_blob: "ReadBlob", whole: bool, keep_images: bool, thinking: bool
) -> "JsonObject | list[JsonObject]":
    from ..journal import export as forms

    if to == "anthropic":
        return forms.anthropic(
            messages, read_blob=read_blob, whole=whole, keep_images=keep_images, keep_thinking=thinking
        )
    if to == "openai-chat":
        return forms.openai_chat(
            messages, read_blob=read_blob, whole=whole, keep_images=keep_images, reasoning=thinking
        )
    return forms.openai_responses(messages, read_blob=read_blob, whole=whole, keep_images=keep_images)


def _history(session: "Session | ForeignSession", through: int | None) -> "History":
    from ..repair.session import Session

    if not isinstance(session, Session):
        if through is not None:
            raise WrongUsage("--through names an event of a journal; import the file first, then export that")
        return session.history()
    try:
        return session.history(through)
    except KeyError:
        head = session.head
        holds = "it holds no event" if head is None else f"its newest event is {head.seq}"
        raise WrongUsage(f"--through {through}: {session.path} has no event of that number; {holds}") from None


@attrs.define(eq=False)
class _Record:
    """What is on record beside the conversation: when things began, and which models were asked."""

    first: int | None = None
    last: int | None = None
    begun: dict[str, int] = attrs.field(factory=dict)
    models: dict[tuple[str, str], None] = attrs.field(factory=dict)

    def take(self, event: "Event") -> None:
        self.first = event.ts if self.first is None or event.seq == 0 else self.first
        self.last = event.ts
        if event.type == "turn/start":
            self.begun.setdefault(event.data["turn_id"], event.ts)
        elif event.type == "request/header":
            header = event.data["header"]
            self.models[str(header.get("provider")), str(header.get("model"))] = None

    @classmethod
    def of(cls, session: "Session | ForeignSession") -> "_Record":
        from ..journal.errors import JournalError
        from ..journal.reader import read
        from ..repair.session import Session

        records = [cls()]
        if not isinstance(session, Session):
            for event in session.events:
                records[0].take(event)
            return records[0]

        def begin() -> "Callable[[Event], None]":
            records[:] = [cls()]
            return records[0].take

        try:
            read(session.path, observe=begin)
        except (JournalError, OSError):
            return cls()
        return records[0]


def _unchanged(console: Console, session: "Session | ForeignSession") -> bool:
    """Was one model asked all the time, so that its thinking may go back to it?"""
    models = _Record.of(session).models
    if len(models) == 1:
        return True
    told = f"{len(models)} models were asked in this session" if models else "no model is on record of this session"
    console.say(f"thinking is left out: {told}, and only the one that wrote it takes it back", "yellow")
    return False


def _document(session: "Session | ForeignSession", history: "History", through: int | None) -> Iterator[str]:
    from ..journal import export as forms
    from ..journal.export.to_markdown import moment

    record, settings = _Record.of(session), session.settings()
    name = settings.get("name")
    facts = {
        "Session": session.session_id,
        "Begun": moment(record.first),
        "Last event": moment(record.last),
        "Shown up to event": through,
        "Model": settings.get("model") or None,
        "Working directory": settings.get("cwd") or None,
    }
    turns: list[JsonObject] = [
        {
            "turn_id": turn["turn_id"],
            "turn": turn["turn"],
            "begun": record.begun.get(turn["turn_id"]),
            # How a turn stood at an earlier event is not told.
            **({"status": turn["status"]} if through is None else {}),
        }
        for turn in session.turns()
    ]
    title = name if isinstance(name, str) and name.strip() else session.session_id
    return forms.markdown(history.annotated(), title, facts, turns)


def _blobs(path: "Path") -> "ReadBlob":
    """Reads the contents that events name, a fork's from its parents too. Raises JournalError."""
    from ..journal import blobs
    from ..journal.errors import JournalError

    places: list[Path] = []

    def read_blob(ref: str) -> bytes:
        if not places:
            places.extend(_directories(path))
        missing: JournalError | None = None
        for place in places:
            try:
                return blobs.get(place, ref)
            except JournalError as error:
                missing = missing or error
        assert missing is not None, "the session's own directory is looked at"
        raise missing

    return read_blob


def _directories(path: "Path") -> "list[Path]":
    """The session's directory, and those of the sessions that it was forked from, the nearest first."""
    from ..journal.errors import JournalError
    from ..journal.reader import JOURNAL, MAX_FORKS, first_event, open_source
    from ..journal.shapes import SESSION_ID

    out = [path.parent]
    at = path
    while len(out) <= MAX_FORKS:
        try:
            with open_source(at) as source:
                header = first_event(source)
        except (JournalError, OSError):
            break
        parent = None if header is None else header.data.get("parent")
        session_id = parent.get("session_id") if isinstance(parent, dict) else None
        if not isinstance(session_id, str) or SESSION_ID.fullmatch(session_id) is None:
            break
        at = at.absolute().parent.parent / session_id / JOURNAL
        out.append(at.parent)
    return out
