"""Where a host listens, and the file that tells its clients so: ``<root>/host.json``.

The file decides nothing. Who owns a root is said by its lock alone; a file that is broken, or left by a host that died,
costs a look and no more.
"""

import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from ...journal import files
from ...journal.events import JsonObject
from ..errors import RuntimeFailure
from . import protocol
from .ownership import RootLock

NAME: Final = "host.json"
#: Bytes of a path that every system takes for a socket, its end included.
MAX_PATH: Final = 100
_MOST: Final = 16 * 1024
_SOCKET: Final = re.compile(r"[0-9a-f]{16}\.sock")
_NEEDED: Final = {"host_epoch": str, "endpoint": str, "pid": int, "state": str, "started_at": int, "version": str}


class EndpointRefused(RuntimeFailure):
    """There is no place for a socket that only this user can reach. The sentence says which was tried, and why not."""


@attrs.frozen(kw_only=True)
class Registration:
    """``started_at`` in Unix milliseconds. ``root`` as ``name_of`` gives it; ``app``: the name it was started with."""

    host_epoch: str
    endpoint: str
    pid: int
    state: str
    started_at: int
    version: str
    root: str
    app: str | None = None
    oldest: int = protocol.OLDEST
    newest: int = protocol.NEWEST

    def as_json(self) -> JsonObject:
        value: JsonObject = {
            "protocol": {"min": self.oldest, "max": self.newest},
            **{key: getattr(self, key) for key in _NEEDED},
            "root": self.root,
        }
        return value if self.app is None else {**value, "app": self.app}


def name_of(root: str | os.PathLike[str]) -> str:
    """The root's one name, whichever way leads to it, as text: what is no UTF-8 in it is spelled out."""
    return os.fsencode(os.path.realpath(root)).decode("utf-8", "backslashreplace")


def directory_of(root: str | os.PathLike[str]) -> Path:
    """The directory for the root's socket, whether or not it is there.

    Raises EndpointRefused where every path to it is too long for a socket.
    """
    import tempfile

    name = "maka-" + hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:12]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    places = [runtime] if os.path.isabs(runtime) and os.access(runtime, os.W_OK | os.X_OK) else []
    places.append(os.path.abspath(tempfile.gettempdir()))
    for place in places:
        directory = Path(place, name)
        if len(os.fsencode(_socket(directory, "0" * 16))) < MAX_PATH:
            return directory
    raise EndpointRefused(
        f"no socket can be made below {places[-1]}: a path of it must be shorter than {MAX_PATH} bytes; "
        "set TMPDIR to a shorter path, then start the host again"
    )


def prepare(lock: RootLock, host_epoch: str) -> Path:
    """The path where this host, which holds the root, is to listen. Its directory is there and private.

    What dead hosts of the root left there is taken away. Raises EndpointRefused.
    """
    directory = directory_of(lock.root)
    _make_private(directory)
    _sweep(directory)
    return _socket(directory, host_epoch)


def renew(path: str | os.PathLike[str]) -> None:
    """Makes room for a socket at a host's path again, as ``prepare`` does. Only under the root's lock.

    Raises EndpointRefused; OSError where what stands there cannot be taken away.
    """
    _make_private(Path(path).parent, then="")
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def clear(path: str | os.PathLike[str]) -> None:
    """Takes the socket away, and its directory if nothing else is in it. Only under the root's lock."""
    for take, place in ((os.unlink, path), (os.rmdir, os.path.dirname(path))):
        try:
            take(place)
        except OSError:
            pass  # the next host of the root sweeps


def read_registration(root: str | os.PathLike[str]) -> Registration | None:
    """What the root's file says. None where there is none, or where others could have written it, or it is broken."""
    try:
        fd = os.open(Path(root) / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode) or mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        return _registration(orjson.loads(os.read(fd, _MOST)))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def write(root: str | os.PathLike[str], registration: Registration) -> None:
    """Puts the file in its place, 0600. Only under the root's lock. Raises JournalWriteError."""
    path = Path(root) / NAME
    try:
        files.replace(path, [orjson.dumps(registration.as_json(), option=orjson.OPT_APPEND_NEWLINE)])
    except OSError as error:
        raise files.write_error(error, path, "write") from None


def remove(root: str | os.PathLike[str], host_epoch: str) -> None:
    """Takes the file away if it is still that host's. Only under the root's lock."""
    registered = read_registration(root)
    if registered is not None and registered.host_epoch == host_epoch:
        try:
            os.unlink(Path(root) / NAME)
        except OSError:
            pass  # clients find that nobody listens there


def is_private(path: str | os.PathLike[str], root: str | os.PathLike[str]) -> bool:
    """Could only this user, the owner of the root or the system's administrator have put a socket there?"""
    try:
        place, owner = os.lstat(os.path.dirname(path)), os.stat(root).st_uid
    except OSError:
        return False
    return stat.S_ISDIR(place.st_mode) and not place.st_mode & 0o077 and place.st_uid in {os.geteuid(), owner, 0}


def _socket(directory: Path, host_epoch: str) -> Path:
    return directory / f"{host_epoch[:16]}.sock"


def _make_private(directory: Path, then: str = ", then start the host again") -> None:
    """``then``: what a person does once the directory is mended."""
    try:
        try:
            os.mkdir(directory, files.DIR_MODE)
            os.chmod(directory, files.DIR_MODE)
        except FileExistsError:
            pass
        found = os.lstat(directory)
    except OSError as error:
        raise EndpointRefused(
            f"cannot make {directory} for the host's socket: {error.strerror}; "
            "give this user the right to write there, or set XDG_RUNTIME_DIR to a directory of its own"
        ) from None
    wrong = not_private(found)
    if wrong is not None:
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        way = f"close it with `chmod 700 {directory}`" if own else "move it elsewhere"
        raise EndpointRefused(f"{directory} {wrong}, so the host does not listen there; {way}{then}")


def not_private(found: os.stat_result) -> str | None:
    """What is wrong with a directory for a socket; None if nothing is."""
    if not stat.S_ISDIR(found.st_mode):
        return "is a link" if stat.S_ISLNK(found.st_mode) else "is no directory"
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & 0o077:
        return f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _sweep(directory: Path) -> None:
    try:
        for name in os.listdir(directory):
            if _SOCKET.fullmatch(name):
                os.unlink(directory / name)
    except OSError:
        pass  # a name of its own awaits each host


def _registration(value: Any) -> Registration | None:
    """Keys that are not known are another version's, and are passed over."""
    if not isinstance(value, dict) or any(type(value.get(key)) is not kind for key, kind in _NEEDED.items()):
        return None
    versions, app = value.get("protocol"), value.get("app")
    if not isinstance(versions, dict) or any(type(versions.get(end)) is not int for end in ("min", "max")):
        return None
    if not isinstance(value.get("root"), str) or not isinstance(app, str | None):
        return None
    return Registration(
        **{key: value[key] for key in _NEEDED},
        root=value["root"],
        app=app,
        oldest=versions["min"],
        newest=versions["max"],
    )
