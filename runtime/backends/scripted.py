"""A backend that plays a script, and misbehaves where it is told to: for tests of whatever stands on a kernel. No I/O.

::

    factory = scripted_backend([["Let me see.", Tool("read", {"path": "a.txt"}, "42"), "It is 42."], Never()])
    backends.register("scripted", factory)

The first turn of a session plays the first entry, the second turn the second. ``factory.built`` are the backends that
it made, which count how they were used.
"""

import asyncio
import inspect
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import attrs

from ...journal.events import Blocks, JsonObject, Recovery
from ..composition import RunComposition
from ..model import ModelError
from ..scripted import Ask, Do, End, Fail, Say, Tokens, Wait
from ..session_events import SessionEvent
from ..tasks import exits_contained
from ..tools.base import text_block
from .base import BackendContext, InteractionKind, SendInput, SteeringLease, StopMode, StopReason, text_of

T = TypeVar("T")


def echo(outcome: JsonObject) -> "Sequence[Part]":
    """Says the outcome, as JSON with sorted keys."""
    return [json.dumps(outcome, sort_keys=True)]


#: An interaction's outcome → what is played next.
Then = Callable[[JsonObject], "Sequence[Part]"]


@attrs.frozen
class Tool:
    """A call and its result, ``seconds`` apart; nothing runs. ``arguments`` is an object or raw text, ``result`` a text
    or blocks, ``state`` one of ``ok``, ``error``, ``unknown``.
    """

    name: str
    arguments: dict[str, Any] | str = attrs.Factory(dict)
    result: str | Blocks = "done"
    state: str = "ok"
    seconds: float = 0.0
    call_id: str | None = None
    recovery: Recovery = "never"


@attrs.frozen
class Together:
    """Calls of one step: all start before the first has its result. Results come in the order of their ``seconds``."""

    tools: Sequence[Tool]


@attrs.frozen
class Question:
    """Asks a person, waits for the outcome, and goes on with ``then(outcome)``.

    ``questions`` have the shape of the format; a text is one question with the options Yes and No.
    """

    questions: str | list[JsonObject]
    then: Then = echo

    @property
    def request(self) -> JsonObject:
        if isinstance(self.questions, str):
            options = [{"label": "Yes"}, {"label": "No"}]
            return {"questions": [{"id": "q1", "question": self.questions, "options": options}]}
        return {"questions": self.questions}


@attrs.frozen
class Permission:
    """Asks whether a call may run; otherwise like ``Question``."""

    name: str
    arguments: dict[str, Any] = attrs.Factory(dict)
    reason: str = "the script asks"
    call_id: str = "call-asked"
    then: Then = echo

    @property
    def request(self) -> JsonObject:
        return {"call_id": self.call_id, "name": self.name, "arguments": self.arguments, "reason": self.reason}


@attrs.frozen
class Boundary:
    """Asks to widen the sandbox; otherwise like ``Question``."""

    expansion: JsonObject
    justification: str = "the script asks"
    then: Then = echo

    @property
    def request(self) -> JsonObject:
        return {"expansion": self.expansion, "justification": self.justification}


@attrs.frozen
class Retry:
    """Says that a request is tried again after ``delay`` seconds, and does not wait."""

    failure_class: str = "provider_error"
    attempt: int = 1
    delay: float = 0.0


@attrs.frozen
class Never:
    """Holds the turn open until it is stopped."""


@attrs.frozen
class Emit:
    """Yields a session event as it is given, whether or not it may stand there: a second ``complete``, nonsense."""

    kind: str
    data: JsonObject = attrs.Factory(dict)


@attrs.frozen
class Vanish:
    """Ends the stream here, without ``complete``."""


#: ``Fail`` is raised out of the stream as a ModelError. ``End`` gives ``complete`` its ``stop_reason``.
Part = (
    str
    | Say
    | Tool
    | Together
    | Question
    | Permission
    | Boundary
    | Retry
    | Wait
    | Never
    | Fail
    | Tokens
    | Do
    | Emit
    | End
    | Vanish
)
Turn = list[Part] | tuple[Part, ...] | Part
#: What the turns of a session play, in order; or what a turn plays, by what it was sent.
Script = Iterable[Turn] | Callable[[SendInput], Turn]
#: What runs say that they are made of, all the same or by their id; None: nothing of that run is recorded.
Composition = RunComposition | Callable[[str], RunComposition | None]


