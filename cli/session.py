"""`maka session`: list, show, archive, resume, settle. Arguments in, a document or text and an exit code out."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import exits
from .app_command import AppName
from .console import Console
from .journal import Json, Root, Target, give, given_list, journal
from .parsing import Command, Group, WrongUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..journal.events import Recovery
    from .documents import Answer
    from .resume import Place
    from .signals import Interrupt


class _Session(Group):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        there = {command.name or getattr(command.callback, "__name__", "") for command in journal.registered_commands}
        if self.get_command(ctx, args[0]) is None and args[0] in there:
            raise WrongUsage(f"there is no `maka session {args[0]}`; `maka journal {args[0]}` is meant", ctx=ctx)
        return super().resolve_command(ctx, args)


session = typer.Typer(cls=_Session, rich_markup_mode=None)


@session.callback(invoke_without_command=True)
def _session(context: typer.Context) -> int:
    """List sessions, read them, put them away, go on with them."""
    from .tree import help_of

    return help_of(context)


@session.command(name="list", cls=Command)
def list_(context: typer.Context, as_json: Json = False, root: Root = None) -> int:
    """List the sessions of a root, and which of their turns run now.

    As the host of the root knows them, where one runs; else as `maka journal list` does. Of a host that does not answer
    it is said so. A session without a name is shown with its first words.
    """
    import asyncio

    from . import render, through

    console: Console = context.obj
    with console.working("listing sessions"):
        doc, place, untold = asyncio.run(through.listed(root))
    code = given_list(console, doc, place, None if as_json else render.sessions)
    if untold is not None:
        console.say(f"maka: {untold}", "yellow")
    return code


@session.command(cls=Command)
def show(context: typer.Context, target: Target, as_json: Json = False, root: Root = None) -> int:
    """Print the conversation as a person reads it, as `maka journal show` does.

    Exit code: 0 printed, 4 unreadable or unsupported, 2 no such session.
    """
    from .journal import show as shown

    return shown(context, target, as_json, root)


@session.command(cls=Command)
def archive(
    context: typer.Context,
    target: Target,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back: the session is in use again.")] = False,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Put a session away: it takes no messages any more, and stays readable.

    Exit code: 0 done, 2 no such session, or something runs or waits in it, 3 locked by a live writer, 4 damaged,
    unsupported or unreadable.
    """
    import asyncio

    from . import continuation
    from . import resume as work

    console: Console = context.obj
    place = work.place_of(target, root)
    with console.working(f"changing {target}"), console.logged("maka.runtime"):
        doc = asyncio.run(work.archived(place, archived=not undo))
    if as_json:
        console.document(doc)
    else:
        console.write(continuation.archiving(doc))
    return exits.DONE


@session.command(cls=Command)
def resume(
    context: typer.Context,
    target: Target,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="ID",
            help="The run to go on from, or the beginning of its id, of 4 characters at least; the latest that was cut "
            "off or handed over if not given.",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="With --run: it may be one that has completed. Its answer is then kept from the model."
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say whether it can go on, and from where; write nothing.")
    ] = False,
    rerun: Annotated[
        str | None,
        typer.Option(
            "--rerun",
            metavar="KINDS",
            help="Call tools of these kinds again whose outcome is unknown: read_only,idempotent.",
        ),
    ] = None,
    permission_mode: Annotated[
        str | None,
        typer.Option(
            "--permission-mode",
            metavar="MODE",
            help="First give the session this mode, for good: ask, execute, bypass.",
        ),
    ] = None,
    app: AppName = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """Recover a session, and go on with the run that was cut off, or with the turn that was handed over.

    What was left open is closed. Then a plan says whether the run can go on: where it cannot, why, and what to do.
    Else a new run goes on from the last safe point of the old one, without sending a message again, and is shown while
    it works. A turn that was handed over is finished by its successor in the same way. Ctrl-C and SIGTERM stop it; a
    second one does not wait for that.

    Exit code: 0 done, or the plan says that it goes on, 1 parked, or the turn failed, was stopped or was handed over,
    or --again is missing, 5 the turn met a limit, 2 no such session or run, no app (what was left open is closed even
    so), or an error while writing, 3 locked by a live writer, 4 damaged, unsupported or unreadable, 130 stopped by
    Ctrl-C, 143 by SIGTERM.
    """
    import asyncio
    import contextlib
    import sys

    from . import continuation, documents, signals

    console: Console = context.obj
    kinds = _kinds(context, rerun)
    _check_mode(context, permission_mode, plan)
    _check_id(context, "--run", run)
    if again and run is None:
        raise WrongUsage("--again is for a run that has completed; name it by --run ID", ctx=context)
    told = signals.Interrupt()
    # What an app, its backends and its tools print is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr), console.logged("maka.runtime"):
        try:
            answer = asyncio.run(
                _resume(
                    context,
                    told,
                    target,
                    root,
                    app,
                    run=run,
                    again=again,
                    rerun=kinds,
                    mode=permission_mode,
                    dry=plan,
                    as_json=as_json,
                )
            )
        except asyncio.CancelledError:
            return told.code
    if as_json:
        return give(console, answer, None)
    then, turn = {}, answer.doc["turn"]
    # What a refusal says of a turn that was stopped, or waits again, is what comes next.
    if turn is not None and (answer.refusal is None or turn["status"] == "failed"):
        then = {"next": documents.next_steps(target, root, app)}
    refused = answer.refusal is not None
    return give(console, answer, lambda doc, paint: continuation.end({**doc, **then}, paint, refused=refused))


