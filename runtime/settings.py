"""What can be set of a session, and which values somebody could use: what a program gives is looked at here first."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ..journal.errors import InvalidEvent
from ..journal.events import JsonObject
from ..journal.views.session import SETTINGS
from .permissions import MODES

#: How keys of a patch begin that are the program's own.
_OWN: Final = "x-"


def absolute_directory(path: object) -> str:
    """The absolute path of a directory that is there. Raises InvalidEvent."""
    if not isinstance(path, str | os.PathLike):
        raise _invalid("cwd", f"must be a path, not {type(path).__name__}")
    whole = str(Path(path).absolute())
    if not os.path.isdir(whole):
        raise _invalid("cwd", f"is {whole}, where no directory is; make it, or name another one")
    return whole


def as_labels(labels: Iterable[str]) -> list[str]:
    """As a list. Raises InvalidEvent for a single text, and for what cannot be iterated over."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise _invalid("labels", f"must be several texts, as in a list, not {type(labels).__name__}")
    return [*labels]


def check_patch(patch: JsonObject) -> None:
    """Raises InvalidEvent for a patch that sets something that no session has, or a value that nobody could use."""
    given: object = patch
    if not isinstance(given, dict):
        raise InvalidEvent(
            f"a patch must be a dict of keys and their whole new values, not {type(given).__name__}",
            type="session/updated",
            key="patch",
        )
    for key in given:
        if key not in SETTINGS and not (isinstance(key, str) and key.startswith(_OWN)):
            from difflib import get_close_matches

            near = get_close_matches(str(key), SETTINGS, 1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(SETTINGS)}"
            raise _invalid(str(key), f"is nothing that can be set; {meant} (keys of your own begin with {_OWN})")
    check_values(patch)


def check_values(values: JsonObject) -> None:
    """Raises InvalidEvent for a value that nobody could use."""
    for key, kind in SETTINGS.items():
        if key in values and not isinstance(values[key], kind):
            raise _invalid(key, f"must be a {kind.__name__}, not {type(values[key]).__name__}")
    if not all(isinstance(label, str) for label in values.get("labels") or ()):
        raise _invalid("labels", "must be texts")
    mode = values.get("permission_mode")
    if mode is not None and mode not in MODES:
        raise _invalid("permission_mode", f"must be one of {', '.join(MODES)}, not {mode}")


def _invalid(key: str, what: str) -> InvalidEvent:
    return InvalidEvent(f"{key[:200]} {what}", type="session/updated", key=key)
