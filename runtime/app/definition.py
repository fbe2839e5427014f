"""What an app is: backends by name, tools, and what new sessions begin with. No I/O."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import attrs

from ...journal.events import Recovery
from ..backends.base import BackendFactory
from ..continuation.safety import SafetyInspector
from ..errors import AppError
from ..permissions import MODES
from ..tools.arguments import schema_fault
from ..tools.base import Tool

#: Names shown of many.
_NAMES: Final = 12


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _kept(value: Any) -> Any:
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else value


@attrs.frozen(kw_only=True)
class App:
    """What a session can be run with. Any object with these attributes will do; those with a default may be missing.

    ``backends`` are factories by the name that a session's header gives; ``default_backend``, ``model`` and
    ``permission_mode`` go into new sessions. ``tools`` are handed to its backends when they are built.
    ``safety_inspector`` looks at workspaces in place of this process (docs/continuations.md, "The workspace"), and
    without ``safe_boundary_resume_enabled`` no run is continued. Raises AppError for values that cannot be right.
    """

    backends: Mapping[str, BackendFactory] = attrs.field(converter=_copied)
    default_backend: str
    model: str = ""
    tools: Sequence[Tool] = attrs.field(default=(), converter=_kept)
    safety_inspector: SafetyInspector | None = None
    permission_mode: str = "ask"
    safe_boundary_resume_enabled: bool = True

    def __attrs_post_init__(self) -> None:
        _check_backends(self.backends)
        for name, (fits, wanted) in _WANTED.items():
            value = getattr(self, name)
            if not fits(value):
                raise AppError(f"`{name}` must be {wanted}, not {_shown(value)}")
        if self.default_backend not in self.backends:
            raise AppError(
                f"`default_backend` is {_shown(self.default_backend)}, which is none of its backends; "
                f"there are: {listed(self.backends)}"
            )
        check_tools(self.tools)


def _check_backends(backends: object) -> None:
    if not isinstance(backends, dict):
        raise AppError(
            f"`backends` must be a mapping of names to functions that build a backend, not {_shown(backends)}"
        )
    if not backends:
        raise AppError("`backends` is empty; give at least one function that builds a backend, by its name")
    for name, builds in backends.items():
        if not isinstance(name, str):
            raise AppError(f"`backends` has the key {_shown(name)}; its keys must be texts, the names of backends")
        if hasattr(builds, "stream") and not hasattr(builds, "send"):
            raise AppError(f"backend {_shown(name)} is {_shown(builds)}, a model; wrap it: `loop_backend(model)`")
        if hasattr(builds, "send") and not callable(builds):
            raise AppError(
                f"backend {_shown(name)} is {_shown(builds)}, a backend already; give the class or function that "
                "builds one for each session"
            )
        if not callable(builds):
            raise AppError(f"backend {_shown(name)} must be a function that builds a backend, not {_shown(builds)}")


#: Attribute → whether a value fits, and what is wanted in its place.
_WANTED: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "default_backend": (lambda value: isinstance(value, str), "the name of a backend"),
    "model": (lambda value: isinstance(value, str), "the name of a model, or empty"),
    "tools": (lambda value: isinstance(value, tuple), "a sequence of tools"),
    "safety_inspector": (
        lambda value: value is None or callable(getattr(value, "inspect_continuation_safety", None)),
        "None or an object with the method `inspect_continuation_safety`",
    ),
    "safe_boundary_resume_enabled": (lambda value: isinstance(value, bool), "True or False"),
    "permission_mode": (lambda value: value in MODES, "one of " + ", ".join(f"`{mode}`" for mode in MODES)),
}

_OF_A_TOOL: Final = ("name", "description", "parameters", "recovery", "parallel_safe", "execute")


def check_tools(tools: Sequence[Any]) -> None:
    """Raises AppError for tools that cannot be right."""
    seen: set[str] = set()
    for number, tool in enumerate(tools, 1):
        if isinstance(tool, type):
            raise AppError(f"tool {number} is the class {tool.__name__}; put an instance of it there")
        if lacks := [name for name in _OF_A_TOOL if not hasattr(tool, name)]:
            raise AppError(f"tool {number}, {_shown(tool)}, lacks {listed(lacks)}; give it what a tool has")
        if not isinstance(tool.name, str) or not tool.name:
            raise AppError(f"tool {number} must have a text as its `name`, not {_shown(tool.name)}")
        if tool.recovery not in get_args(Recovery):
            raise AppError(
                f"the `recovery` of tool {_shown(tool.name)} must be one of {listed(get_args(Recovery))}, "
                f"not {_shown(tool.recovery)}"
            )
        _check_limits(tool)
        if tool.name in seen:
            raise AppError(f"two of its tools are called {_shown(tool.name)}; give each a name of its own")
        seen.add(tool.name)


def _check_limits(tool: Any) -> None:
    """What a call is held to: its time and the schema of its arguments."""
    seconds = getattr(tool, "timeout", None)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise AppError(
            f"the `timeout` of tool {_shown(tool.name)} must be a number of seconds above 0, or None, "
            f"not {_shown(seconds)}"
        )
    if not isinstance(tool.parameters, dict):
        raise AppError(
            f"the `parameters` of tool {_shown(tool.name)} must be a JSON Schema, as a dict, "
            f"not {_shown(tool.parameters)}"
        )
    if (fault := schema_fault(tool.parameters)) is not None:
        raise AppError(f"the `parameters` of tool {_shown(tool.name)} are no JSON Schema: {fault}; mend them")


def app_of(found: object) -> App:
    """Takes an object as an app; a function or a class is called first, and is to give one.

    Raises AppError for what is none, and whatever the function raises.
    """
    if isinstance(found, type) or (callable(found) and not hasattr(found, "backends")):
        found = _called(found)
    if isinstance(found, App):
        return found
    fields = attrs.fields(App)
    if lacks := [field.name for field in fields if field.default is attrs.NOTHING and not hasattr(found, field.name)]:
        raise AppError(f"{_shown(found)} lacks {listed(lacks)}; give it what an app has, or make it a `maka` App")
    return App(**{field.name: getattr(found, field.name) for field in fields if hasattr(found, field.name)})


def _called(maker: Callable[..., object]) -> object:
    import inspect

    try:
        inspect.signature(maker).bind()
    except TypeError:
        raise AppError("it takes arguments; name a function without any, or an app") from None
    except ValueError:
        pass  # a built-in that does not tell
    made = maker()
    if inspect.isawaitable(made):
        if inspect.iscoroutine(made):
            made.close()
        raise AppError("it is asynchronous; make it an ordinary function")
    return made


def _shown(value: object) -> str:
    """A value by its text if that is short, else by its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value) if value is None or isinstance(value, str | int | float) else ""
    return text if 0 < len(text) <= 60 else f"an object of type {type(value).__name__}"


def listed(names: Iterable[object]) -> str:
    """Names for a sentence, the first dozen of many."""
    every = [f"`{name}`" for name in names]
    return ", ".join(every[:_NAMES]) + (f" and {len(every) - _NAMES} more" if len(every) > _NAMES else "")