async def _resume(
    context: typer.Context,
    told: "Interrupt",
    target: str,
    root: str | None,
    name: str | None,
    *,
    run: str | None,
    again: bool,
    rerun: "list[Recovery]",
    mode: str | None,
    dry: bool,
    as_json: bool,
) -> "Answer":
    from ..runtime.errors import RuntimeFailure
    from . import continuation, documents, owner, signals
    from . import resume as work
    from .live import Live

    console: Console = context.obj
    signals.cancelled_by_signal(told)
    place = work.place_of(target, root)
    if (host := owner.host_with(place.path.parent)) is not None:
        if (runs := owner.under_way(place.path.parent, host)) is not None:
            raise RuntimeFailure(f"{runs}, which stops that turn too")
        asked = "is asked for the plan" if dry else "goes on with it"
        console.say(f"the host of {host.root} (process {host.pid}) has the session open, and {asked}", "dim")
        return await _resume_there(
            context, told, place, target, root, run=run, again=again, rerun=rerun, mode=mode, dry=dry, as_json=as_json
        )
    app = work.app_of(name, root)
    if app is None and mode is not None:
        work.refuse_without_app(root)
    words = documents.words_of(target, root, name)
    async with place.manager(app) as manager:
        with console.working(f"reading {target}"):
            meant = work.meant_by(place, run)
            if meant.handoff is not None and meant.waits is not None:
                _check_handoff(context, {"--again": again, "--rerun": rerun, "--permission-mode": mode})
            plan, answer = await work.planned(manager, place, meant, rerun=rerun, mode=mode, dry=dry, app=app)
            going = plan.continuation
            boundary = None if going is None or as_json else work.boundary_of(place, going)
        if not as_json:
            console.write(continuation.plan(answer.doc, console.paint, boundary, words))
        if dry or going is None:
            return answer
        if not again and (refused := work.unasked(answer)) is not None:
            return refused
        if app is None:
            work.refuse_without_app(root)
        live = None if as_json else Live(console)
        try:
            return await work.run(manager, going, answer.doc, live, words=words, handoff=meant.handoff, told=told)
        finally:
            if live is not None:
                live.close()


async def _resume_there(
    context: typer.Context,
    told: "Interrupt",
    place: "Place",
    target: str,
    root: str | None,
    *,
    run: str | None,
    again: bool,
    rerun: "list[Recovery]",
    mode: str | None,
    dry: bool,
    as_json: bool,
) -> "Answer":
    """The same by the host that has the session open, which has an app of its own."""
    from ..runtime.host import connect
    from . import continuation, documents, naming, onward, running, through
    from . import resume as work

    console: Console = context.obj
    session = place.survey()
    run_id = None if run is None else naming.run(run, session.runs(), session.turns())
    async with connect(place.root, surface="cli") as client:
        said, answer = await through.planned(
            client, place.path, place.session_id, run_id, rerun=rerun, mode=mode, dry=dry
        )
        if not as_json:
            words = documents.words_of(target, root, None)
            console.write(continuation.plan(answer.doc, console.paint, None, words))
        if dry or answer.code != exits.DONE:
            return answer
        if not again and (refused := work.unasked(answer)) is not None:
            return refused
        resume = {key: said[key] for key in ("source_run_id", "high_water")} | {"rerun": rerun}
        named = onward.words_of(target, root)
        order = running.Order(session_id=place.session_id, words=named, text=None, resume=resume)
        done = await running.carried_out(client, order, console, None, quiet=as_json, told=told)
    return documents.Answer({**answer.doc, "turn": done.doc["turn"]}, done.code)


