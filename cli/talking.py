"""`maka run` and `maka chat`: arguments in; text, or a document, and an exit code out."""

from typing import TYPE_CHECKING, Annotated

import typer

from .app_command import AppName
from .completion import session_ids
from .console import Console, is_terminal
from .journal import Json, Root, give
from .parsing import WrongUsage

if TYPE_CHECKING:
    from .documents import Answer, Doc
    from .running import Order
    from .signals import Interrupt

SessionId = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="TARGET",
        help="The session that it is said to, by its id or its path; a new one, in this directory, if not given.",
        autocompletion=session_ids,
    ),
]
NoStart = Annotated[bool, typer.Option("--no-start", help="Start no host where none runs.")]
Name = Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The name of the new session.")]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="The model of the session, from this turn on.")
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="The backend of the session, from this turn on.")
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--permission-mode",
        metavar="MODE",
        help="The permission mode of the session, from this turn on: ask, execute, bypass.",
    ),
]


def run(
    context: typer.Context,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The message; `-`, or none, reads it from standard input."),
    ] = None,
    session: SessionId = None,
    name: Name = None,
    model: Model = None,
    backend: Backend = None,
    permission_mode: Mode = None,
    max_steps: Annotated[
        str | None, typer.Option("--max-steps", metavar="N", help="The turn ends after so many steps.")
    ] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="With --session: come next where a turn runs, instead of being refused.")
    ] = False,
    app: AppName = None,
    no_start: NoStart = False,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Send one message, and show the turn that comes of it.

    The host of the root runs it; one is started where none is, and ends after ten minutes without work. Questions are
    answered in place on a terminal, and anywhere else by whoever has the session open. Ctrl-C and SIGTERM stop the
    turn; a second one does not wait for that. A host that is restarted meanwhile changes nothing.

    Exit code: 0 the turn has completed, 1 it failed or was stopped, 5 it met a limit, 2 no such session, no app, or
    the host refused it, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    import asyncio

    console: Console = context.obj
    steps = _steps(context, max_steps)
    settings, patch = _settings(
        context, session, name=name, model=model, backend=backend, permission_mode=permission_mode
    )
    if queue and session is None:
        raise WrongUsage("--queue has a message come next in a session; name it by --session ID", ctx=context)
    if queue and steps is not None:
        raise WrongUsage("--max-steps is of a turn that begins now; it does not go with --queue", ctx=context)
    said, from_input = _text(context, text)

    from . import onward
    from .running import Order
    from .signals import Interrupt

    session_id = _session_id(session, root)
    order = Order(
        session_id=session_id,
        words=onward.words_of(session_id, root),
        text=said,
        settings=settings,
        patch=patch,
        options={} if steps is None else {"max_steps": steps},
        queue=queue,
    )
    told = Interrupt()
    try:
        answer = asyncio.run(
            _run(console, order, told, root, app, start=not no_start, quiet=as_json, alone=from_input or as_json)
        )
    except asyncio.CancelledError:
        return told.code
    return give(console, answer, None if as_json else lambda doc, paint: [])


async def _run(
    console: Console,
    order: "Order",
    told: "Interrupt",
    root: str | None,
    app: str | None,
    *,
    start: bool,
    quiet: bool,
    alone: bool,
) -> "Answer":
    import asyncio
    import sys

    from ..runtime.errors import RuntimeFailure
    from ..runtime.host import HostError
    from . import running, signals, standing
    from .documents import Answer
    from .reaching import Hosts, with_host
    from .typed import Typed

    def leave() -> None:
        shows = f"`maka session show {order.words}` shows how the turn stands"
        console.say(f"left at once; the host stops the turn by itself once it can, and {shows}", "yellow")

    def stands() -> "Answer":
        return standing.left(order.session_id, order.turns, order.message_id, hosts.place, root, app)

    hosts = Hosts(root, app, console, start)
    signals.cancelled_by_signal(told, leave)
    # Where nobody sits at a terminal nobody can be asked.
    async with Typed(sys.stdin if not alone and is_terminal(sys.stdout) else None) as typed:
        person = typed if typed.terminal else None
        try:
            answer = await with_host(
                hosts, lambda client: running.carried_out(client, order, console, person, quiet=quiet, told=told)
            )
        except asyncio.CancelledError:
            if not order.asked:
                raise
            answer = Answer(stands().doc, told.code, stands().refusal)
        except HostError as error:
            raise running.refusal_of(error, order) from None
        except RuntimeFailure as error:
            if not order.asked:
                raise
            console.say(f"maka: {error}", "red")
            return stands()
        if answer.doc["turn"] is None and order.asked:
            answer = Answer(stands().doc, answer.code, stands().refusal)
        return standing.told(answer, hosts.place, root, app)


