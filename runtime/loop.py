"""A turn: steps over a model and tools until the model asks for nothing more, a limit, a stop or a failure.

What has to be durable before the next thing may happen is: a step's request before the provider is called, a tool/call
before its body runs, a result before a model or a client sees it, the turn's end before it is reported. Where such a
barrier fails, nothing behind it happens and nothing more is written: a repair says what is known.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from ..journal.errors import InvalidEvent, JournalError
from ..journal.events import Blocks, Draft, JsonObject
from .assembly import Assembly
from .conversation import Conversation
from .dispatch import Authorize, Dispatcher, ToolLimits
from .model import Chunk, ModelAdapter, ModelError, ModelRequest, TextDelta, ThinkingDelta, request_header
from .outputs import Store, store_in
from .progress import Call, Progress, ending, settled
from .record import Journal, Publish, Recorder, SessionEvent
from .retry import RetryPolicy
from .tools.base import Tool, text_block

Mode = Literal["immediate", "after_step"]

#: How a turn's end is told to a client.
STOP_REASONS: Final = {
    "completed": "end_turn",
    "aborted": "user_stop",
    "step_limit": "step_limit",
    "max_tokens": "max_tokens",
    "failed": "error",
}
#: Characters of a failure's message in the journal: a provider may answer with a whole page.
_MESSAGE: Final = 2_000


def _new_id() -> str:
    return uuid.uuid4().hex


def _now() -> int:
    return time.time_ns() // 1_000_000


def _tell_nobody(event: SessionEvent) -> None:
    pass


def _kept(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(tools)


async def _all_done(futures: "Collection[asyncio.Future[Any]]") -> None:
    """Waits for all of them, however often this task is cancelled meanwhile, and raises nothing of theirs."""
    together = asyncio.gather(*futures, return_exceptions=True)
    while not together.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({together})


class Stop:
    """Asks a turn to stop; may be asked again, to escalate. Use it from the event loop's thread."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, Mode, str | None]] = []
        self._changed = asyncio.Event()

    def request(self, source: str = "user", *, mode: Mode = "immediate", stop_id: str | None = None) -> None:
        """Returns at once; the turn ends as soon as it can. ``after_step`` lets the current step finish.

        A ``stop_id`` that was given before is the same request again: it counts only where it escalates.
        """
        if stop_id is not None and any(stop_id == known for _, _, known in self._asked):
            if mode == "after_step" or self.immediate:
                return
            stop_id = None
        self._asked.append((source, mode, stop_id))
        self._changed.set()

    @property
    def source(self) -> str | None:
        """Who asked first; None while nobody has."""
        return self._asked[0][0] if self._asked else None

    @property
    def immediate(self) -> bool:
        return any(mode == "immediate" for _, mode, _ in self._asked)


@attrs.frozen
class TurnOutcome:
    """How a turn ended. ``reason`` is what its ``turn/end`` holds."""

    turn_id: str
    run_id: str
    reason: JsonObject


@attrs.frozen(kw_only=True)
class Options:
    """``live_text``: journal text while it streams, joined to one piece for each ``live_seconds``."""

    system: str | None = None
    params: JsonObject = attrs.Factory(dict)
    max_steps: int | None = None
    live_text: bool = True
    live_seconds: float = 0.25
    retry: RetryPolicy = attrs.Factory(RetryPolicy)
    limits: ToolLimits = attrs.Factory(ToolLimits)


