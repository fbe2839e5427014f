"""A tool's body while it runs: the time that it has, how it is ended, and what it came to."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from types import coroutine
from typing import Any, Final, TypeGuard, TypeVar

import attrs

from ...journal.wording import UNKNOWN_ERROR
from ..lifecycle import log
from ..lingering import leave
from ..tasks import seen
from .base import LeftBehind, Tool, ToolContext, ToolFailed, ToolOutput, text_block

T = TypeVar("T")

#: Seconds a body may take, for tools that do not say.
TIMEOUT: Final = 120.0
#: Seconds for which a body may hold the event loop before somebody should know.
HELD: Final = 1.0

#: Is told, in words, what of a body could not be ended.
Left = Callable[[str], None]


class Unproven(Exception):
    """A look at the outside world told nothing. The message says why, in words that hold nothing of the call."""


async def execute(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext,
    *,
    grace: float,
    left: Left,
    late: Callable[[ToolOutput], None],
) -> ToolOutput:
    """Runs the body; ``unknown`` where its time is over. A body that is ended has ``grace`` seconds for it.

    Where the caller is cancelled and the body ends by itself nevertheless, ``late`` is given what it came to.
    """
    seconds: float | None = getattr(tool, "timeout", TIMEOUT)
    body = _enter(lambda: _executed(tool, arguments, context), tool, context)
    try:
        await asyncio.wait({body}, timeout=seconds)
    except asyncio.CancelledError:
        if await _end(body, context, tool, grace, left):
            late(_outcome(body))
        raise
    if body.done():
        return _outcome(body)
    await _end(body, context, tool, grace, left)
    text = f"The time of {seconds:g} s was over and the call was stopped; what it had done by then stays done."
    return ToolOutput([text_block(text)], "unknown", {"name": "ToolTimeoutError", "code": "TOOL_TIMED_OUT"})


def offers_look(tool: object) -> bool:
    """Can the tool be asked what became of a call?"""
    try:
        return callable(getattr(tool, "reconcile", None))
    except Exception:
        return False  # a property that raises


async def look(tool: Tool, arguments: dict[str, Any], context: ToolContext, *, grace: float, left: Left) -> ToolOutput:
    """What the tool's ``reconcile`` proves: an output that is ``ok`` or ``error``. Raises Unproven.

    It has the time of a call; a tool whose body keeps the time itself has the time of those that do not say.
    """
    seconds: float = getattr(tool, "timeout", None) or TIMEOUT
    body = _enter(lambda: _looked(tool, arguments, context), tool, context)
    try:
        await asyncio.wait({body}, timeout=seconds)
    except asyncio.CancelledError:
        await _end(body, context, tool, grace, left)
        raise
    if not body.done():
        await _end(body, context, tool, grace, left)
        raise Unproven(f"took longer than {seconds:g} s")
    if body.cancelled():
        raise Unproven("cancelled itself")
    error = body.exception()
    if error is not None and not isinstance(error, Exception):
        raise Unproven(f"raised a {type(error).__name__}") from error
    return body.result()


def _enter(body: Callable[[], Coroutine[Any, Any, T]], tool: Tool, context: ToolContext) -> "asyncio.Future[T]":
    task = asyncio.ensure_future(_watched(body, tool, context))
    # An interrupt goes through the loop, and may be the last that happens here.
    task.add_done_callback(seen)
    return task


async def _end(body: "asyncio.Future[T]", context: ToolContext, tool: Tool, grace: float, left: Left) -> bool:
    """Cancels a body and waits for a moment. Did it end by itself, with something that it came to?"""
    context.cancelled.set()
    body.cancel()
    await asyncio.wait({body}, timeout=grace)
    if not body.done():
        leave(context.run_id, lambda: not body.done())
        left(f"{tool.name} ({context.call_id}) did not end within {grace:g} s")
        return False
    if body.cancelled():
        return False
    error = body.exception()
    if isinstance(error, LeftBehind):
        leave(context.run_id, error.goes_on)
        left(f"{tool.name} ({context.call_id}): {error}")
        return False
    return True


def _outcome(body: "asyncio.Future[ToolOutput]") -> ToolOutput:
    if body.cancelled() or body.exception() is not None:
        text = "the tool gave up by itself" if body.cancelled() else str(body.exception())
        return ToolOutput([text_block(text)], "unknown", UNKNOWN_ERROR)
    return body.result()


async def _executed(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
    """Runs a tool's body; whatever it raises is an outcome, except what is left of a cancelled one."""
    try:
        output: object = await tool.execute(arguments, context)
    except LeftBehind:
        raise
    except ToolFailed as error:
        return ToolOutput([text_block(str(error))], "error", {"name": "ToolFailedError", "code": error.code})
    except (Exception, SystemExit) as error:
        log.error(
            "the tool %s raised a %s, which is a defect of it (call %s of run %s)",
            tool.name,
            type(error).__name__,
            context.call_id,
            context.run_id,
            exc_info=True,
        )
        text = f"the tool failed: {type(error).__name__}: {error}"
        return ToolOutput([text_block(text)], "error", {"name": type(error).__name__, "code": "TOOL_FAILED"})
    if not _sound(output):
        log.error(
            "the tool %s gave back a %s and no ToolOutput of blocks, which is a defect of it (call %s of run %s)",
            tool.name,
            type(output).__name__,
            context.call_id,
            context.run_id,
        )
        text = f"the tool gave back {type(output).__name__} instead of blocks; its effect may be there all the same"
        return ToolOutput([text_block(text)], "error", {"name": "ToolOutputError", "code": "TOOL_OUTPUT_INVALID"})
    return output