@attrs.frozen(kw_only=True)
class Faults:
    """What a backend does wrong on purpose. Delays are seconds.

    ``ignore_stop``, ``ignore_dispose``, ``ignore_close``: ``send`` goes on, and closing it waits for its end. ``late``
    is what a ``send`` that was made to end still plays before its ``complete``.
    """

    build_delay: float = 0.0
    build_error: Exception | None = None
    stop_delay: float = 0.0
    stop_error: Exception | None = None
    ignore_stop: bool = False
    dispose_delay: float = 0.0
    dispose_error: Exception | None = None
    ignore_dispose: bool = False
    ignore_close: bool = False
    late: Sequence[Part] = ()


class ScriptedBackend:
    """Plays ``script(input)`` for each turn, and between its parts takes steering messages and says what they were.

    A stop ``immediate`` ends the turn wherever it waits; ``after_step`` when no call lacks its result and nothing is
    said any more in that step. A turn's ``max_steps`` are kept. With ``steps`` it yields ``step_start`` and
    ``step_end``, else it leaves the steps to the kernel.

    With a ``composition`` its runs can be handed over: it records that before the first part, and awaits the handoff
    boundary before each step.

    ``sends``, ``stops`` and ``disposals`` say how it was used; ``inputs`` and ``outcomes`` what it was sent and how its
    questions came out; ``prepared`` the runs whose composition was asked for, by a kernel or by itself, and
    ``boundaries`` the steps that were left at each.
    """

    def __init__(
        self,
        context: BackendContext,
        script: Callable[[SendInput], Turn],
        *,
        steps: bool = False,
        faults: Faults | None = None,
        composition: Composition | None = None,
    ) -> None:
        self.context = context
        self.steps = steps
        self.faults = faults or Faults()
        self.sends = 0
        self.stops: list[tuple[StopReason, StopMode]] = []
        self.disposals = 0
        self.inputs: list[SendInput] = []
        self.outcomes: list[JsonObject] = []
        self.prepared: list[str] = []
        self.boundaries: list[int | None] = []
        self.prepare_run_composition: Callable[[str, str], Awaitable[None]] | None = None
        if composition is not None:
            self.prepare_run_composition = self._record_composition
        self._composition = composition
        self._script = script
        self._playing: _Playing | None = None

    def send(self, input: SendInput) -> AsyncIterator[SessionEvent]:
        return _Stream(lambda emit: self._play(input, emit), patient=self.faults.ignore_close)

    async def _record_composition(self, run_id: str, turn_id: str) -> None:
        self.prepared.append(run_id)
        made = self._composition(run_id) if callable(self._composition) else self._composition
        if made is not None:
            await self.context.record_run_composition(run_id, made)

    async def _play(self, input: SendInput, emit: "Yield") -> None:
        self.sends += 1
        self.inputs.append(input)
        with exits_contained("a script"):
            parts = _parts(self._script(input))
        playing = self._playing = _Playing(self, input, emit, parts)
        try:
            await playing.whole()
        finally:
            if self._playing is playing:
                self._playing = None

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        self.stops.append((reason, mode))
        if self.faults.stop_delay:
            await asyncio.sleep(self.faults.stop_delay)
        if self._playing is not None and not self.faults.ignore_stop:
            self._playing.stop(mode)
        if self.faults.stop_error is not None:
            raise self.faults.stop_error

    async def dispose(self) -> None:
        self.disposals += 1
        if self.faults.dispose_delay:
            await asyncio.sleep(self.faults.dispose_delay)
        if self._playing is not None and not self.faults.ignore_dispose:
            self._playing.stop("immediate")
        if self.faults.dispose_error is not None:
            raise self.faults.dispose_error


