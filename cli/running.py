"""One message and the turn that comes of it, through a host: shown while it runs, stopped by a signal."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..runtime.host import HostError, HostUnreachable
from ..runtime.host.endpoint import read_registration
from ..runtime.ids import new_id
from . import exits
from .answering import Form
from .console import Console
from .documents import Answer, Doc
from .live import Live
from .signals import Interrupt
from .typed import Typed
from .watching import Watching, text_of

if TYPE_CHECKING:
    from ..runtime.host import Client

Json = dict[str, Any]

#: Seconds after which it is said that a turn has not been stopped yet.
_SOON: Final = 0.7
_BUSY: Final = "session_busy"
ARCHIVED: Final = "session_archived"


@attrs.define(kw_only=True)
class Order:
    """What is to be done, by ids of its own: however often it is begun again, one turn comes of it.

    ``text`` None: a run that was cut off goes on, as ``resume`` says. ``settings`` are those of a session that is new;
    None: it is there, and ``patch`` is set of it first.
    """

    session_id: str
    text: str | None
    settings: Json | None = None
    patch: Json = attrs.Factory(dict)
    options: Json = attrs.Factory(dict)
    resume: Json = attrs.Factory(dict)
    queue: bool = False
    turn_id: str = attrs.Factory(new_id)
    message_id: str = attrs.Factory(new_id)
    patch_id: str = attrs.Factory(new_id)
    #: The session as commands are to name it; by itself by its id.
    words: str = attrs.Factory(lambda self: self.session_id, takes_self=True)
    #: The turns that may have come of it, once it was asked for.
    turns: set[str] = attrs.Factory(set)
    #: May a host have taken it; has the person been told of the session?
    asked: bool = False
    announced: bool = False


async def carried_out(
    client: "Client", order: Order, console: Console, typed: Typed | None, *, quiet: bool, told: Interrupt
) -> Answer:
    """Does it over this connection, and gives ``{session_id, turn: {turn_id, run_id, status, reason}, text}``.

    ``typed``: where a person answers questions. ``quiet``: nothing is shown. Where this is cancelled the turn is
    stopped, and the answer has its end, with the exit code of ``told``.
    """
    live = None if quiet else Live(console, gap=False, mine={order.message_id})
    if order.settings is not None:
        await client.create_session(order.session_id, **order.settings)
        if not quiet and not order.announced:
            order.announced = True
            console.say(f"session {order.session_id}", "dim")
    if order.patch:
        await client.update_session(order.session_id, order.patch, order.patch_id)
    turns = {order.turn_id}
    watch = Watching(
        client,
        order.session_id,
        console,
        live,
        turns=turns,
        ask=lambda form: _ask(console, form, order, there=typed is not None and not typed.over),
    )
    async with watch:
        loop = asyncio.get_running_loop()
        keyboard = None if typed is None else loop.create_task(_answers(watch, typed))
        beginning = loop.create_task(_begun(watch, order))
        code: int | None = None
        try:
            try:
                turn_id = await asyncio.shield(beginning)
                turns.add(turn_id)
                order.turns.add(turn_id)
                await watch.until(lambda: turn_id in watch.ended)
            except asyncio.CancelledError:
                code = told.code
                await _given_up_aloud(watch, order, beginning)
        finally:
            tasks = [beginning] if keyboard is None else [beginning, keyboard]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        begun = not beginning.cancelled() and beginning.exception() is None
        return await _answer(watch, order, beginning.result() if begun else order.turn_id, code)


async def _begun(watch: Watching, order: Order) -> str:
    """The turn that came of it. One that has to wait for others is waited for."""
    client, session_id = watch.client, order.session_id
    order.asked = True
    if not order.queue:
        order.turns.add(order.turn_id)
    if order.text is None:
        started = await client.start_resume(session_id, order.turn_id, **order.resume)
        watch.begun(started["turn"])
        return order.turn_id
    if not order.queue:
        started = await client.start_turn(
            session_id, order.text, order.turn_id, message_id=order.message_id, **order.options
        )
        watch.begun(started["turn"])
        return order.turn_id
    watch.waiting.add(order.message_id)
    submitted = await client.submit_message(session_id, order.text, order.message_id, "next_turn")
    if submitted["disposition"] == "turn_started":
        return str(submitted["turn_id"])
    watch.console.say("the message waits for its turn", "dim")
    await watch.until(lambda: order.message_id in watch.became or order.message_id in watch.retracted)
    if order.message_id not in watch.became:
        raise HostError("not_found", "the message was taken out of the queue by somebody else, so no turn came of it")
    return watch.became[order.message_id]


async def _given_up_aloud(watch: Watching, order: Order, beginning: "asyncio.Task[str]") -> None:
    """The same; where the host does not do it at once that is said, and for one that is gone nobody waits."""
    client, loop = watch.client, asyncio.get_running_loop()
    registered = read_registration(client.root)
    who = "the host" if registered is None else f"the host (process {registered.pid})"
    stopping, lost = loop.create_task(_given_up(watch, order, beginning)), loop.create_task(_lost(client))
    try:
        done, _ = await asyncio.wait({stopping, lost}, timeout=_SOON, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            watch.console.say(
                f"asking {who} to stop the turn; it has not answered yet, and a second Ctrl-C leaves", "dim"
            )
            done, _ = await asyncio.wait({stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
        if stopping in done:
            stopping.result()
        else:
            watch.console.say(f"{who} is gone, and with it what ran there", "yellow")
    finally:
        for task in (stopping, lost):
            task.cancel()
        await asyncio.gather(stopping, lost, return_exceptions=True)


async def _lost(client: "Client") -> None:
    """Returns once the connection is gone; it may come again."""
    while client.state != "disconnected":
        await client.ended(client.host_epoch)


async def _given_up(watch: Watching, order: Order, beginning: "asyncio.Task[str]") -> None:
    """Stops the turn and waits for its end, or takes the message out of the queue again. A host that is gone is let go:
    whether the turn has ended is said by the journal.
    """
    with suppress(HostUnreachable):
        if order.queue and not beginning.done():
            await watch.client.retract_queue(order.session_id, [order.message_id])
            if order.message_id not in watch.became:
                order.asked = False
                return
        # Of a turn that is just being begun the host may not know yet.
        while not await watch.stop(turn_id := beginning.result() if beginning.done() else order.turn_id):
            if beginning.done():
                return
            await asyncio.wait({beginning})
            beginning.result()
        await watch.until(lambda: turn_id in watch.ended)


async def _answers(watch: Watching, typed: Typed) -> None:
    while (line := await typed.line()) is not None:
        if watch.form is not None:
            await watch.answer(line)
    watch.ask_again()


def _ask(console: Console, form: Form, order: Order, *, there: bool) -> None:
    """``there``: somebody can answer here."""
    if there:
        console.write(form.lines(console.paint))
        return
    console.say(f"the turn waits for an answer: {form.summary()}", "yellow")
    console.say(f"answer it with `maka chat --session {order.words}` in a terminal, or in a program", "yellow")


async def _answer(watch: Watching, order: Order, turn_id: str, code: int | None) -> Answer:
    reason = watch.ended.get(turn_id)
    doc: Doc = {"session_id": order.session_id, "turn": None, "text": watch.text.get(turn_id)}
    if reason is not None:
        doc["turn"] = {"turn_id": turn_id, "run_id": watch.runs[turn_id], "status": reason["kind"], "reason": reason}
    if code is None:
        assert reason is not None
        code = exits.OF_TURN.get(reason["kind"], exits.PENDING)
        if doc["text"] is None and reason["kind"] == "completed":
            doc["text"] = await _said(watch, turn_id)
    return Answer(doc, code)


async def _said(watch: Watching, turn_id: str) -> str | None:
    """What a turn said last, of one whose end was not followed here."""
    async for event in watch.client.walk_history(watch.session_id):
        data = event["data"]
        if data.get("turn_id") == turn_id and event["type"] == "assistant/message":
            return text_of(data["content"])
        if data.get("turn_id") == turn_id and event["type"] == "turn/start":
            return None
    return None


def refusal_of(error: HostError, order: Order) -> HostError:
    """The refusal, with the way that this command has."""
    if error.code == ARCHIVED:
        return archived(order.session_id, order.words)
    if error.code != _BUSY or order.queue or order.text is None:
        return error
    way = "wait for its end, or give --queue to have this come next"
    return HostError(error.code, f"session {order.session_id} has a turn that runs; {way}")


def archived(session_id: str, words: str) -> HostError:
    """Of a session that takes no messages, with the commands for it, which name it by ``words``."""
    undo = f"`maka session archive {words} --undo` takes it back, and `maka session show {words}` reads it"
    return HostError(ARCHIVED, f"session {session_id} is put away and takes no messages; {undo}")