@session.command(cls=Command)
def settle(
    context: typer.Context,
    target: Target,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="With --ok: what the call came to, for the model.")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            "--claim", metavar="ID", help="End a continuation of which nobody knows whether it was carried out."
        ),
    ] = None,
    handoff: Annotated[
        str | None,
        typer.Option(
            "--handoff", metavar="ID", help="Give up a handoff whose successor nobody will let finish the turn."
        ),
    ] = None,
    call: Annotated[
        str | None, typer.Option("--call", metavar="ID", help="State what came of a call whose outcome is unknown.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="With --handoff: why, for whoever reads the journal.")
    ] = None,
    ok: Annotated[bool, typer.Option("--ok", help="Its effect happened.")] = False,
    error: Annotated[
        str | None,
        typer.Option("--error", metavar="TEXT", help="It did not happen, or went wrong: why, for the model."),
    ] = None,
    as_json: Json = False,
    root: Root = None,
) -> int:
    """State what nobody else can know, so that a session can go on.

    --call with --ok or --error states what came of a call that was cut off: first look outside, because the model
    will rely on it. --claim ends a continuation that was cut off when its model may have been asked. --handoff gives up
    a turn that was handed over and waits for its successor: the turn has then failed, and can be resumed. No model is
    asked and no tool is run; what is stated first stands.

    The same of a call again is fine, and writes nothing. Exit code: 0 settled, 2 nothing of that name is to be settled,
    or it was with another outcome, 3 locked by a live writer, 4 damaged, unsupported or unreadable, 130 stopped by
    Ctrl-C.
    """
    if sum(named is not None for named in (claim, handoff, call)) != 1:
        raise WrongUsage("name what is to be settled by one of --claim ID, --handoff ID and --call ID", ctx=context)
    if call is not None and ok == (error is not None):
        raise WrongUsage("say what came of the call by either --ok or --error TEXT", ctx=context)
    if call is None and (ok or error is not None):
        other = "--claim" if handoff is None else "--handoff"
        raise WrongUsage(f"--ok and --error say what came of a --call, not of a {other}", ctx=context)
    if reason is not None and handoff is None:
        raise WrongUsage("--reason says why a --handoff is given up, and nothing else", ctx=context)
    if text is not None and not ok:
        raise WrongUsage("a TEXT behind TARGET belongs to --ok; --error has its own", ctx=context)
    if error is not None and not error.strip():
        raise WrongUsage("--error wants to know why, for the model", ctx=context)
    _check_id(context, "--claim", claim)
    _check_id(context, "--handoff", handoff)
    _check_id(context, "--call", call)
    import asyncio

    from . import continuation, documents, owner
    from . import resume as work

    console: Console = context.obj
    place = work.place_of(target, root)
    said = reason if handoff is not None else text if ok else error
    with console.working(f"settling {target}"), console.logged("maka.runtime"):
        # A host that needs the session for nothing lets go of it.
        doc = owner.released(
            lambda: asyncio.run(work.settled(place, claim=claim, handoff=handoff, call=call, ok=ok, text=said))
        )
    if as_json:
        console.document(doc)
    else:
        then = {"next": documents.next_steps(target, root)}
        console.write(continuation.settlement({**doc, **then}, console.paint))
    return exits.DONE


def _check_id(context: typer.Context, option: str, typed: str | None) -> None:
    if typed is not None and not typed.strip():
        raise WrongUsage(f"{option} is given no id; `maka journal inspect` lists what there is", ctx=context)


def _check_handoff(context: typer.Context, given: "Mapping[str, object]") -> None:
    if option := next((option for option, value in given.items() if value), None):
        raise WrongUsage(
            f"{option} has no meaning here, because the turn was handed over: its successor has the settings of the "
            "run that was paused and does what that had left to do; leave the option out",
            ctx=context,
        )


def _check_mode(context: typer.Context, mode: str | None, plan: bool) -> None:
    from ..runtime.permissions import MODES

    if mode is not None and mode not in MODES:
        raise WrongUsage(f"--permission-mode is one of {', '.join(MODES)}, not {mode!r}", ctx=context)
    if mode is not None and plan:
        raise WrongUsage(
            "--permission-mode changes the session, and --plan writes nothing; give one of them", ctx=context
        )


def _kinds(context: typer.Context, rerun: str | None) -> "list[Recovery]":
    if rerun is None:
        return []
    from ..runtime.tools.base import AGAIN

    words = [word.strip() for word in rerun.split(",")]
    if unknown := [word for word in words if word not in AGAIN]:
        raise WrongUsage(f"--rerun takes {' or '.join(AGAIN)}, or both with a comma, not {unknown[0]!r}", ctx=context)
    return [kind for kind in AGAIN if kind in words]
