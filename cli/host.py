"""`maka host`: start, status, stop. Arguments in, a document or text and an exit code out."""

from typing import Annotated

import typer

from . import exits
from .app_command import AppName
from .console import Console
from .journal import Json, Root, give
from .parsing import Command, Group, WrongUsage

host = typer.Typer(cls=Group, rich_markup_mode=None)

#: Seconds in which a host ends that was asked to, unless another time is given.
_TIMEOUT = 60.0


@host.callback(invoke_without_command=True)
def _host(context: typer.Context) -> int:
    """The process that owns a root and runs its sessions."""
    from .tree import help_of

    return help_of(context)


@host.command(cls=Command)
def start(
    context: typer.Context,
    app: AppName = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Be the host: run here until it is stopped, and log here.")
    ] = False,
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="SECONDS", help="End by itself after so long without a client and a turn."),
    ] = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Start the host of a root, unless one runs, and say who it is.

    It goes on in the background, and writes host.log under the root. What a host before it left open it takes up
    first: queued messages, turns that were admitted or handed over. With --foreground this process is the host, and
    with --json it prints its document once it is ready.

    Exit code: 0 it runs, 2 no app, or it could not start. With --foreground: 0 it was stopped, 1 it was and something
    did not end in time, 2 no app, or the root cannot be used, or not any more, 3 another host has the root.
    """
    import asyncio
    import contextlib
    import sys

    from . import hosting, render

    console: Console = context.obj
    seconds = _seconds(context, "--idle", idle)
    if foreground:
        from ..runtime.host.process import main

        hosting.refuse_without_app(app, root)
        where = hosting.place(root)
        if not as_json:
            return main(where, app, idle=seconds)
        # What an app prints is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            return main(where, app, idle=seconds, on_ready=lambda: console.document(hosting.begun(where)))
    with console.working("starting the host"):
        answer = asyncio.run(hosting.started(root, app, seconds, lambda said: console.say(said, "dim")))
    return give(console, answer, None if as_json else render.host_started)


@host.command(cls=Command)
def status(context: typer.Context, as_json: Json = False, root: Root = None) -> int:
    """Say what the host of a root does.

    Exit code: 0 it runs, 1 none does, or it does not answer, or this user cannot see whether one runs.
    """
    import asyncio

    from . import hosting, render

    console: Console = context.obj
    with console.working("asking the host"):
        answer = asyncio.run(hosting.looked_at(root))
    shown = render.host_status if answer.code == exits.DONE else _nothing
    return give(console, answer, None if as_json else shown)


@host.command(cls=Command)
def stop(
    context: typer.Context,
    handoff: Annotated[
        bool,
        typer.Option("--handoff", help="Pause what runs at its next step, for the next host to finish, if it can be."),
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SECONDS", help="Wait so long for its end; 60 if not given.")
    ] = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Ask the host of a root to end, and wait until it has.

    Turns that run are stopped, or with --handoff handed over; messages that are queued stay queued. Nothing is killed.

    Exit code: 0 it has ended, or none ran, 1 it did not in time, or does not answer, or this user cannot see whether
    one runs.
    """
    import asyncio

    from . import hosting, render

    console: Console = context.obj
    seconds = _seconds(context, "--timeout", timeout) or _TIMEOUT
    with console.working("waiting for the host to end"):
        answer = asyncio.run(hosting.stopped(root, handoff=handoff, timeout=seconds))
    return give(console, answer, None if as_json else render.host_stopped)


def _nothing(doc: object, paint: object) -> list[str]:
    """The sentence says it all."""
    return []


def _seconds(context: typer.Context, option: str, typed: str | None) -> float | None:
    if typed is None:
        return None
    try:
        seconds = float(typed)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise WrongUsage(f"{option} wants a number of seconds above 0, not {typed!r}", ctx=context)
    return seconds
