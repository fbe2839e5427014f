"""Why no host of a root answers: there is none, it starts or hangs, or something keeps this user from reaching it."""

import os
import stat
from pathlib import Path
from typing import Final, Literal

import attrs

from . import endpoint, ownership
from .endpoint import Registration

LOG: Final = "host.log"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@attrs.frozen
class Absence:
    """``none``: nobody owns the root; ``silent``: ``pid`` does, or a process that said nothing of itself; ``hidden``:
    this user cannot see whether somebody does, and ``pid`` is what the system tells. ``message``: one sentence.
    """

    state: Literal["none", "silent", "hidden"]
    pid: int | None
    message: str


def look(root: str | os.PathLike[str]) -> Absence:
    """For where no host of the root has answered. Looks for an instant, and takes nothing from anybody."""
    place = Path(root)
    owner = ownership.owner(place)
    if owner is not None:
        return Absence("silent", owner["pid"], _silent(place, owner["pid"]))
    return _hidden(place) or Absence("none", None, f"no host runs for {place}; start one with `maka host start`")


def _silent(root: Path, pid: int | None) -> str:
    who = f"the host of {root} ({ownership.process({'pid': pid})})"
    wrong = _unreadable(root / endpoint.NAME)
    registered = endpoint.read_registration(root)
    begins = registered is None or pid not in (None, registered.pid)
    if wrong is None and registered is not None and not begins:
        wrong = _untrusted(registered, root)
    if wrong is not None:
        return f"{who} cannot be reached: {wrong}"
    why = "serve yet: it may be starting, or its app hangs" if begins else "answer: it may hang, or work too hard"
    ends = "" if pid is None else f", or end it with `kill {pid}`: nothing is lost that was acknowledged"
    return f"{who} holds {root / ownership.NAME} and does not {why}; read {root / LOG}, and try again{ends}"


def _unreadable(path: Path) -> str | None:
    """Why the registration at ``path`` is not read; None also for one that is not there."""
    try:
        found = os.lstat(path)
    except PermissionError:
        return _denied(path, None)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is no plain file; move it elsewhere, and the host writes it again"
    if not os.access(path, os.R_OK):
        return _denied(path, found)
    if found.st_mode & _OTHERS_WRITE:
        return f"{path} may be written to by others, so it is not trusted; close it with `chmod 600 {path}`"
    return None


def _untrusted(registered: Registration, root: Path) -> str | None:
    """Why nobody connects to where the host listens."""
    path = Path(registered.endpoint)
    try:
        if not endpoint.is_private(path, root):
            found = os.lstat(path.parent)
            wrong = endpoint.not_private(found) or "may be another's"
            way = (
                "close it with `chmod 700 {}`"
                if stat.S_ISDIR(found.st_mode) and not _foreign(found)
                else "move {} away"
            )
            return (
                f"{path.parent} {wrong}, so the socket in it is not trusted; {way.format(path.parent)}, then try again"
            )
        if not os.access(path, os.R_OK | os.W_OK):
            return _denied(path, os.lstat(path))
    except FileNotFoundError:
        return f"its socket {path} is gone; the host looks each second and listens there again, so try again"
    except OSError:
        return _denied(path.parent, os.lstat(path.parent))
    return None


def _hidden(root: Path) -> Absence | None:
    path = root / ownership.NAME
    try:
        found = os.stat(path)
    except PermissionError:
        return Absence("hidden", None, f"cannot look for a host in {root}: {_denied(root, _found(root))}")
    except OSError:
        return None
    if os.access(path, os.R_OK):
        return None
    pid = _locked_by(found.st_ino)
    if pid is None:
        return Absence("hidden", None, f"cannot see whether a host runs for {root}: {_denied(path, found)}")
    return Absence(
        "hidden", pid, f"{root} has a host, process {pid}, that this user cannot reach: {_denied(path, found)}"
    )


def _denied(path: Path, found: os.stat_result | None) -> str:
    if found is None:
        return f"permission denied for {path}; look at the directories above it"
    if not _foreign(found):
        return f"permission denied for {path}, which is this user's own; open it with `chmod u+rwX {path}`"
    return (
        f"{path} belongs to another user (uid {found.st_uid}); ask that user, or name a root of your own with `--root`"
    )


def _foreign(found: os.stat_result) -> bool:
    return found.st_uid != os.geteuid()


def _found(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _locked_by(inode: int) -> int | None:
    """The process that has locked a file, where the system lists it."""
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as locks:
            listed = [line.split() for line in locks]
    except OSError:
        return None
    holders = [
        words[4] for words in listed if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}")
    ]
    return int(holders[0]) if holders and holders[0].isdigit() else None
