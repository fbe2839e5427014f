"""A turn's steps over a model and tools: request, response, calls, until there is nothing more to do. No journal here.

What has to be durable before the next thing may happen is: a step's request before the provider is called, a call
before its body runs, a result before a model or a client sees it. The sink's barrier stands between them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import attrs

from ..journal.errors import InvalidEvent, JournalError
from ..journal.events import JsonObject
from . import checks
from .assembly import Assembly
from .backends.base import Boundary, SteeringLease
from .conversation import Conversation
from .dispatch import Authorize, Dispatcher, ToolLimits
from .ledger import Sink
from .model import Chunk, ModelAdapter, ModelError, ModelRequest, TextDelta, ThinkingDelta, UsageChunk, request_header
from .outputs import store_in
from .progress import Call
from .retry import RetryPolicy
from .tools.base import Ask, Tool, ask_nobody

#: Characters of a failure's message in the journal: a provider may answer with a whole page.
MESSAGE: Final = 2_000
#: The steps ended at a boundary where the run is handed over.
PAUSED: Final = "paused"


@attrs.frozen(kw_only=True)
class Options:
    """``live_text``: journal text while it streams, joined to one piece for each ``live_seconds``.

    Raises TypeError for values of other types.
    """

    system: str | None = attrs.field(default=None, validator=checks.text_or_none)
    params: JsonObject = attrs.field(factory=dict, validator=checks.a(dict, "a dict"))
    max_steps: int | None = attrs.field(default=None, validator=checks.limit)
    live_text: bool = attrs.field(default=True, validator=checks.a(bool, "True or False"))
    live_seconds: float = attrs.field(default=0.25, validator=checks.seconds)
    retry: RetryPolicy = attrs.field(factory=RetryPolicy, validator=checks.a(RetryPolicy, "a RetryPolicy"))
    limits: ToolLimits = attrs.field(factory=ToolLimits, validator=checks.a(ToolLimits, "ToolLimits"))


@attrs.frozen
class Steering:
    """Where messages for the running turn come from: take them, say which were taken over, give the others back."""

    pull: Callable[[], Collection[SteeringLease]]
    ack: Callable[[list[str]], None]
    nack: Callable[[list[str]], None]


@attrs.define(kw_only=True, eq=False)
class Steps:
    """The steps of one run. ``stopped`` is asked before each; ``ask`` is what a tool asks a person with.

    ``boundary`` is awaited before each where a handoff is ``wanted``, with the number of those that may still be made
    (None: any): at ``pause`` they end there. Without it nobody can hand the run over.
    """

    sink: Sink
    model: ModelAdapter
    tools: Mapping[str, Tool]
    options: Options
    conversation: Conversation
    session_dir: Path
    turn_id: str
    run_id: str
    max_steps: int | None
    stopped: Callable[[], bool]
    new_id: Callable[[], str]
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float]
    authorize: Authorize | None = None
    ask: Ask = ask_nobody
    steering: Steering | None = None
    boundary: Callable[[int | None], Awaitable[Boundary]] | None = None
    wanted: Callable[[], bool] = lambda: True
    _last_header: JsonObject | None = attrs.field(default=None, init=False)
    _dispatcher: Dispatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._dispatcher = Dispatcher(
            sink=self.sink,
            turn_id=self.turn_id,
            run_id=self.run_id,
            tools=self.tools,
            limits=self.options.limits,
            new_id=self.new_id,
            cwd=Path(self.conversation.cwd or "."),
            store=store_in(self.session_dir),
            authorize=self.authorize,
            ask=self.ask,
        )

    async def run(self) -> str:
        """The kind of the turn's end: ``completed``, ``max_tokens``, ``step_limit``, ``aborted``; or ``PAUSED``, and
        the turn has none here.

        Raises ModelError where the provider failed for good, JournalError where a barrier failed.
        """
        end: str | None = None
        done = 0
        while not self.stopped():
            if self.max_steps is not None and done >= self.max_steps:
                return end or "step_limit"
            # A message that came during the last step is answered in this turn too.
            steered = done > 0 and await self._steer()
            if end is not None and not steered:
                return end
            if self.stopped():
                break
            if self.boundary is not None and self.wanted():
                paused = await self._paused(self.boundary, done)
                if self.stopped():
                    break
                if paused:
                    return PAUSED
            end = await self._step()
            if end == "max_tokens":
                return end
            done += 1
        return end or "aborted"

    async def _paused(self, boundary: Callable[[int | None], Awaitable[Boundary]], done: int) -> bool:
        """Is somebody else to make the steps that are left?"""
        # Whoever takes the run over reads it from the disk.
        await self.sink.barrier()
        remaining = None if self.max_steps is None else self.max_steps - done
        return await boundary(remaining) == "pause"

    async def _steer(self) -> bool:
        """Takes over the messages that wait for this turn; were there any?"""
        if self.steering is None:
            return False
        leases = list(self.steering.pull())
        emitted = 0
        try:
            for lease in leases:
                said: JsonObject = {"message_id": lease.message_id, "content": lease.content}
                if lease.quotes:
                    said["quotes"] = lease.quotes
                if lease.attachments:
                    said["attachments"] = lease.attachments
                self.sink.emit("steering_message", **said)
                emitted += 1
        finally:
            if back := [lease.lease_id for lease in leases[emitted:]]:
                self.steering.nack(back)
        if leases:
            await self.sink.barrier()
            self.steering.ack([lease.lease_id for lease in leases])
        return bool(leases)

    async def _step(self) -> str | None:
        """One request and the calls that it asked for; the kind of the turn's end if the model wants nothing more."""
        self.sink.emit("step_start")
        message_id, response = await self._respond(*self._prepare())
        limited = response.stop_reason == "max_tokens"
        content = response.message(calls=not limited)
        try:
            self.sink.emit(
                "assistant_message",
                message_id=message_id,
                content=content,
                stop_reason=response.stop_reason or "",
                usage=response.usage,
            )
        except InvalidEvent as error:
            raise _unrecordable(error) from error
        calls = [
            Call(block["call_id"], block["name"], block["arguments"])
            for block in content
            if block["kind"] == "tool_call"
        ]
        await self._dispatcher.run(calls)
        self.sink.emit("step_end")
        if limited:
            return "max_tokens"
        return None if calls else "completed"

    def _prepare(self) -> tuple[str, list[JsonObject]]:
        """The model and the tools of the step's request; what it is made with is journalled where it has to be."""
        conversation, options = self.conversation, self.options
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self.tools.values()
        ]
        model = conversation.model
        header = request_header(self.model.provider, model, options.system, tools, options.params)
        reason = None
        if self._last_header is None:
            reason = "resume" if conversation.requested else "initial"
        elif header != self._last_header:
            reason = "change"
        if reason is not None:
            self.sink.emit("request_header", reason=reason, header=header)
            self._last_header = header
        return model, tools

    async def _respond(self, model: str, tools: list[JsonObject]) -> tuple[str, Assembly]:
        """A whole response and its message's id. Raises ModelError when it failed and is not tried again."""
        attempt = 0
        while True:
            attempt += 1
            await self.sink.barrier()
            options = self.options
            # What the barrier made durable is a part of it.
            request = ModelRequest(
                model, self.conversation.messages(self.run_id), options.system, tools, options.params
            )
            message_id, response = self.new_id(), Assembly()
            try:
                await self._stream(request, message_id, response)
            except ModelError as error:
                delay = None if response.started else options.retry.delay(error, attempt, self.chance)
                if delay is None:
                    raise
                await self._wait_to_retry(error, attempt, delay)
            else:
                return message_id, response

    async def _wait_to_retry(self, error: ModelError, attempt: int, delay: float) -> None:
        said = str(error)[:MESSAGE]
        text = f"{error.kind}: {said}; request {attempt} failed, the next one follows in {delay:.1f} s"
        self.sink.emit("provider_retry", attempt=attempt, delay=delay, failure_class=error.kind, text=text)
        await self.sink.barrier()
        await self.sleep(delay)

    async def _stream(self, request: ModelRequest, message_id: str, response: Assembly) -> None:
        try:
            stream = self.model.stream(request)
            try:
                async for chunk in stream:
                    response.feed(chunk)
                    self._say(chunk, message_id, response)
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except InvalidEvent as error:
            raise _unrecordable(error) from error
        except (ModelError, JournalError):
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error
        if response.stop_reason is None:
            raise ModelError("the response ended before it was whole", kind="provider_network", retryable=True)

    def _say(self, chunk: Chunk, message_id: str, response: Assembly) -> None:
        """What a client sees of a response while it streams, and what is kept of it should it not become whole."""
        match chunk:
            case TextDelta(text, index) if text:
                self.sink.emit("text_delta", message_id=message_id, index=index, text=text)
            case ThinkingDelta(text, index, signature) if text or signature is not None:
                self.sink.emit("thinking_delta", message_id=message_id, index=index, text=text, signature=signature)
            case UsageChunk():
                self.sink.emit("token_usage", message_id=message_id, **(response.usage or {}))
            case _:
                pass


def _unrecordable(error: InvalidEvent) -> ModelError:
    return ModelError(f"the response cannot be recorded: {error}", kind="provider_invalid_response")


def reason_of(steps: "asyncio.Future[str]", *, stopped: bool, source: str | None) -> JsonObject:
    """How a turn ends whose steps are over. ``stopped``: a stop cancelled them; ``source``: who asked for it."""
    defect = None if steps.cancelled() else steps.exception()
    if stopped and source is not None:
        # What an adapter or a hook raises while it is being stopped does not make the stop a failure.
        return {"kind": "aborted", "source": source}
    if isinstance(defect, ModelError):
        return {"kind": "failed", "failure_class": defect.kind, "message": str(defect)[:MESSAGE]}
    if defect is not None:
        text = f"{type(defect).__name__}: {defect}"
        return {"kind": "failed", "failure_class": "internal_error", "message": text[:MESSAGE]}
    if source is not None:
        return {"kind": "aborted", "source": source}
    if steps.cancelled():
        text = "an adapter or a hook cancelled the turn by itself"
        return {"kind": "failed", "failure_class": "internal_error", "message": text}
    return {"kind": steps.result()}
