"""A tool that runs a command and ends it with every process that came of it."""

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import attrs

from ...journal.events import JsonObject, Recovery
from .base import LeftBehind, ToolContext, ToolOutput, text_block
from .supervise import KILL_SECONDS

if TYPE_CHECKING:
    import subprocess

_SUPERVISOR: Final = str(Path(__file__).with_name("supervise.py"))
#: Bytes of output held in memory; more goes to a temporary file.
_IN_MEMORY: Final = 1 << 20
#: Bytes shown of the beginning and of the end of a long output.
_SHOWN: Final = 12 * 1024
#: Bytes kept at all. A command that writes more is read on, so that it does not block, but the rest is only counted.
_KEPT: Final = 256 << 20
#: Seconds that output may take to arrive after everything that could write it has ended.
_DRAIN: Final = 1.0
#: Seconds that the supervisor may take beyond those it gives the command's processes.
_SPARE: Final = 2.0


@attrs.frozen
class Command:
    """Runs a command line with ``/bin/sh``.

    ``limit`` is the longest that a call may take, in seconds; ``grace`` the seconds between the polite request to end
    and SIGKILL. Standard output and error are captured together, in the order in which they were written.

    A shell can reach anywhere, and no look at a command line tells where; so there is no ``leaves``, and every call
    asks unless the permission mode is ``bypass``.
    """

    limit: float = 120.0
    grace: float = 0.5
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    name: str = "command"
    recovery: Recovery = "never"
    parallel_safe: bool = False
    #: The body keeps the time itself: it has to end the processes and to say what the command had written.
    timeout: float | None = None
    description: str = (
        "Run a command line in the working directory; standard output and error come back together. "
        "It and every process it started are ended when it returns or its time is over."
    )

    @property
    def parameters(self) -> JsonObject:
        return {
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1},
                "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": self.limit},
            },
            "required": ["command"],
            "additionalProperties": False,
        }

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        """``ok`` for exit status 0, ``error`` for another, ``unknown`` where the time was over.

        Raises LeftBehind when it is cancelled and a process lives on.
        """
        seconds = float(arguments.get("timeout_seconds", self.limit))
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as output:
            report = await _run((*self.shell, arguments["command"]), context.cwd, seconds, self.grace, output)
            content = await _content(output, report, context)
        return _judged(content, report, seconds)


@attrs.define
class _Report:
    """How a command ended. ``status`` is None where it was ended, or its supervisor was."""

    status: int | None = None
    error: str | None = None
    ended: int = 0
    survivors: list[int] = attrs.Factory(list)
    timed_out: bool = False
    lost: bool = False
    written: int = 0
    unkept: str | None = None


class _Collector(asyncio.Protocol):
    """Takes what arrives on a pipe into a file, up to a bound."""

    def __init__(self, file: BinaryIO, kept: int) -> None:
        self._file = file
        self._kept = kept
        self.written = 0
        self.failure: str | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        room = self._kept - self.written
        if room > 0 and self.failure is None:
            try:
                self._file.write(data[:room])
            except OSError as error:
                # Read on, so that the command does not block.
                self.failure = error.strerror
        self.written += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def _collect(pipe: BinaryIO, file: BinaryIO, kept: int) -> tuple[asyncio.BaseTransport, _Collector]:
    return await asyncio.get_running_loop().connect_read_pipe(lambda: _Collector(file, kept), pipe)


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    read, write = os.pipe()
    return io.FileIO(read, "rb"), io.FileIO(write, "wb")


async def _run(command: tuple[str, ...], cwd: Path, seconds: float, grace: float, output: Any) -> _Report:
    """Where it is cancelled it raises once everything has ended; LeftBehind where something has not."""
    import subprocess

    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        control_read, control = _pipe()
        theirs.enter_context(control_read)
        ours.enter_context(control)
        report, report_write = _pipe()
        ours.enter_context(report)
        theirs.enter_context(report_write)
        shown, shown_write = _pipe()
        ours.enter_context(shown)
        theirs.enter_context(shown_write)
        fds = (control_read.fileno(), report_write.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, *map(str, fds), str(grace), *command],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=shown_write,
                stderr=shown_write,
                pass_fds=fds,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # ValueError: the command holds what no program can be given, a NUL for one.
            return _Report(error=f"the command cannot be started: {getattr(error, 'strerror', None) or error}")
        theirs.close()
        enough = asyncio.Event()
        # In a task of its own: what cancels this one must not leave processes without anyone who ends them.
        watch = asyncio.ensure_future(_watch(process, (control, report, shown), enough, seconds, grace, output))
        try:
            return await asyncio.shield(watch)
        except asyncio.CancelledError:
            enough.set()
            while not watch.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({watch})
            if not watch.cancelled() and (watch.result().survivors or watch.result().lost):
                raise _left_behind(watch.result()) from None
            raise


