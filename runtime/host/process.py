"""A process that is a host: its app, its signals, its log, its exit code."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from ...journal.errors import JournalError
from ..app.loading import load_app
from ..errors import AppError, RuntimeFailure
from ..lifecycle import log
from .host import Host, ShutdownLate
from .ownership import HostRunning, RootLock

#: Exit codes: it was stopped; it was, and something did not end; it could not begin; another host has the root.
STOPPED: Final = 0
LATE: Final = 1
REFUSED: Final = 2
TAKEN: Final = 3

#: Seconds for threads that an app has left behind, once the host has ended.
_LEFTOVERS: Final = 5.0
#: Packages whose frames stand between this process and the app's module.
_LOADERS: Final = ("maka", "importlib", "_frozen_importlib", "_frozen_importlib_external")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def main(
    root: str | os.PathLike[str],
    app: str | None = None,
    *,
    idle: float | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Serves the root until it is stopped; gives the exit code. What goes wrong is one sentence on standard error.

    ``app``: the name of one, else whichever is configured. ``idle`` and ``on_ready``: see Host. SIGTERM and SIGINT stop
    it; at a second one it ends where it stands. The root is taken before the app is imported: one that hangs there is
    seen, and no second process is started beside it.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    place = Path(root)
    try:
        with RootLock.acquire(place) as lock:
            log.info("process %d is the host of %s and loads its app", os.getpid(), lock.root)
            loaded, source = load_app(app, place, os.environ, Path.cwd())
            return asyncio.run(_serve(Host(place, loaded, app_name=source.name, idle=idle, on_ready=on_ready), lock))
    except SystemExit as error:
        _leave_soon(LATE)
        by = f"something that the app has started called sys.exit({error.code!r}), which ends its host"
        return _said(RuntimeFailure(f"{by}; mend it so that it returns or raises"), LATE)
    except HostRunning as error:
        return _said(error, TAKEN)
    except AppError as error:
        if (cause := _of_the_app(error)) is not None:
            log.error("the app cannot be loaded", exc_info=cause)
        return _said(error, REFUSED)
    except (RuntimeFailure, JournalError) as error:
        return _said(error, REFUSED)


def _of_the_app(error: AppError) -> BaseException | None:
    """What the app itself raised, with its own frames alone; None where nothing of it has run."""
    cause = error.__cause__
    frames = None if cause is None else cause.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _LOADERS:
        frames = frames.tb_next
    return None if cause is None or frames is None else cause.with_traceback(frames)


async def _serve(host: Host, lock: RootLock | None = None) -> int:
    asked: list[int] = []

    def stop(number: int) -> None:
        if asked:
            _tell("ERROR the host was told to end twice and ends where it stands; the next one recovers what ran")
            os._exit(LATE)
        asked.append(number)
        loop.call_soon_threadsafe(host.shut_down, "stop")
        _tell(f"INFO the host is stopped by {signal.Signals(number).name}")

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        # Not the loop's: what an app does there must not keep a second one from being heard.
        signal.signal(number, lambda given, _: stop(given))
    try:
        await host.serve(lock)
    except ShutdownLate as error:
        # What hangs, a thread perhaps, must not keep the process: the locks end with it.
        _leave(_said(error, LATE))
    _leave_soon(STOPPED)
    return STOPPED


def _tell(sentence: str) -> None:
    """From within a signal's handler, which may have come amid a line of the log."""
    with suppress(OSError):
        os.write(2, f"{sentence}\n".encode())


def _leave_soon(code: int) -> None:
    """All is given back. What an app has left behind has a moment to end by itself."""
    last = threading.Timer(_LEFTOVERS, _leave, (code,))
    last.daemon = True
    last.start()


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    os._exit(code)


def _said(error: BaseException, code: int) -> int:
    print(f"maka: {error}", file=sys.stderr, flush=True)
    return code