@attrs.frozen(kw_only=True)
class Loop:
    """Runs turns of one session. It holds nothing between turns but what it was given.

    ``journal`` is the session open for writing; ``conversation`` the fold of everything in it so far, which the loop
    keeps up to date. ``session_dir`` takes the blobs. ``new_id``, ``now`` (Unix ms), ``sleep`` and ``chance`` (0…1)
    are replaced in tests.
    """

    journal: Journal
    conversation: Conversation
    model: ModelAdapter
    session_dir: Path
    tools: Iterable[Tool] = attrs.field(default=(), converter=_kept)
    options: Options = attrs.Factory(Options)
    authorize: Authorize | None = None
    publish: Publish = _tell_nobody
    new_id: Callable[[], str] = _new_id
    now: Callable[[], int] = _now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    async def run_turn(
        self,
        content: str | Blocks,
        *,
        stop: Stop | None = None,
        turn_id: str | None = None,
        run_id: str | None = None,
        invocation_id: str | None = None,
        message_id: str | None = None,
        max_steps: int | None = None,
    ) -> TurnOutcome:
        """One whole turn, from the user's message to a durable end.

        Raises InvalidEvent where the turn may not begin (one is open), JournalError where the journal failed: then the
        turn has no end until a repair, and the conversation is to be read again. Cancelling the task, however often,
        stops the turn, writes its end and raises CancelledError.
        Any other exception is a defect of an adapter or a hook: the turn ends failed and the exception is raised.
        """
        turn = _Turn(
            self,
            stop or Stop(),
            Progress(turn_id or self.new_id(), run_id or self.new_id()),
            self.options.max_steps if max_steps is None else max_steps,
        )
        blocks = [text_block(content)] if isinstance(content, str) else content
        return await turn.run(blocks, invocation_id or self.new_id(), message_id or self.new_id())