class ScriptedBackends:
    """A BackendFactory. ``built`` are the backends that it has made, oldest first.

    A session's turns are counted over all its backends: the next one goes on where the one before it was.
    """

    def __init__(
        self, script: Script, *, repeat: bool, steps: bool, faults: Sequence[Faults], composition: Composition | None
    ) -> None:
        self.built: list[ScriptedBackend] = []
        self._script = script if callable(script) else [script] if isinstance(script, str) else list(script)
        self._repeat = repeat
        self._steps = steps
        self._faults = faults
        self._composition = composition
        self._turns: dict[str, int] = {}
        self._asked = 0

    @property
    def handoff(self) -> bool:
        """Can its runs be handed over?"""
        return self._composition is not None

    @property
    def tool_names(self) -> list[str]:
        """Of the calls that the script makes; one that is a function does not tell."""
        turns = () if callable(self._script) else map(_parts, self._script)
        parts = [part for turn in turns for part in turn]
        tools = [tool for part in parts for tool in (part.tools if isinstance(part, Together) else [part])]
        return sorted({tool.name for tool in tools if isinstance(tool, Tool)})

    def __call__(self, context: BackendContext) -> "ScriptedBackend | Awaitable[ScriptedBackend]":
        faults = self._faults[min(self._asked, len(self._faults) - 1)]
        self._asked += 1
        if faults.build_delay:
            return self._slowly(context, faults)
        return self._build(context, faults)

    async def _slowly(self, context: BackendContext, faults: Faults) -> ScriptedBackend:
        await asyncio.sleep(faults.build_delay)
        return self._build(context, faults)

    def _build(self, context: BackendContext, faults: Faults) -> ScriptedBackend:
        if faults.build_error is not None:
            raise faults.build_error
        made = ScriptedBackend(context, self._turn, steps=self._steps, faults=faults, composition=self._composition)
        self.built.append(made)
        return self.built[-1]

    def _turn(self, input: SendInput) -> Turn:
        if callable(self._script):
            return self._script(input)
        turn = self._turns.get(input.session_id, 0)
        self._turns[input.session_id] = turn + 1
        if self._repeat and self._script:
            turn %= len(self._script)
        return self._script[turn] if turn < len(self._script) else "(the script is over)"


# Quoted, so that help() shows the names of the aliases and not what they stand for.
def scripted_backend(
    script: "Script",
    *,
    repeat: bool = False,
    steps: bool = False,
    faults: Faults | Sequence[Faults] | None = None,
    composition: "Composition | None" = None,
) -> ScriptedBackends:
    """A factory of backends that play ``script``, to be registered. With ``repeat`` it starts again at its end, else
    further turns say that it is over. A text is a script of one turn, which says it.

    Of several ``faults`` the first are those of the first backend that is asked for, and so on; the last go on.

    With a ``composition`` runs can be handed over between two steps; a function gives it for each run by its id, or
    None for one that records none. Raises TypeError for what is neither.
    """
    if composition is not None and not isinstance(composition, RunComposition) and not callable(composition):
        raise TypeError(
            f"composition must be a RunComposition, a function that gives one, or None, not {composition!r}"
        )
    each = [faults] if isinstance(faults, Faults) else list(faults or ())
    return ScriptedBackends(script, repeat=repeat, steps=steps, faults=each or [Faults()], composition=composition)


# ---------------------------------------------------------------- a turn that is being played


class _Halted(Exception):
    """The turn was stopped at once."""


class _Over(Exception):
    """Nothing more of the script is played. Without a reason there is no ``complete`` either."""

    def __init__(self, stop_reason: str | None) -> None:
        super().__init__(stop_reason)
        self.stop_reason = stop_reason


#: Yields an event, and returns when the next one was asked for.
Yield = Callable[[SessionEvent], Awaitable[None]]


