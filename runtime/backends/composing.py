"""What the runs of a loop are made of: its prompt, its tools, its model, as one composition. No I/O."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...journal.events import JsonObject
from ..checks import shortly
from ..composition import MAX_NAME, MAX_TOOLS, RunComposition, hashed
from ..errors import AppError
from ..model import ModelAdapter
from ..steps import Options
from ..tools.base import Tool
from ..tools.running import TIMEOUT, offers_look

COMPOSER: Final = "maka.loop"


def composed(model: ModelAdapter, tools: Iterable[Tool], options: Options, *, authorized: bool) -> RunComposition:
    """The composition of a run over these. ``authorized``: is a hook of the program asked before each call?

    It is the same in every process: nothing in it is the identity of an object, a path or a moment. Raises AppError
    for what none can be made of.
    """
    from ... import __version__

    kept = list(tools)
    # Not in it: max_steps, of which a successor has what is left, and retry and limits, which say how long somebody
    # tries and waits and how much is shown. The agent is the same with others.
    return RunComposition(
        composer_id=COMPOSER,
        composer_revision=__version__,
        tool_names=[tool.name for tool in kept],
        **of_app(kept, options, authorized=authorized),
        **of_model(model, options),
    )


def of_app(tools: Iterable[Tool], options: Options, *, authorized: bool) -> JsonObject:
    """Those values of the composition that do not depend on the model. Raises AppError, as ``composed`` does."""
    kept = sorted(tools, key=lambda tool: tool.name)
    check_composed(kept)
    return {
        "base_system_prompt_hash": _hashed("the system prompt", options.system or None),
        "tool_catalog_hash": _hashed("the tools", [_told(tool) for tool in kept]),
        "tool_availability_hash": hashed({"authorized": authorized, "tools": [_stands(tool) for tool in kept]}),
    }


def of_model(model: ModelAdapter, options: Options) -> JsonObject:
    """Those that do. Raises AppError, as ``composed`` does."""
    return {
        "base_provider_options_hash": _hashed("the params", {"provider": model.provider, "params": options.params}),
        "context_window": _window(model),
    }


def check_composed(tools: Sequence[Tool]) -> None:
    """Raises AppError for tools of which no composition can tell."""
    if len(tools) > MAX_TOOLS:
        raise AppError(
            f"there are {len(tools)} tools, and a run that can be handed over has at most {MAX_TOOLS}; leave some out, "
            "or build the backend without handoff"
        )
    for tool in tools:
        if len(tool.name) > MAX_NAME:
            raise AppError(
                f"the name of tool {shortly(tool.name)} has {len(tool.name)} characters, and in a run that can be "
                f"handed over at most {MAX_NAME}; give it a shorter one, or build the backend without handoff"
            )


def _told(tool: Tool) -> JsonObject:
    """What a model is told of a tool."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _stands(tool: Tool) -> JsonObject:
    """What stands behind a tool's name: how a call of it behaves, as far as the tool says so."""
    seconds = getattr(tool, "timeout", TIMEOUT)
    return {
        "name": tool.name,
        "recovery": tool.recovery,
        "parallel_safe": bool(tool.parallel_safe),
        "timeout": None if seconds is None else float(seconds),
        "reconcile": offers_look(tool),
        "leaves": callable(getattr(tool, "leaves", None)),
    }


def _window(model: ModelAdapter) -> int | None:
    window: Any = getattr(model, "context_window", None)
    if window is not None and (window.__class__ is not int or window <= 0):
        raise AppError(
            f"the `context_window` of the model must be a number of tokens above 0, or None, not {shortly(window)}"
        )
    return window


def _hashed(what: str, value: Any) -> str:
    try:
        return hashed(value)
    except TypeError as error:
        raise AppError(
            f"{what} of the loop cannot be written as JSON ({error}), so its runs cannot be handed over; mend them, or "
            "build the backend without handoff"
        ) from error
