"""`maka journal`: inspect, repair, verify, list, tail, show. Arguments in, a document or text and an exit code out."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import exits
from .completion import session_ids
from .console import Console
from .parsing import Command, Group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .documents import Answer, Doc
    from .text import Painter

journal = typer.Typer(cls=Group, rich_markup_mode=None)

#: Seconds between two looks at a journal that is followed.
_PAUSE = 0.2

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A journal file, a session directory, or a session id under the root.",
        autocompletion=session_ids,
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="DIR", help="Where sessions are kept; $MAKA_HOME or the user's state directory if not given."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@journal.callback(invoke_without_command=True)
def _journal(context: typer.Context) -> int:
    """Look at journals, repair them, read them."""
    from .tree import help_of

    return help_of(context)


@journal.command(cls=Command)
def inspect(
    context: typer.Context,
    target: Target,
    events: Annotated[bool, typer.Option("--events", help="Also print every event.")] = False,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Say what a journal holds, what is wrong, what to do.

    Never writes. What can be done next stands at the end.

    Exit code: 0 healthy, 1 a repair is due, 4 damaged, unsupported or unreadable, 2 no such session.
    """
    from . import documents, onward, render

    console: Console = context.obj
    with console.working(f"reading {target}"):
        answer = documents.inspection(target, root, events)
    words = onward.words_of(target, root)
    return give(console, answer, None if as_json else lambda doc, paint: render.inspection(doc, paint, words=words))


@journal.command(cls=Command)
def repair(
    context: typer.Context,
    target: Target,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and write nothing.")] = False,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Accept damage: copy its bytes aside and go on behind it.")
    ] = False,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Close what was left open; set a torn tail aside.

    Loses no byte. Exit code: 0 healthy now, 1 changes are pending (--dry-run), 3 locked by a live writer, 4 refused,
    2 no such session or an error while writing.
    """
    from . import documents, render

    console: Console = context.obj
    with console.working(f"repairing {target}"):
        answer = documents.repair(target, root, dry_run=dry_run, salvage=salvage)
        done = answer.code == exits.DONE and not dry_run and not as_json
        then = {"next": documents.next_steps(target, root)} if done else {}
    return give(console, answer, None if as_json else lambda doc, paint: render.repair({**doc, **then}, paint))


@journal.command(cls=Command)
def verify(
    context: typer.Context,
    target: Target,
    head: Annotated[
        str | None,
        typer.Option("--head", metavar="SUM", help="Also prove that the journal extends the prefix with this sum."),
    ] = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Check bytes, numbers and sums, and nothing else.

    Exit code: 0 intact, 1 torn tail, 4 anything else or not an extension of --head, 2 no such session.
    """
    from . import documents, onward, render

    console: Console = context.obj
    with console.working(f"verifying {target}"):
        answer = documents.verification(target, root, head)
    words = onward.words_of(target, root)
    return give(console, answer, None if as_json else lambda doc, paint: render.verification(doc, paint, words=words))


@journal.command(name="list", cls=Command)
def list_(context: typer.Context, as_json: Json = False, root: Root = None) -> int:
    """List the sessions of a root; damaged ones too.

    A verdict `unchecked` means that the end of the journal does not tell; `maka journal inspect` does.
    """
    from . import documents, render

    console: Console = context.obj
    with console.working("listing sessions"):
        doc, place = documents.listing(root)
    return given_list(console, doc, place, None if as_json else render.listing)


@journal.command(cls=Command)
def tail(
    context: typer.Context,
    target: Target,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events as they are written.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the newest events to begin with.")
    ] = 20,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Print the newest events, and with --follow those that come.

    With --json each event is one line. Exit code: 0 printed, 4 unreadable or unsupported, 2 no such session.
    """
    from ..journal.findings import verdict_of
    from ..journal.reader import resolve
    from . import documents
    from .follow import Follower

    console: Console = context.obj
    documents.refuse_foreign(target, root)
    follower = Follower(resolve(target, root))
    with console.working(f"reading {target}"):
        events, result = follower.start(lines)
    _print_events(console, events, as_json)
    if not follow:
        return _refused(
            console,
            documents.first_refusal(follower.path, result.findings),
            exits.OF_READING[verdict_of(result.findings)],
        )
    while console.listened():
        time.sleep(_PAUSE)
        look = follower.look()
        for sentence in look.said:
            console.say(sentence, "yellow")
        _print_events(console, look.events, as_json)
    return exits.DONE


@journal.command(cls=Command)
def show(context: typer.Context, target: Target, as_json: Json = False, root: Root = None) -> int:
    """Print the conversation as a person reads it.

    Who said what, calls and what came of them, gaps. With --json it is the history that a model would be given.

    Exit code: 0 printed, 4 unreadable or unsupported, 2 no such session.
    """
    from . import conversation, documents

    console: Console = context.obj
    with console.working(f"reading {target}"):
        answer = documents.conversation(target, root, for_people=not as_json)
    return give(console, answer, None if as_json else conversation.render)


def given_list(
    console: Console, doc: "Doc", place: "Path", render: "Callable[[Doc, Painter], list[str]] | None"
) -> int:
    """A list of sessions, as JSON or as the text that `render` makes of it; of none it is said where was looked."""
    if render is None:
        console.document(doc)
    elif doc["sessions"]:
        console.write(render(doc, console.paint))
    else:
        missing = "" if place.exists() else ": that directory is not there; look at --root and $MAKA_HOME"
        console.say(f"there is no session under {place}{missing}")
    return exits.DONE


def give(console: Console, answer: "Answer", render: "Callable[[Any, Painter], list[str]] | None") -> int:
    """The document, as JSON or as the text that `render` makes of it; then the sentence, if there is one."""
    if render is None:
        console.document(answer.doc)
    else:
        console.write(render(answer.doc, console.paint))
    return _refused(console, answer.refusal, answer.code)


def _refused(console: Console, sentence: str | None, code: int) -> int:
    if sentence is not None:
        console.say(f"maka: {sentence}", "red")
    return code


def _print_events(console: Console, events: list[Any], as_json: bool) -> None:
    from . import render

    if as_json:
        for event in events:
            console.document(event.to_json())
    else:
        console.write(
            [render.event({**event.to_json(), "verified": event.verified}, console.paint) for event in events]
        )