class _Playing:
    """One turn. ``step`` counts from 1, ``said`` the texts of the open step."""

    def __init__(self, backend: ScriptedBackend, input: SendInput, emit: Yield, parts: list[Part]) -> None:
        self._backend = backend
        self._input = input
        self._yield = emit
        self._parts = deque(parts)
        self._halt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Whoever waits at a boundary for a handoff waits no longer.
        self._stopping = asyncio.Event()
        self._after_step = False
        self._halted = False
        self._events = 0
        self._step = 0
        self._step_open = False
        self._said = 0
        self._calls = 0
        self._answered = False

    def stop(self, mode: StopMode) -> None:
        self._stopping.set()
        if mode == "after_step":
            self._after_step = True
        elif not self._halt.done():
            self._halt.set_result(None)

    async def whole(self) -> None:
        stop_reason: str | None
        prepare = self._backend.prepare_run_composition
        try:
            if prepare is not None:
                await self._unless_halted(prepare(self._input.run_id, self._input.turn_id))
            stop_reason = await self._ending()
        except _Halted:
            # Nothing halts what comes now.
            self._halt = asyncio.get_running_loop().create_future()
            self._parts = deque(_parts([*self._backend.faults.late]))
            self._after_step, self._halted = False, True
            stop_reason = None if await self._ending() is None else "user_stop"
        if stop_reason is not None:
            await self._emit("complete", stop_reason=stop_reason)

    async def _ending(self) -> str | None:
        """Plays what there is; returns how the turn ends."""
        try:
            while True:
                if self._after_step and (self._answered or not self._step_open):
                    raise _Over("user_stop")
                if not self._after_step and not self._halted:
                    await self._steering()
                if not self._parts:
                    raise _Over("end_turn")
                part = self._parts.popleft()
                await _PLAY[type(part)](self, part)
        except _Over as over:
            if over.stop_reason is not None and self._step_open:
                await self._end_step()
            return over.stop_reason

    # ------------------------------------------------------------ what all parts need

    async def _emit(self, kind: str, **data: Any) -> None:
        """Raises _Halted if the turn was stopped at once before the next event was asked for."""
        await self._give(kind, data)
        self._refuse_halted()

    async def _give(self, kind: str, data: JsonObject) -> None:
        self._events += 1
        turn_id = self._input.turn_id
        await self._yield(SessionEvent(kind, f"{turn_id}-{self._events}", turn_id, self._backend.context.now(), data))

    def _refuse_halted(self) -> None:
        if self._halt.done():
            raise _Halted

    async def _unless_halted(self, awaited: Awaitable[T]) -> T:
        """Raises _Halted as soon as the turn is stopped at once; what was awaited has ended then too."""
        task = asyncio.ensure_future(awaited)
        either: set[asyncio.Future[Any]] = {task, self._halt}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._refuse_halted()
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _model_speaks(self) -> None:
        """What comes is the model's: it stands in a step, and behind results in the next one."""
        if self._step_open and self._answered:
            await self._end_step()
        if not self._step_open:
            if self._step == self._input.max_steps:
                raise _Over("step_limit")
            if self._backend.prepare_run_composition is not None and not self._halted:
                await self._boundary()
            self._step, self._step_open, self._said, self._answered = self._step + 1, True, 0, False
            if self._backend.steps:
                await self._emit("step_start")

    async def _boundary(self) -> None:
        """Raises _Over where somebody else is to make the steps that are left."""
        limit = self._input.max_steps
        remaining = None if limit is None else limit - self._step
        self._backend.boundaries.append(remaining)
        said = await self._unless_halted(self._input.handoff_boundary(self._stopping, remaining))
        if self._after_step:
            raise _Over("user_stop")
        if said == "pause":
            raise _Over(None)

    async def _end_step(self) -> None:
        self._step_open = self._answered = False
        if self._backend.steps:
            await self._emit("step_end")

    async def _steering(self) -> None:
        waiting = deque(self._input.pull_steering())
        said: list[Part] = [f"steered: {text_of(lease.content)}" for lease in waiting]
        try:
            while waiting:
                await self._steered(waiting[0])
                # It was taken: a later event was asked for.
                self._input.ack_steering([waiting.popleft().lease_id])
                self._refuse_halted()
        finally:
            if waiting:
                self._input.nack_steering([lease.lease_id for lease in waiting])
        self._parts.extendleft(reversed(said))

    async def _steered(self, lease: SteeringLease) -> None:
        if self._step_open:
            await self._end_step()
        message = {
            "message_id": lease.message_id,
            "content": lease.content,
            "quotes": lease.quotes,
            "attachments": lease.attachments,
        }
        await self._give("steering_message", {key: value for key, value in message.items() if value is not None})

    # ------------------------------------------------------------ parts

    async def _text(self, part: str) -> None:
        await self._say(Say(part))

    async def _say(self, part: Say) -> None:
        await self._model_speaks()
        kind = "thinking" if part.thinking else "text"
        at = {"message_id": f"{self._input.run_id}-{self._step}", "index": self._said}
        self._said += 1
        for piece in part.deltas:
            if part.pause:
                await self._unless_halted(asyncio.sleep(part.pause))
            await self._emit(f"{kind}_delta", **at, text=piece)
        await self._emit(f"{kind}_complete", **at, text=part.text)

    async def _tool(self, part: Tool) -> None:
        await self._together(Together([part]))

    async def _together(self, part: Together) -> None:
        await self._model_speaks()
        started: list[tuple[float, str, Tool]] = []
        for tool in part.tools:
            self._calls += 1
            call_id = tool.call_id or f"call-{self._calls}"
            arguments = tool.arguments if isinstance(tool.arguments, str) else json.dumps(tool.arguments)
            await self._emit("tool_start", call_id=call_id, name=tool.name, arguments=arguments, recovery=tool.recovery)
            started.append((tool.seconds, call_id, tool))
        passed = 0.0
        for seconds, call_id, tool in sorted(started, key=lambda row: row[0]):
            if seconds > passed:
                await self._unless_halted(asyncio.sleep(seconds - passed))
                passed = seconds
            content = [text_block(tool.result)] if isinstance(tool.result, str) else tool.result
            await self._emit("tool_result", call_id=call_id, state=tool.state, content=content)
        self._answered = True

    async def _ask(self, part: Question | Permission | Boundary) -> None:
        kind = _ASKED[type(part)]
        outcome = await self._unless_halted(self._input.interactions.ask(kind, part.request))
        self._backend.outcomes.append(outcome)
        with exits_contained("a script"):
            parts = _parts([*part.then(outcome)])
        self._parts.extendleft(reversed(parts))

    async def _retry(self, part: Retry) -> None:
        await self._model_speaks()
        await self._emit("provider_retry", attempt=part.attempt, delay=part.delay, failure_class=part.failure_class)

    async def _wait(self, part: Wait) -> None:
        await self._unless_halted(part.over())

    async def _never(self, part: Never) -> None:
        await self._unless_halted(Wait().over())

    async def _fail(self, part: Fail) -> None:
        raise ModelError(part.message, kind=part.kind, retryable=part.retryable, retry_after=part.retry_after)

    async def _tokens(self, part: Tokens) -> None:
        await self._emit("token_usage", input_tokens=part.input, output_tokens=part.output)

    async def _do(self, part: Do) -> None:
        with exits_contained("a script"):
            result = part.action(self._input)
        if inspect.isawaitable(result):
            await self._unless_halted(_exits_contained(result))

    async def _as_given(self, part: Emit) -> None:
        await self._emit(part.kind, **part.data)

    async def _end(self, part: End) -> None:
        raise _Over(part.reason)

    async def _vanish(self, part: Vanish) -> None:
        raise _Over(None)