async def _looked(tool: Any, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
    """Asks the tool what became of a call. Raises Unproven for all that is no known outcome."""
    try:
        given = {"context": context} if _takes_context(tool.reconcile) else {}
        asked: object = tool.reconcile(arguments, context.operation_id, **given)
        if not inspect.isawaitable(asked):
            raise Unproven(f"gave a {type(asked).__name__} and nothing to await; make it `async def`")
        output: object = await asked
    except (LeftBehind, Unproven):
        raise
    except (Exception, SystemExit) as error:
        raise Unproven(f"raised a {type(error).__name__}") from error
    if output is None:
        raise Unproven("could not tell")
    if not _sound(output):
        raise Unproven(f"gave a {type(output).__name__} and no ToolOutput of blocks")
    if output.state not in ("ok", "error"):
        raise Unproven("could not tell" if output.state == "unknown" else "gave an output of no state that there is")
    return output


def _takes_context(method: Callable[..., object]) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get("context")
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return True
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def _sound(output: object) -> TypeGuard[ToolOutput]:
    content: object = output.content if isinstance(output, ToolOutput) else None
    return isinstance(content, list) and all(isinstance(block, dict) for block in content)


async def _watched(body: Callable[[], Coroutine[Any, Any, T]], tool: Tool, context: ToolContext) -> T:
    """``body``, and a warning if it held the loop: nothing else ran meanwhile, not even a stop."""
    held = _Held(asyncio.get_running_loop().time)
    try:
        return await _in_steps(body(), held)
    finally:
        if held.longest > HELD:
            log.warning(
                "the tool %s held the event loop for %.1f s, and nothing else could run; use asyncio.to_thread for "
                "what blocks (call %s of run %s)",
                tool.name,
                held.longest,
                context.call_id,
                context.run_id,
            )


@attrs.define
class _Held:
    """The longest time between two moments at which others may run."""

    time: Callable[[], float]
    longest: float = 0.0

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        began = self.time()
        try:
            yield
        finally:
            self.longest = max(self.longest, self.time() - began)


@coroutine
def _in_steps(body: Coroutine[Any, Any, T], held: _Held) -> Generator[Any, Any, T]:
    """Awaits ``body`` and measures each of its steps."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            with held.step():
                awaited = body.send(value) if error is None else body.throw(error)
        except StopIteration as end:
            output: T = end.value
            return output
        value = error = None
        try:
            value = yield awaited
        except BaseException as raised:
            error = raised