async def _watch(
    process: "subprocess.Popen[bytes]",
    pipes: tuple[io.FileIO, io.FileIO, io.FileIO],
    enough: asyncio.Event,
    seconds: float,
    grace: float,
    output: Any,
) -> _Report:
    """A command from its start to its end, which ``enough`` brings on. To close the control is to end everything."""
    control, report, shown = pipes
    answer, result = io.BytesIO(), _Report()
    bound = grace + KILL_SECONDS + _SPARE
    stopped = asyncio.ensure_future(enough.wait())
    with contextlib.ExitStack() as transports:
        try:
            transport, out = await _collect(shown, output, _KEPT)
            transports.callback(transport.close)
            transport, reporter = await _collect(report, answer, 1 << 20)
            transports.callback(transport.close)
            until: list[asyncio.Future[Any]] = [reporter.closed, stopped]
            await asyncio.wait(until, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            result.timed_out = not reporter.closed.done() and not stopped.done()
            control.close()
            await asyncio.to_thread(_reap, process, bound)
            # What a survivor holds open never comes to its end.
            await asyncio.wait({reporter.closed, out.closed}, timeout=_DRAIN)
        finally:
            stopped.cancel()
            control.close()
            await asyncio.to_thread(_reap, process, bound)
    _read(result, answer.getvalue())
    result.written, result.unkept = out.written, out.failure
    return result


def _reap(process: "subprocess.Popen[bytes]", bound: float) -> None:
    """Waits for the supervisor, which ends by itself unless the command has stopped it: then it is killed."""
    import subprocess

    try:
        process.wait(bound)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(result: _Report, answer: bytes) -> None:
    said = [json.loads(line) for line in answer.splitlines(keepends=True) if line.endswith(b"\n")]
    result.error = next((word for word in said if isinstance(word, str)), None)
    last = said[-1] if said else None
    if isinstance(last, dict):
        result.status, result.ended, result.survivors = last["status"], last["ended"], last["survivors"]
        return
    # Killed before its last word. The command's own group is known, what left it is not.
    result.lost = True
    if said:
        with contextlib.suppress(OSError):
            os.killpg(said[0], signal.SIGKILL)


async def _content(output: Any, report: _Report, context: ToolContext) -> list[JsonObject]:
    size = output.tell()
    output.seek(0)
    if size <= 2 * _SHOWN:
        whole = output.read()
        block = text_block(whole.decode("utf-8", "replace"))
        if block["text"].encode() != whole:
            block["lossy"] = True
        return [block] if whole else []
    head = output.read(_SHOWN)
    output.seek(size - _SHOWN)
    tail = output.read()
    left_out = report.written - len(head) - len(tail)
    shown = f"{head.decode('utf-8', 'replace')}\n[… {left_out} bytes left out …]\n{tail.decode('utf-8', 'replace')}"
    output.seek(0)
    return [{"kind": "text", "text": shown, "ref": await context.store(output), "bytes": size}]


def _left_behind(report: _Report) -> LeftBehind:
    survivors = report.survivors
    return LeftBehind(_survivors(report), goes_on=None if report.lost else lambda: any(map(_lives, survivors)))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and somebody else's now
    return True


def _survivors(report: _Report) -> str:
    if report.lost:
        return "the command's supervisor was killed, so processes of the command may live on"
    return f"processes that could not be ended: {', '.join(map(str, report.survivors))}"


def _judged(content: list[JsonObject], report: _Report, seconds: float) -> ToolOutput:
    said = [text_block(text) for text in _remarks(report, seconds)]
    content = content + said
    if report.timed_out and report.status is None:
        return ToolOutput(content, "unknown", {"name": "ToolTimeoutError", "code": "TOOL_TIMED_OUT"})
    if report.lost:
        return ToolOutput(content, "unknown", {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"})
    if report.error is not None or report.status != 0:
        return ToolOutput(content, "error", {"name": "CommandFailedError", "code": "COMMAND_FAILED"})
    return ToolOutput(content or [text_block("(no output)")])


def _remarks(report: _Report, seconds: float) -> list[str]:
    remarks = []
    if report.unkept is not None:
        remarks.append(f"only a part of its {report.written} bytes of output could be kept: {report.unkept}")
    elif report.written > _KEPT:
        remarks.append(f"only the first {_KEPT} of {report.written} bytes were kept")
    if report.error is not None:
        remarks.append(report.error)
    elif report.timed_out and report.status is None:
        remarks.append(f"the time of {seconds:g} s was over and the command was ended; what it had done stays done")
    elif report.status is not None and report.status < 0:
        remarks.append(f"ended by signal {-report.status}")
    elif report.status:
        remarks.append(f"exit status {report.status}")
    if report.ended and not report.timed_out:
        remarks.append(f"processes that it left running and that were ended: {report.ended}")
    if report.survivors or report.lost:
        remarks.append(_survivors(report))
    return remarks
