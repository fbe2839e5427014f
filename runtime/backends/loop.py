"""The loop over a model and tools as a backend: its steps say into a channel what happens, permissions are asked."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import attrs

from ...journal.events import JsonObject
from ..app.definition import check_tools
from ..channel import Channel
from ..checks import shortly
from ..composition import RunComposition
from ..dispatch import Authorize, denial
from ..errors import InteractionRefused
from ..model import ModelAdapter, ModelError
from ..permissions import asks
from ..progress import Call
from ..session_events import STOP_REASONS, InteractionKind
from ..steps import PAUSED, Options, Steering, Steps, reason_of
from ..tasks import all_done, exits_contained
from ..tools.base import Tool
from .base import Backend, BackendContext, Boundary, SendInput, StopMode, StopReason
from .composing import check_composed, composed, of_app, of_model

#: A model, or what makes one for a session.
Model = ModelAdapter | Callable[[BackendContext], ModelAdapter]

#: Seconds for what stopped steps have said to be taken by whoever iterates.
_TAKEN: Final = 1.0
#: Bytes of a call's arguments that a person is shown, and the lengths that long texts are cut to until they fit.
_SHOWN: Final = 12 * 1024
_CUTS: Final = (4_000, 1_000, 200)


def loop_backend(
    model: Model,
    tools: Iterable[Tool] | None = None,
    options: Options | None = None,
    *,
    authorize: Authorize | None = None,
    handoff: bool = False,
) -> "LoopFactory":
    """Backends over ``model``: an adapter that all sessions share, or a function that makes one for each.

    Without ``tools`` they have the app's. With ``handoff`` a run can be handed over between two steps: what it is made
    of is recorded before its first request, and its tools, 256 at most, have names of 128 characters at most. Raises
    TypeError for what is neither, and AppError for tools that cannot be right.
    """
    if isinstance(model, type):
        raise TypeError(f"loop_backend got the class {model.__name__}; give it a model, {model.__name__}(…)")
    if not isinstance(model, ModelAdapter) and not callable(model):
        raise TypeError(f"loop_backend takes a model, or a function that makes one, and not {shortly(model)}")
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"the options of loop_backend must be Options, not {shortly(options)}")
    if authorize is not None and not callable(authorize):
        raise TypeError(f"authorize must be an `async def`, not {shortly(authorize)}")
    if not isinstance(handoff, bool):
        raise TypeError(f"handoff must be True or False, not {shortly(handoff)}")
    own = None if tools is None else tuple(tools)
    if own:
        check_tools(own)
        if handoff:
            check_composed(own)

    return LoopFactory(model, own, options or Options(), authorize, handoff)


@attrs.frozen
class LoopFactory:
    """What ``loop_backend`` gives. A BackendFactory; ``tools`` are those of its backends, None for the app's, and
    ``handoff`` says whether their runs can be handed over.
    """

    model: Model
    tools: tuple[Tool, ...] | None
    options: Options
    authorize: Authorize | None
    handoff: bool = False

    def __call__(self, context: BackendContext) -> Backend:
        made: object = self.model if isinstance(self.model, ModelAdapter) else self.model(context)
        if not isinstance(made, ModelAdapter):
            raise TypeError(f"the function that makes a model gave {shortly(made)}, which is none")
        kept = context.tools if self.tools is None else self.tools
        return LoopBackend(made, kept, self.options, context, authorize=self.authorize, handoff=self.handoff)

    def known(self, settings: JsonObject, tools: Iterable[Tool]) -> JsonObject:
        """What is known already of the composition of a run of a session with these ``settings``, in an app with these
        ``tools``: values by keys of ``composition.SEMANTICS``, those that only a model tells where there is one yet.
        Empty where its runs cannot be handed over. Raises AppError for what no run can be made of.
        """
        if not self.handoff:
            return {}
        # Of the settings none counts: a run's header has what it was set up with, and is compared by itself.
        kept = tools if self.tools is None else self.tools
        found = of_app(kept, self.options, authorized=self.authorize is not None)
        if isinstance(self.model, ModelAdapter):
            found |= of_model(self.model, self.options)
        return found


class LoopBackend:
    """Runs the steps of turns. ``authorize`` is asked before a call, and before a person is where its mode says so.

    With ``handoff`` its runs can be handed over: it offers ``prepare_run_composition``, which is None otherwise, and
    awaits ``input.handoff_boundary`` before each step. Raises AppError for tools and a model of which no composition
    can tell.

    Of ``options`` those about live text are the kernel's to decide. ``sleep`` and ``chance`` are replaced in tests.
    """

    def __init__(
        self,
        model: ModelAdapter,
        tools: Iterable[Tool],
        options: Options,
        context: BackendContext,
        *,
        authorize: Authorize | None = None,
        handoff: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.model = model
        self.tools = {tool.name: tool for tool in tools}
        self.options = options
        self.context = context
        self.authorize = authorize
        self.sleep = sleep
        self.chance = chance
        self.prepare_run_composition: Callable[[str, str], Awaitable[None]] | None = None
        if handoff:
            self._composition()  # what is wrong with it is told now
            self.prepare_run_composition = self._record_composition
        self._disposed = False
        self._newest: _Run | None = None

    def _composition(self) -> RunComposition:
        """As things are now: tools belong to the app, and what they say of themselves may change between two runs."""
        return composed(self.model, self.tools.values(), self.options, authorized=self.authorize is not None)

    async def _record_composition(self, run_id: str, turn_id: str) -> None:
        await self.context.record_run_composition(run_id, self._composition())

    def send(self, input: SendInput) -> Channel:
        """See ``Backend``. A defect of an adapter or a hook is raised out of the iterator."""
        run = self._newest = _Run(self, input)
        if self._disposed:
            run.stopped = run.immediate = True
        return run.channel

    async def stop(self, reason: StopReason, mode: StopMode) -> None:
        """See ``Backend``. ``immediate`` returns when the steps have ended, ``after_step`` at once."""
        if self._newest is not None:
            await self._newest.stop(mode)

    async def dispose(self) -> None:
        """As ``stop`` at once, and nothing is begun any more."""
        self._disposed = True
        await self.stop("user_stop", "immediate")


class _Run:
    def __init__(self, backend: LoopBackend, input: SendInput) -> None:
        self._backend = backend
        self._input = input
        self._steps: asyncio.Future[str] | None = None
        self.channel = Channel(self._work, turn_id=input.turn_id, now=backend.context.now)
        self.stopped = False
        self.immediate = False
        #: Whoever waits at a boundary for a handoff waits no longer.
        self._stopping = asyncio.Event()

    async def stop(self, mode: StopMode) -> None:
        steps = self._steps
        if steps is not None and steps.done():
            return
        self.stopped = True
        self._stopping.set()
        if mode == "immediate":
            if steps is not None and not self.immediate:
                # Once: a second time would cut off what still comes to its end.
                steps.cancel()
            self.immediate = True
            if steps is not None:
                await asyncio.wait({steps})
                await self._taken()

    async def _taken(self) -> None:
        """What the steps came to counts for the turn's end, which may follow on the stop at once."""
        taken = asyncio.ensure_future(self.channel.barrier())
        await asyncio.wait({taken}, timeout=_TAKEN)
        taken.cancel()
        await all_done([taken])

    async def _work(self, channel: Channel) -> None:
        if not self.immediate:
            await self._run(channel)
        else:
            channel.emit("complete", stop_reason="user_stop")

    async def _run(self, channel: Channel) -> None:
        steps = self._steps = asyncio.ensure_future(self._whole(channel))
        try:
            await asyncio.wait({steps})
        finally:
            steps.cancel()
            if await all_done([steps]):
                raise asyncio.CancelledError
        reason = reason_of(steps, stopped=self.immediate, source="stop" if self.stopped else None)
        defect = None if steps.cancelled() else steps.exception()
        if reason["kind"] == PAUSED:
            return
        if reason["kind"] == "failed":
            if defect is not None and not isinstance(defect, ModelError):
                raise defect
            channel.emit("error", failure_class=reason["failure_class"], message=reason["message"])
        channel.emit("complete", stop_reason=STOP_REASONS[reason["kind"]])

    async def _whole(self, channel: Channel) -> str:
        with exits_contained("what the backend is made of"):
            prepare = self._backend.prepare_run_composition
            if prepare is not None:
                await prepare(self._input.run_id, self._input.turn_id)
            return await self._made(channel).run()

    async def _boundary(self, remaining: int | None) -> Boundary:
        return await self._input.handoff_boundary(self._stopping, remaining)

    def _made(self, channel: Channel) -> Steps:
        backend, input = self._backend, self._input
        return Steps(
            sink=channel,
            model=backend.model,
            tools=backend.tools,
            options=backend.options,
            conversation=input.conversation,
            session_dir=backend.context.session_dir,
            turn_id=input.turn_id,
            run_id=input.run_id,
            max_steps=backend.options.max_steps if input.max_steps is None else input.max_steps,
            stopped=lambda: self.stopped,
            new_id=backend.context.new_id,
            sleep=backend.sleep,
            chance=backend.chance,
            authorize=self._authorize,
            ask=self._ask,
            steering=Steering(input.pull_steering, input.ack_steering, input.nack_steering),
            boundary=None if backend.prepare_run_composition is None else self._boundary,
            wanted=input.handoff_wanted,
        )

    async def _ask(self, kind: InteractionKind, request: JsonObject) -> JsonObject:
        """What a person refused in the run that this one goes on from is not asked again."""
        continued = self._input.continuation
        if kind == "sandbox_boundary" and continued is not None and continued.sandbox_boundary_denied:
            return {"kind": "sandbox_boundary_decision", "decision": "deny"}
        return await self._input.interactions.ask(kind, request)

    async def _authorize(self, call: Call, tool: Tool, arguments: dict[str, Any]) -> str | None:
        """Why the call is not dispatched, if it is not: the program's hook first, then whoever is asked."""
        hook, conversation = self._backend.authorize, self._input.conversation
        if hook is not None and (denied := await denial(hook, call, tool, arguments)) is not None:
            return denied
        reason = asks(conversation.permission_mode, tool, arguments, Path(conversation.cwd or "."))
        if reason is None:
            return None
        # The call's own message stands in the journal before anybody is asked about it.
        await self.channel.barrier()
        try:
            request = {"call_id": call.call_id, "name": call.name, "arguments": shown(arguments), "reason": reason}
            outcome = await self._input.interactions.ask("permission", request)
        except (InteractionRefused, RecursionError) as error:
            return f"{call.name} needs a permission, and nobody could be asked for it: {error}"
        return _denial(call.name, outcome)


def _denial(name: str, outcome: JsonObject) -> str | None:
    if outcome.get("kind") == "closure":
        return f"{name} needs a permission, and nobody gave it before the request was closed ({outcome.get('reason')})"
    if outcome.get("kind") == "permission_answer" and outcome.get("decision") == "allow":
        return None
    return f"the user did not allow {name}"


def shown(arguments: JsonObject) -> JsonObject:
    """Arguments as a person is shown them: long texts lose their middle where the whole would be too much to show."""
    for most in _CUTS:
        if len(json.dumps(arguments, ensure_ascii=False).encode(errors="replace")) <= _SHOWN:
            break
        arguments = _cut(arguments, most)
    return arguments


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str) and len(value) > most:
        half = most // 2
        return f"{value[:half]}[… {len(value) - 2 * half} characters left out …]{value[-half:]}"
    if isinstance(value, dict):
        return {key: _cut(entry, most) for key, entry in value.items()}
    if isinstance(value, list):
        return [_cut(entry, most) for entry in value]
    return value


__all__ = ["LoopBackend", "LoopFactory", "Model", "loop_backend", "shown"]
