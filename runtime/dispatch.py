"""The calls of one step: check, make the dispatch durable, run the body, record the outcome as it comes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Any

import attrs

from ..journal.errors import JournalError
from ..journal.events import Blocks, JsonObject
from . import checks
from .errors import RuntimeFailure
from .ledger import Sink
from .outputs import Store, cut, shorten
from .progress import ABORTED, NEVER_RAN, Call
from .tools.arguments import BadArguments, parse, validate
from .tools.base import Ask, Tool, ToolContext, ToolOutput, ask_nobody, text_block
from .tools.running import execute

#: Asked before a call is dispatched; a text is the reason why it is not.
Authorize = Callable[[Call, Tool, dict[str, Any]], Awaitable[str | None]]


class _Refused(Exception):
    """A call that is answered without being dispatched."""

    def __init__(self, name: str, code: str, text: str) -> None:
        super().__init__(text)
        self.output = ToolOutput([text_block(text)], "error", {"name": name, "code": code})


@attrs.frozen
class ToolLimits:
    """``parallel`` bodies at once; ``shown`` bytes of a text in the journal's line and before the model; ``grace``
    seconds for a cancelled body to end before it is left behind.
    """

    parallel: int = attrs.field(default=10, validator=checks.count)
    shown: int = attrs.field(default=32 * 1024, validator=checks.size)
    grace: float = attrs.field(default=5.0, validator=checks.seconds)


@attrs.frozen
class Dispatcher:
    """Runs the calls of a turn's steps."""

    sink: Sink
    turn_id: str
    run_id: str
    tools: Mapping[str, Tool]
    limits: ToolLimits
    new_id: Callable[[], str]
    cwd: Path
    store: Store
    authorize: Authorize | None = None
    ask: Ask = ask_nobody

    async def run(self, calls: list[Call]) -> None:
        """Runs ``calls`` in order; neighbours that are parallel-safe together. Each has its result behind this.

        Raises JournalError where a barrier failed: then no further body is entered, and what runs is cancelled.
        """
        groups = self._groups(calls)
        for group in groups:
            await self._together(group, last=group is groups[-1])

    def _groups(self, calls: list[Call]) -> list[list[Call]]:
        """An exclusive call is alone; neighbours that are not stand together, with those that will only be refused."""
        groups: list[list[Call]] = []
        shared = False
        for call in calls:
            tool = self.tools.get(call.name)
            parallel = tool is None or tool.parallel_safe
            if parallel and shared:
                groups[-1].append(call)
            else:
                groups.append([call])
            shared = parallel
        return groups

    async def _together(self, calls: list[Call], *, last: bool) -> None:
        room = asyncio.Semaphore(self.limits.parallel)
        left = len(calls)

        async def one(call: Call) -> None:
            nonlocal left
            async with room:
                await self._one(call)
            left -= 1
            # Those that finish at the same time share a sync.
            await asyncio.sleep(0)
            # The step's very last result shares the next barrier, which follows at once.
            if left or not last:
                await self.sink.barrier()

        tasks = [asyncio.ensure_future(one(call)) for call in calls]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # Those that were cancelled because one failed come last.
        failures.sort(key=lambda failure: isinstance(failure, asyncio.CancelledError))
        if failures:
            raise failures[0]

    async def _one(self, call: Call) -> None:
        try:
            tool, arguments = await self._check(call)
        except _Refused as refused:
            output = refused.output
            self._record(call, output.state, output.content, output.error)
            return
        await self._dispatch(call, tool)
        output = await self._execute(call, tool, arguments)
        try:
            content = await shorten(output.content, self.limits.shown, self.store)
        except asyncio.CancelledError:
            self._record_output_late(call, output)
            raise
        self._record(call, output.state, content, output.error)

    async def _check(self, call: Call) -> tuple[Tool, dict[str, Any]]:
        """Everything that may keep a call from being dispatched. Raises _Refused."""
        tool = self.tools.get(call.name)
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            raise _Refused("ToolNotFoundError", "TOOL_NOT_FOUND", f"no tool {call.name!r}; there are: {known}")
        call.recovery = tool.recovery
        try:
            arguments = parse(call.arguments)
            validate(arguments, tool.parameters)
        except BadArguments as error:
            raise _Refused("ToolArgumentsError", "TOOL_ARGUMENTS_INVALID", str(error)) from None
        if self.authorize is not None:
            denied = await denial(self.authorize, call, tool, arguments)
            if denied is not None:
                raise _Refused("ToolDeniedError", "TOOL_DENIED", denied)
        return tool, arguments

    async def _dispatch(self, call: Call, tool: Tool) -> None:
        """The intent is durable behind this: the body may run."""
        call.operation_id = self.new_id()
        self.sink.emit(
            "tool_start",
            call_id=call.call_id,
            name=call.name,
            operation_id=call.operation_id,
            recovery=tool.recovery,
        )
        try:
            # Those that are dispatched at the same time share a sync.
            await asyncio.sleep(0)
            await self.sink.barrier()
        except asyncio.CancelledError:
            # On disk it is dispatched, and only here it is known that the body was not entered.
            self._record_late(call, "cancelled", [text_block(NEVER_RAN)], ABORTED)
            raise

    async def _execute(self, call: Call, tool: Tool, arguments: dict[str, Any]) -> ToolOutput:
        assert call.operation_id is not None
        context = ToolContext(
            operation_id=call.operation_id,
            call_id=call.call_id,
            turn_id=self.turn_id,
            run_id=self.run_id,
            cwd=self.cwd,
            store=self.store,
            ask=self.ask,
        )
        return await execute(
            tool,
            arguments,
            context,
            grace=self.limits.grace,
            left=self._left,
            late=lambda output: self._record_output_late(call, output),
        )

    def _left(self, text: str) -> None:
        """What could not be ended is said with the run's end."""
        with contextlib.suppress(JournalError):
            self.sink.emit("cleanup_failed", text=text)

    def _record_output_late(self, call: Call, output: ToolOutput) -> None:
        content = cut(output.content, self.limits.shown, "the turn was stopped")
        self._record_late(call, output.state, content, output.error)

    def _record_late(self, call: Call, state: str, content: Blocks, error: JsonObject | None) -> None:
        """While the turn is being stopped: what is known is not thrown away, unless the journal has failed."""
        with contextlib.suppress(JournalError):
            self._record(call, state, content, error)

    def _record(self, call: Call, state: str, content: Blocks, error: JsonObject | None) -> None:
        self.sink.emit(
            "tool_result",
            call_id=call.call_id,
            operation_id=call.operation_id,
            state=state,
            content=content,
            error=error,
        )


async def denial(authorize: Authorize, call: Call, tool: Tool, arguments: dict[str, Any]) -> str | None:
    """What ``authorize`` says of a call. Raises RuntimeFailure where that is neither a reason nor None."""
    asked: object = authorize(call, tool, arguments)
    if not isawaitable(asked):
        raise RuntimeFailure(f"authorize gave a {type(asked).__name__} and nothing to await; make it `async def`")
    denied: object = await asked
    if denied is not None and not isinstance(denied, str):
        raise RuntimeFailure(
            f"authorize gave a {type(denied).__name__} for a call of {call.name}; it gives why a call may not run, as "
            "a text, or None"
        )
    return denied