class _Turn:
    def __init__(self, loop: Loop, stop: Stop, progress: Progress, max_steps: int | None) -> None:
        self._loop = loop
        self._stop = stop
        self._noted = 0
        self._cancelled = False
        self._progress = progress
        self._max_steps = max_steps
        self._tools = {tool.name: tool for tool in loop.tools}
        self._recorder = Recorder(loop.journal, loop.conversation.observe, loop.publish, progress.turn_id, loop.now)
        self._last_header: JsonObject | None = None
        store: Store = store_in(loop.session_dir)
        self._dispatcher = Dispatcher(
            recorder=self._recorder,
            progress=progress,
            tools=self._tools,
            limits=loop.options.limits,
            new_id=loop.new_id,
            cwd=Path(loop.conversation.cwd or "."),
            store=store,
            authorize=loop.authorize,
        )

    # ------------------------------------------------------------ begin and end

    async def run(self, content: Blocks, invocation_id: str, message_id: str) -> TurnOutcome:
        """The turn in a task of its own, so that no cancellation of whoever waits keeps its end from being written."""
        turn = asyncio.ensure_future(self._whole(content, invocation_id, message_id))
        cancelled: asyncio.CancelledError | None = None
        while not turn.done():
            try:
                await asyncio.wait({turn})
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                self._stop_for_cancellation()
        if cancelled is not None and turn.exception() is None:
            raise cancelled
        return turn.result()

    async def _whole(self, content: Blocks, invocation_id: str, message_id: str) -> TurnOutcome:
        self._begin(content, invocation_id, message_id)
        steps = asyncio.ensure_future(self._steps())
        stopper = asyncio.ensure_future(self._until_stopped())
        try:
            await asyncio.wait({steps, stopper}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # An event loop that is being closed cancels every task, this one too.
            self._stop_for_cancellation()
        stopped = not steps.done()
        stopper.cancel()
        ending_beside = [steps, stopper]
        if stopped:
            steps.cancel()
            if self._recorder.failure is None:
                # What was asked becomes durable while bodies still come to their end.
                ending_beside.append(asyncio.ensure_future(self._make_stops_durable()))
        await _all_done(ending_beside)
        await _all_done(self._recorder.second_try)
        if self._recorder.failure is not None:
            raise self._recorder.failure
        defect = None if steps.cancelled() else steps.exception()
        end = asyncio.ensure_future(self._end(self._reason(steps, stopped, defect)))
        await _all_done([end])
        outcome = end.result()
        if defect is not None and not isinstance(defect, ModelError):
            raise defect
        return outcome

    def _stop_for_cancellation(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._stop.request("cancelled")

    def _begin(self, content: Blocks, invocation_id: str, message_id: str) -> None:
        turn_id, run_id, conversation = self._progress.turn_id, self._progress.run_id, self._loop.conversation
        run = conversation.run_header(
            run_id=run_id,
            invocation_id=invocation_id,
            turn_id=turn_id,
            created_at=self._loop.now(),
            root={"kind": "user"},
            max_steps=self._max_steps,
        )
        start = {
            "turn_id": turn_id,
            "run_id": run_id,
            "invocation_id": invocation_id,
            "turn": conversation.turns + 1,
            "run": run,
        }
        message = {
            "message_id": message_id,
            "turn_id": turn_id,
            "run_id": run_id,
            "content": content,
            "source": {"kind": "user"},
        }
        self._recorder.add_batch([Draft("turn/start", start), Draft("user/message", message)])

    def _reason(self, steps: "asyncio.Future[str]", stopped: bool, defect: BaseException | None) -> JsonObject:
        source = self._stop.source
        if stopped and source is not None:
            # What an adapter or a hook raises while it is being stopped does not make the stop a failure.
            return {"kind": "aborted", "source": source}
        if isinstance(defect, ModelError):
            return {"kind": "failed", "failure_class": defect.kind, "message": str(defect)[:_MESSAGE]}
        if defect is not None:
            text = f"{type(defect).__name__}: {defect}"
            return {"kind": "failed", "failure_class": "internal_error", "message": text[:_MESSAGE]}
        if source is not None:
            return {"kind": "aborted", "source": source}
        if steps.cancelled():
            text = "an adapter or a hook cancelled the turn by itself"
            return {"kind": "failed", "failure_class": "internal_error", "message": text}
        return {"kind": steps.result()}

    async def _end(self, reason: JsonObject) -> TurnOutcome:
        """The turn's end and its run's, durable, then told."""
        recorder, progress = self._recorder, self._progress
        self._note_stops()
        try:
            recorder.add_batch([*ending(progress, reason), settled(progress)])
        except InvalidEvent:
            # What came of a response that cannot be recorded is left out: the turn needs an end.
            progress.streaming = None
            recorder.add_batch([*ending(progress, reason), settled(progress)])
        if reason["kind"] == "aborted":
            recorder.tell("abort", source=reason["source"])
        if reason["kind"] == "failed":
            recorder.tell("error", failure_class=reason["failure_class"], message=reason["message"])
        recorder.tell("complete", stop_reason=STOP_REASONS[reason["kind"]])
        await recorder.barrier()
        return TurnOutcome(progress.turn_id, progress.run_id, reason)

    async def _until_stopped(self) -> None:
        """Makes each request to stop durable as it comes; done when one is immediate."""
        while not self._stop.immediate:
            await self._stop._changed.wait()
            self._stop._changed.clear()
            if not self._stop.immediate:
                # Beside the step that goes on; what the barrier cannot do fails the step's next one too.
                await self._make_stops_durable()

    async def _make_stops_durable(self) -> None:
        self._note_stops()
        await self._recorder.barrier()

    def _note_stops(self) -> None:
        for source, mode, stop_id in self._stop._asked[self._noted :]:
            self._noted += 1
            data = {
                "stop_id": stop_id or self._loop.new_id(),
                "turn_id": self._progress.turn_id,
                "run_id": self._progress.run_id,
                "source": source,
                "mode": mode,
            }
            self._recorder.add("turn/stop_requested", data)

    # ------------------------------------------------------------ steps

    async def _steps(self) -> str:
        """Runs steps; the kind of the turn's end. Raises ModelError where the provider failed for good."""
        while self._stop.source is None:
            if self._max_steps is not None and self._progress.step >= self._max_steps:
                return "step_limit"
            kind = await self._step()
            if kind is not None:
                return kind
        return "aborted"

    async def _step(self) -> str | None:
        """One request and the calls that it asked for; the kind of the turn's end if this was its last step."""
        progress, recorder = self._progress, self._recorder
        progress.step += 1
        progress.calls = []
        recorder.add("step/start", progress.in_step)
        progress.step_open = True
        recorder.tell("step_start", step=progress.step)
        response = await self._respond(self._request())
        limited = response.stop_reason == "max_tokens"
        content = response.message(calls=not limited)
        try:
            event = recorder.add(
                "assistant/message", progress.message(content, response.stop_reason or "", response.usage)
            )
        except InvalidEvent as error:
            raise ModelError(f"the response cannot be recorded: {error}", kind="provider_invalid_response") from error
        progress.streaming = None
        progress.calls += [
            Call(block["call_id"], block["name"], block["arguments"])
            for block in content
            if block["kind"] == "tool_call"
        ]
        # Told is what the journal took: text made encodable, secrets taken out.
        for block in event.data["content"]:
            if block["kind"] in ("text", "thinking"):
                recorder.tell(f"{block['kind']}_complete", message_id=progress.message_id, text=block["text"])
        if response.usage is not None:
            recorder.tell("token_usage", **response.usage)
        await self._dispatcher.run(progress.calls)
        recorder.add("step/end", progress.in_step)
        progress.step_open = False
        recorder.tell("step_end", step=progress.step)
        if limited:
            return "max_tokens"
        return None if progress.calls else "completed"

    def _request(self) -> ModelRequest:
        """The step's request; what it is made with is journalled where it has to be."""
        loop, options = self._loop, self._loop.options
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._tools.values()
        ]
        model = loop.conversation.model
        header = request_header(loop.model.provider, model, options.system, tools, options.params)
        reason = None
        if not loop.conversation.requested:
            reason = "initial"
        elif self._last_header is None:
            reason = "resume"
        elif header != self._last_header:
            reason = "change"
        if reason is not None:
            self._recorder.add("request/header", {**self._progress.in_step, "reason": reason, "header": header})
            self._recorder.tell("request_header", reason=reason, header=header)
            self._last_header = header
        return ModelRequest(model, loop.conversation.messages(), options.system, tools, options.params)

    async def _respond(self, request: ModelRequest) -> Assembly:
        """A whole response. Raises ModelError when it failed and is not tried again."""
        attempt = 0
        while True:
            attempt += 1
            await self._recorder.barrier()
            response = self._progress.streaming = Assembly()
            self._progress.message_id = self._loop.new_id()
            try:
                await self._stream(request, response)
            except ModelError as error:
                delay = None if response.started else self._loop.options.retry.delay(error, attempt, self._loop.chance)
                if delay is None:
                    raise
                await self._wait_to_retry(error, attempt, delay)
            else:
                return response

    async def _wait_to_retry(self, error: ModelError, attempt: int, delay: float) -> None:
        said = str(error)[:_MESSAGE]
        text = f"{error.kind}: {said}; request {attempt} failed, the next one follows in {delay:.1f} s"
        note = {"kind": "retry", "run_id": self._progress.run_id, "turn_id": self._progress.turn_id, "text": text}
        self._recorder.add("session/note", note)
        self._recorder.tell("provider_retry", attempt=attempt, delay=delay, failure_class=error.kind)
        await self._recorder.barrier()
        await self._loop.sleep(delay)

    async def _stream(self, request: ModelRequest, response: Assembly) -> None:
        live = _LiveText(self._recorder, self._progress, response, self._loop.options)
        try:
            stream = self._loop.model.stream(request)
            try:
                async for chunk in stream:
                    response.feed(chunk)
                    live.came(chunk)
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except (ModelError, JournalError):
            raise
        except Exception as error:
            raise ModelError(f"{type(error).__name__}: {error}") from error
        finally:
            live.close()
        if response.stop_reason is None:
            raise ModelError("the response ended before it was whole", kind="provider_network", retryable=True)


class _LiveText:
    """Shows text as it comes, and journals it joined: at once, then one piece for each stretch of time."""

    def __init__(self, recorder: Recorder, progress: Progress, response: Assembly, options: Options) -> None:
        self._recorder = recorder
        self._progress = progress
        self._response = response
        self._seconds = options.live_seconds
        self._journalled = options.live_text
        self._timer: asyncio.TimerHandle | None = None
        self._late = False

    def came(self, chunk: Chunk) -> None:
        if not isinstance(chunk, TextDelta | ThinkingDelta) or not chunk.text:
            return
        kind = "text" if isinstance(chunk, TextDelta) else "thinking"
        self._recorder.tell_now(
            f"{kind}_delta", message_id=self._progress.message_id, index=chunk.index, text=chunk.text
        )
        if not self._journalled:
            return
        self._late = True
        if self._timer is None:
            self._write()

    def close(self) -> None:
        """What has not been written by now stands in the message."""
        if self._timer is not None:
            self._timer.cancel()

    def _write(self) -> None:
        self._timer = None
        if not self._late:
            return
        self._late = False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._write)
        for piece in self._response.pieces():
            data = {
                "run_id": self._progress.run_id,
                "step": self._progress.step,
                "message_id": self._progress.message_id,
                "index": piece.index,
                "kind": piece.kind,
                "text": piece.text,
            }
            # A preview that cannot be written stops nothing here; the journal's failure meets the next event.
            with contextlib.suppress(JournalError):
                self._recorder.add("assistant/delta", data, ignorable=True)
