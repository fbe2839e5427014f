"""The host of a root: started, looked at, ended. Gives documents."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..runtime.app import find_app, load_app
from ..runtime.host import (
    HostError,
    HostStartFailed,
    HostUnreachable,
    Registration,
    absence,
    connect,
    ensure_host,
)
from ..runtime.host.absence import LOG
from ..runtime.host.endpoint import read_registration
from ..runtime.host.ownership import lives, owner
from . import exits
from .documents import Answer, Doc, place_of_config

#: A sentence for whoever waits.
Say = Callable[[str], None]

#: Seconds for finding or starting a host, until it is ready.
START: Final = 30.0
#: Seconds after which whoever waits for a host is told why, and in which a host says it.
_SOON: Final = 0.3
_GLANCE: Final = 2.0
#: Seconds in which a host that is alive shows it.
_PATIENCE: Final = 5.0
#: The part of the time for a handoff in which runs may come to a step.
_FOR_STEPS: Final = 0.6
#: Seconds for a process to end that has given its root back.
_LAST: Final = 1.0
#: Seconds between two looks whether the root is free, once its host has closed its connections.
_PAUSE: Final = 0.02


def place(root: str | None) -> Path:
    """The root that is meant, with one name wherever a command of it is run."""
    return Path(os.path.abspath(place_of_config(root)))


def refuse_without_app(name: str | None, root: str | None) -> None:
    """Raises the AppError that says how an app is named, where none is. Imports none."""
    if find_app(name, place_of_config(root), os.environ) is None:
        load_app(None, place_of_config(root), os.environ, Path.cwd())


async def started(root: str | None, app: str | None, idle: float | None, say: Say) -> Answer:
    """Of `host start`: the host that runs now, once it is ready. ``started``: it did not run before.

    Raises as ``ready``.
    """
    where = place(root)
    before = read_registration(where)
    registered = await ready(root, app, idle, say, START)
    async with connect(where, surface="cli") as client:
        status = await client.status()
    doc = {"started": before is None or before.host_epoch != registered.host_epoch, **_registered(registered, status)}
    return Answer(doc, exits.DONE, None if doc["started"] else _other_app(doc, app))


async def ready(root: str | None, app: str | None, idle: float | None, say: Say, seconds: float) -> Registration:
    """The host of the root, once it is ready: found, started, or waited for where another one still ends, which ``say``
    is told. All of it takes no longer than ``seconds``.

    Raises AppError where there is none to start one with, HostStartFailed, HostUnreachable, HostError.
    """
    where, loop = place(root), asyncio.get_running_loop()
    until = loop.time() + seconds
    if owner(where) is None:
        refuse_without_app(app, root)
    electing = loop.create_task(ensure_host(where, app=app, idle=idle, timeout=max(round(seconds, 1), 1)))
    why: str | None = None
    try:
        await asyncio.wait({electing}, timeout=_SOON)
        if not electing.done() and (why := await ending(where)) is not None:
            refuse_without_app(app, root)
            say(f"{why}; the next one is started then")
        registered = await electing
    except HostStartFailed as error:
        if why is None:
            raise
        why = await ending(where) or why
        late = f"{why}, and has not ended for {seconds:g} s; wait for its end, or read {where / LOG}, then try again"
        raise HostStartFailed(late) from error
    finally:
        electing.cancel()
        await asyncio.gather(electing, return_exceptions=True)
    if registered.state != "ready":
        async with connect(where, surface="cli", timeout=max(until - loop.time(), 1.0)):
            pass
    return registered


async def ending(where: Path) -> str | None:
    """That the host there is ending, and what it waits for; None where none is, or it does not answer."""
    try:
        async with connect(where, surface="cli", wait_ready=False, reconnect=False, timeout=_GLANCE) as client:
            status = await client.status() if client.state == "draining" else None
    except (HostUnreachable, HostError):
        return None
    if status is None or status["state"] != "draining":
        return None
    turns = [f"turn {row['turn_id']} of session {row['session_id']}" for row in status["active"]]
    more = f" and {len(turns) - 1} more" if len(turns) > 1 else ""
    waits = f"the end of {turns[0]}{more}" if turns else "what it runs to be put away"
    return f"the host of {where} (process {status['pid']}) is ending (draining) and waits for {waits}"


def begun(where: Path) -> Doc:
    """Of `host start --foreground`, of the host that this process is, once it is ready."""
    registered = read_registration(where)
    if registered is None:
        return {"started": True, "root": str(where), "state": "ready", "pid": os.getpid()}
    return {"started": True, **_registered(registered, {"state": "ready", "app": registered.app})}


def _registered(registered: Registration, status: Doc) -> Doc:
    keys = ("host_epoch", "pid", "version", "started_at")
    doc: Doc = {"root": registered.root, "state": status["state"], **{key: getattr(registered, key) for key in keys}}
    return {**doc, "app": status.get("app"), "endpoint": registered.endpoint}


def _other_app(doc: Doc, app: str | None) -> str | None:
    if app is None or doc["app"] in (None, app):
        return None
    return f"the host that runs has the app {doc['app']}, not {app}; end it with `maka host stop`, then start it again"


async def looked_at(root: str | None) -> Answer:
    """Of `host status`: what the host says of itself, or that there is none, or one that does not answer."""
    where = place(root)
    try:
        async with connect(where, surface="cli", wait_ready=False, reconnect=False, timeout=_PATIENCE) as client:
            return Answer(await client.status(), exits.DONE)
    except HostUnreachable:
        return _absent(where, exits.PENDING)


async def stopped(root: str | None, *, handoff: bool, timeout: float) -> Answer:
    """Of `host stop`: asks it to end, and waits until the root is free. Nothing is ever killed here."""
    where = place(root)
    until = asyncio.get_running_loop().time() + timeout
    pid: int | None = None
    patience = min(_PATIENCE, timeout)
    try:
        async with connect(where, surface="cli", wait_ready=False, reconnect=False, timeout=patience) as client:
            pid = (await client.status())["pid"]
            # Where runs come to no step in time the host stops them, which takes its time too.
            await (client.shutdown("handoff", timeout * _FOR_STEPS) if handoff else client.shutdown("stop"))
            async with asyncio.timeout_at(until):
                await client.closed
    except HostUnreachable:
        # One that had been asked has gone meanwhile.
        if pid is None:
            absent = _absent(where, exits.DONE)
            none = f"no host runs for {where}, so there is none to end"
            refusal = none if absent.doc["state"] == "none" else absent.refusal
            return Answer({**absent.doc, "stopped": False}, absent.code, refusal)
    except TimeoutError:
        pass
    clock = asyncio.get_running_loop().time
    # Whoever gives the root up says so a moment before.
    while (held := owner(where)) is not None and held["pid"] in (pid, None):
        if clock() >= until:
            doc = {"root": str(where), "state": "draining", "pid": pid, "stopped": False}
            late = f"process {pid} was told to end and has not for {timeout:g} s; look at {where / LOG}, and try again"
            return Answer(doc, exits.PENDING, late)
        await asyncio.sleep(_PAUSE)
    assert pid is not None
    last = min(until, clock() + _LAST)
    while (alive := lives(pid)) and clock() < last:
        await asyncio.sleep(_PAUSE)
    still = (
        f"process {pid} has given the root back and still lives: what its app has left behind is given a few seconds, "
        "then it ends by itself"
    )
    doc = {"root": str(where), "state": "none", "pid": pid, "stopped": True}
    return Answer(doc, exits.DONE, still if alive else None)


def _absent(where: Path, code: int) -> Answer:
    """Where no host answers; ``code`` is for where there is none."""
    found = absence.look(where)
    doc: Doc = {"root": str(where), "state": found.state, "pid": found.pid}
    return Answer(doc, code if found.state == "none" else exits.PENDING, found.message)
