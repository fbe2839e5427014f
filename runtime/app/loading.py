"""From an app's name to the app: imports its module, and says in one sentence what is wrong with it."""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from ..errors import AppError
from .definition import App, app_of, listed
from .naming import CONFIG, OPTION, VARIABLE, AppSource, find_app, near_miss

_NAME: Final = re.compile(r"(?P<module>\w+(?:\.\w+)*):(?P<object>\w+(?:\.\w+)*)")
#: Characters shown of what somebody else worded.
_SHOWN: Final = 300
#: Frames of these files are not the app's: importing, and the runtime itself.
_OURS: Final = tuple(
    os.path.join(place, "") for place in (os.path.dirname(importlib.__file__), Path(__file__).parents[1])
)
#: Frames of these are somebody else's: the standard library's; what was installed has a folder of its own.
_LIBRARY: Final = os.path.join(os.path.dirname(os.__file__), "")
_INSTALLED: Final = ("site-packages", "dist-packages")


def load_app(name: str | None, root: Path, environ: Mapping[str, str], cwd: Path) -> tuple[App, AppSource]:
    """The app that ``find_app`` finds, imported, with ``cwd`` importable as for ``python -m``; and who named it.

    Runs the module's code. Raises AppError, whose message is one sentence, for whatever is wrong.
    """
    source = find_app(name, root, environ)
    if source is None:
        raise AppError(
            f"no app is named, so there is nothing to run; name one as `module:object` with {OPTION}, in the "
            f"environment variable {VARIABLE}, or as `app` below `[maka]` in {root / CONFIG}{near_miss(root / CONFIG)}"
        )
    match = _NAME.fullmatch(source.name)
    if match is None:
        raise AppError(
            f"{source.name[:_SHOWN]!r}, named by {source.origin}, is not `module:object`; write the module as an "
            "import statement does (no path, no .py), a colon, and the name of the app in it"
        )
    said = f"{source.name[:_SHOWN]}, named by {source.origin},"
    module = _imported(match["module"], cwd, said)
    try:
        return app_of(_found(module, match["object"])), source
    except AppError as error:
        raise AppError(f"{said} is no app: {error}{_place(error)}") from error
    except (Exception, SystemExit) as error:
        raise AppError(f"{said} failed while it was made: {_described(error)}; mend it there") from error


def _imported(module: str, cwd: Path, said: str) -> ModuleType:
    if str(cwd) not in sys.path and not sys.flags.safe_path:
        sys.path.insert(0, str(cwd))
    # The module may have been written a moment ago.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except AppError as error:
        raise AppError(f"{said} is no app: {error}{_place(error)}") from error
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and not _frames(error):
            raise AppError(
                f"{said} cannot be found ({error}); check the spelling, install the module, or run this in the "
                f"directory that holds it (here it is {cwd})"
            ) from error
        raise AppError(f"{said} cannot be imported: {_described(error)}; mend it there") from error


def _found(module: ModuleType, path: str) -> object:
    found: object = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            there = [
                key
                for key, value in vars(module).items()
                if not key.startswith("_") and not isinstance(value, ModuleType)
            ]
            raise AppError(
                f"the module {module.__name__} has no `{path}`; it has {listed(there) if there else 'no names at all'}"
            ) from error
    return found


def _described(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_SHOWN]
    return f"{type(error).__name__}{f': {text}' if text else ''}{_place(error)}"


def _place(error: BaseException) -> str:
    """`` (at FILE:LINE)``: the innermost line of the app's own code, as far as libraries can be told from it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (at {error.filename}:{error.lineno})"
    frames = _frames(error)
    own = [frame for frame in frames if not _of_library(frame.filename)]
    last = (own or frames)[-1:]
    return "".join(f" (at {frame.filename}:{frame.lineno})" for frame in last)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error, those of importing and of the runtime left out."""
    return [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(("<", *_OURS))
    ]


def _of_library(filename: str) -> bool:
    return filename.startswith(_LIBRARY) or any(f"{os.sep}{name}{os.sep}" in filename for name in _INSTALLED)