_ASKED: Final[dict[type, InteractionKind]] = {
    Question: "question",
    Permission: "permission",
    Boundary: "sandbox_boundary",
}
_PLAY: Final[dict[type, Callable[[_Playing, Any], Coroutine[Any, Any, None]]]] = {
    str: _Playing._text,
    Say: _Playing._say,
    Tool: _Playing._tool,
    Together: _Playing._together,
    **dict.fromkeys(_ASKED, _Playing._ask),
    Retry: _Playing._retry,
    Wait: _Playing._wait,
    Never: _Playing._never,
    Fail: _Playing._fail,
    Tokens: _Playing._tokens,
    Do: _Playing._do,
    Emit: _Playing._as_given,
    End: _Playing._end,
    Vanish: _Playing._vanish,
}


def _parts(turn: Turn) -> list[Part]:
    parts = list(turn) if isinstance(turn, list | tuple) else [turn]
    for part in parts:
        if isinstance(part, Ask):
            raise TypeError(f"a script of a backend holds {part!r}, a model's call; use Tool, which has its result too")
        if type(part) not in _PLAY:
            raise TypeError(
                f"a script holds {part!r}, which is no part; the parts are in maka.runtime.backends.scripted"
            )
    return parts


async def _exits_contained(awaited: Awaitable[T]) -> T:
    with exits_contained("a script"):
        return await awaited


class _Stream:
    """An async iterator over what ``play`` yields; ``play`` begins with the first ``__anext__``, in a task of its own.

    ``patient``: closing it waits for the end of ``play`` and cancels nothing.
    """

    def __init__(self, play: Callable[[Yield], Coroutine[Any, Any, None]], *, patient: bool) -> None:
        self._play = play
        self._patient = patient
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._event: SessionEvent | None = None
        self._asked: asyncio.Future[None] | None = None
        self._came: asyncio.Future[None] | None = None

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> SessionEvent:
        if self._closed:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._play(self._yield), name="scripted turn")
        elif self._event is None and self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        while self._event is None and not self._task.done():
            self._came = loop.create_future()
            await asyncio.wait({self._task, self._came}, return_when=asyncio.FIRST_COMPLETED)
        event, self._event = self._event, None
        if event is None:
            self._closed = True
            self._task.result()
            raise StopAsyncIteration
        return event

    async def _yield(self, event: SessionEvent) -> None:
        if self._closed:
            return
        self._event = event
        self._asked = asyncio.get_running_loop().create_future()
        if self._came is not None and not self._came.done():
            self._came.set_result(None)
        await self._asked

    async def aclose(self) -> None:
        self._closed = True
        if self._task is not None:
            if not self._patient:
                self._task.cancel()
            elif self._asked is not None and not self._asked.done():
                self._asked.set_result(None)
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()


__all__ = [
    "Boundary",
    "Composition",
    "Do",
    "Emit",
    "End",
    "Fail",
    "Faults",
    "Never",
    "Part",
    "Permission",
    "Question",
    "Retry",
    "Say",
    "Script",
    "ScriptedBackend",
    "ScriptedBackends",
    "Together",
    "Tokens",
    "Tool",
    "Turn",
    "Vanish",
    "Wait",
    "echo",
    "scripted_backend",
]
