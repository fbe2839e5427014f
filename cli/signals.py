"""Ctrl-C and SIGTERM: what a command that runs something does about them."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import attrs

from . import exits

#: What stops a command, and with what exit code it then ends.
SIGNALS: Final = {signal.SIGINT: exits.INTERRUPTED, signal.SIGTERM: exits.TERMINATED}


@attrs.define
class Interrupt:
    """How the command ends where a signal has stopped it: its exit code."""

    code: int = exits.INTERRUPTED


def cancelled_by_signal(told: Interrupt, leave: Callable[[], None] | None = None) -> None:
    """From now on Ctrl-C and SIGTERM cancel this task, which ``told`` is told of. Another signal ends the process as it
    stands, once ``leave`` has said so: the journal survives that.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel(code: int) -> None:
        told.code = code
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if leave is None else end)
        task.cancel()

    def end(number: int, frame: object) -> None:
        assert leave is not None
        leave()
        os._exit(SIGNALS[signal.Signals(number)])

    # Where no signal reaches this thread there is none to take.
    with suppress(RuntimeError, NotImplementedError):
        for number, code in SIGNALS.items():
            loop.add_signal_handler(number, cancel, code)
