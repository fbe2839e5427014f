"""Who names the app: an option, a variable, or a configuration file that only its owner may change."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..errors import AppError
from .definition import listed

#: The option of the commands, the variable, and the file below the root, in this order.
OPTION: Final = "--app"
VARIABLE: Final = "MAKA_APP"
CONFIG: Final = "config.toml"

#: Bytes of a configuration file that are read at all.
_MOST: Final = 64 * 1024


@attrs.frozen
class AppSource:
    """An app's name (``module:object``), and who named it: the option, the variable, or a file by its path."""

    name: str
    origin: str


def find_app(name: str | None, root: Path, environ: Mapping[str, str]) -> AppSource | None:
    """The app that is named: by ``name`` (the option), else by ``MAKA_APP``, else in ``config.toml`` below ``root``.

    A place of lower precedence is not looked at. Raises AppError for a file that cannot be read or trusted.
    """
    if name is not None:
        return AppSource(name, OPTION)
    if named := environ.get(VARIABLE):
        return AppSource(named, VARIABLE)
    path = root / CONFIG
    configured = _configured(path)
    return None if configured is None else AppSource(configured, str(path))


def _configured(path: Path) -> str | None:
    """``app`` of the table ``maka``; None where there is no file, or it does not say."""
    text, document = _parsed(path)
    table = document.get("maka", {})
    if not isinstance(table, dict):
        raise AppError(
            f"{path}, line {_line(text, 'maka')}: `maka` must be a table; write `[maka]`, below it `app = …`"
        )
    app = table.get("app")
    if app is not None and not isinstance(app, str):
        raise AppError(
            f"{path}, line {_line(text, 'maka', 'app')}: `app` must be a text; write it like "
            '`app = "module:object"`, with the quotes'
        )
    return app


def near_miss(path: Path) -> str:
    """What a configuration that names no app holds in its place, to end a sentence; empty where it holds nothing."""
    text, document = _parsed(path)
    table = document.get("maka")
    if "app" in document:
        return f", where `app` stands outside of `[maka]` in line {_line(text, 'app')}"
    if table:
        return f", where `[maka]` holds {listed(table)} and no `app`"
    return f", which holds {listed(document)} and no `[maka]`" if document and table is None else ""


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of the configuration and what it says; both empty where there is no file."""
    raw = _read(path)
    if raw is None:
        return "", {}
    import tomllib

    try:
        text = raw.decode()
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise AppError(f"{path}, line {line}, is not UTF-8; save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        end = text.count("\n") + 1
        said = str(error).replace("at end of document", f"at the end, line {end}")
        raise AppError(f"{path} is not valid TOML: {said[:200]}; mend that place") from error
    except (ValueError, RecursionError) as error:
        raise AppError(f"{path} is not valid TOML: it holds something too big; write it shorter") from error


def _line(text: str, *words: str) -> int:
    """The number of the line where these words stand one after the other. The parser does not tell."""
    at = 0
    for word in words:
        if found := re.compile(rf"^[^#\n]*\b{word}\b", re.MULTILINE).search(text, at):
            at = found.end()
    return text.count("\n", 0, at) + 1


def _read(path: Path) -> bytes | None:
    """The file's bytes, or None where there is none. Raises AppError for what others may change: it says what runs."""
    try:
        # A pipe that somebody put there would keep the opening waiting.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        with open(fd, "rb") as file:
            _check(path, os.fstat(fd))
            raw = file.read(_MOST + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(raw) > _MOST:
        raise AppError(f"{path} is longer than {_MOST:,} bytes, which no configuration is; write a shorter one")
    return raw


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise AppError(
            f"{path} is not a regular file; put a configuration file in its place, or name an app with {OPTION}"
        )
    _refuse_shared(path, path, found)
    # Whoever may write to its directory can put another file in its place; so it is where a link leads to.
    for directory in sorted({path.parent, Path(os.path.realpath(path)).parent}):
        _refuse_shared(directory, path, os.stat(directory))


def _refuse_shared(place: Path, config: Path, found: os.stat_result) -> None:
    says = f"and {config} decides what code runs, so it is not read"
    mode = stat.S_IMODE(found.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AppError(
            f"{place} may be written to by others (mode {mode:04o}), {says}; "
            f"take that right away with `chmod go-w {place}`"
        )
    if found.st_uid not in (0, os.geteuid()):
        raise AppError(
            f"{place} belongs to another user (uid {found.st_uid}; this process is uid {os.geteuid()}), {says}; "
            f"name an app with {OPTION}, or have the place made your own"
        )


def _unreadable(path: Path, error: Exception) -> AppError:
    reason = getattr(error, "strerror", None) or str(error)
    return AppError(f"{path} cannot be read: {reason}; make it readable for this user, or name an app with {OPTION}")