def chat(
    context: typer.Context,
    session: SessionId = None,
    name: Name = None,
    model: Model = None,
    backend: Backend = None,
    permission_mode: Mode = None,
    app: AppName = None,
    no_start: NoStart = False,
    root: Root = None,
) -> int:
    """Talk with a session in the terminal.

    The host of the root runs it; one is started where none is. A line that is typed while a turn runs steers it;
    questions are answered by numbers or in words; /help says what else can be typed. Ctrl-C stops the turn, and leaves
    where none runs; the host goes on. Lines that come from a pipe are said one after the other, each once the turn
    before is over; where a turn asks something only an answer that is offered is taken for one.

    Exit code: 0 left, 1 the end of a pipe, and a turn waits for an answer, 2 no such session, no app, or the host
    refused it, 130 left by a second Ctrl-C, 143 ended by SIGTERM.
    """
    import asyncio
    import sys

    from . import onward
    from .chatting import Chat
    from .reaching import Hosts
    from .typed import Typed

    console: Console = context.obj
    settings, patch = _settings(
        context, session, name=name, model=model, backend=backend, permission_mode=permission_mode
    )

    session_id = _session_id(session, root)

    async def talk() -> int:
        async with Typed(sys.stdin) as typed:
            held = Chat(session_id, console, typed, settings, onward.words_of(session_id, root), patch)
            return await held.talked(Hosts(root, app, console, not no_start))

    return asyncio.run(talk())


def _settings(context: typer.Context, session: str | None, **given: str | None) -> "tuple[Doc | None, Doc]":
    """What a new session is made with, None for one that is there; and what is set of that one."""
    import os

    from ..runtime.permissions import MODES

    mode = given["permission_mode"]
    if mode is not None and mode not in MODES:
        raise WrongUsage(f"--permission-mode is one of {', '.join(MODES)}, not {mode!r}", ctx=context)
    settings = {key: value for key, value in given.items() if value is not None}
    if session is None:
        return {"cwd": os.getcwd(), **settings}, {}
    if "name" in settings:
        raise WrongUsage("--name is of a new session, and --session names one that is there", ctx=context)
    return None, settings


def _session_id(target: str | None, root: str | None) -> str:
    """Of the session that is meant, which is there; another's where none is. Raises SessionNotFound, Unclear."""
    import os
    from shlex import quote

    from ..journal.errors import SessionNotFound
    from ..journal.shapes import SESSION_ID
    from ..runtime.ids import new_id
    from . import hosting, resume
    from .naming import Unclear

    if target is None:
        return new_id()
    try:
        found = resume.place_of(target, root)
    except SessionNotFound:
        if not SESSION_ID.fullmatch(target):
            raise
        there = "maka session list" + ("" if root is None else f" --root {quote(root)}")
        what = f"there is no session {target} under {hosting.place(root)}; `{there}` shows those there are"
        raise SessionNotFound(what, path=target) from None
    if found.root is None:
        way = f"go on with it by `maka session resume {quote(target)}`, or copy it to where a root has its sessions"
        raise Unclear(f"{target} lies below no root, so no host runs it; {way}")
    if os.path.realpath(found.root) != os.path.realpath(hosting.place(root)):
        raise Unclear(f"{target} lies below another root; name that with `--root {quote(str(found.root))}`")
    return found.session_id


def _steps(context: typer.Context, typed: str | None) -> int | None:
    if typed is None:
        return None
    if not (typed.isascii() and typed.isdigit() and 0 < int(typed) < 1_000_000):
        raise WrongUsage(f"--max-steps wants a number of steps above 0, not {typed!r}", ctx=context)
    return int(typed)


def _text(context: typer.Context, text: str | None) -> tuple[str, bool]:
    """The message, and whether it came from standard input."""
    import sys

    if text not in (None, "-"):
        said, from_input = str(text), False
    elif sys.stdin is None or (text is None and is_terminal(sys.stdin)):
        raise WrongUsage("nothing is said: give a TEXT, or have it come from standard input", ctx=context)
    else:
        said, from_input = sys.stdin.read(), True
    if not said.strip():
        raise WrongUsage("the message is empty", ctx=context)
    return said, from_input
