"""The host of a root, found or started. The kernel's lock elects: of many candidates one becomes the host.

Who owns the root is never displaced, however long it takes until it answers. Of many who find no host at once one
starts a candidate, and the others wait for that.
"""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Final

import attrs

from ...journal import files
from ..errors import RuntimeFailure
from ..ids import new_id
from . import absence, ownership
from .absence import LOG
from .endpoint import Registration
from .link import Caller, HostUnreachable, Link, pauses, reach

#: Bytes of a log from which on the next host begins another; the one before is kept as ``host.log.1``.
_LONG: Final = 4 * 1024 * 1024
#: Exit codes of a candidate that say nothing against the next: it ended in order, or another was elected.
_NO_FAILURE: Final = (0, 3)
#: Seconds in which a host that is alive answers a handshake.
_HANDSHAKE: Final = 2.0
_TAIL: Final = 16 * 1024


class HostStartFailed(RuntimeFailure):
    """No host could be started, or none answered in time. Its log is ``<root>/host.log``; ``log`` is the end of what it
    wrote there, if it has ended.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


async def find_host(root: str | os.PathLike[str]) -> Registration | None:
    """The host of the root that answers now; None if none does. Raises HostError for one that refuses every client."""
    link = await _answering(Path(root))
    if link is None:
        return None
    await link.aclose()
    return attrs.evolve(link.registered, state=link.state)


async def ensure_host(
    root: str | os.PathLike[str], *, app: str | None = None, idle: float | None = None, timeout: float = 30
) -> Registration:
    """The host of the root; a detached process is started as one where there is none.

    It may not be ``ready`` yet. ``app`` and ``idle`` are the options of `maka host start`, for one that is started
    here. Raises HostStartFailed, HostError for a host that speaks another protocol, JournalWriteError where the root
    cannot be made or the log not be written.
    """
    place = Path(root)
    candidates: list[_Candidate] = []
    try:
        async with asyncio.timeout(timeout):
            return await _elected(place, app, idle, candidates)
    except TimeoutError:
        pass
    found = absence.look(place)
    why = found.message
    if found.state == "none":
        pids = [f"process {each.pid} was started, and" for each in candidates if each.code is None]
        who = pids[-1] if pids else "somebody else starts one, or one ended at once, and nobody"
        why = f"{who} has not taken {place / ownership.NAME}; read {place / LOG}, then try again"
    raise HostStartFailed(f"no host of {place} has answered for {timeout:g} s: {why}")


def command(root: Path, app: str | None, idle: float | None) -> list[str]:
    """The command line of a candidate."""
    words = [sys.executable, "-m", "maka.cli", "host", "start", "--foreground", "--root", str(root)]
    words += [] if app is None else ["--app", app]
    return words + ([] if idle is None else ["--idle", f"{idle:g}"])


async def _elected(root: Path, app: str | None, idle: float | None, started: "list[_Candidate]") -> Registration:
    """``started``: the candidates of this one, told to whoever gives up."""
    candidate: _Candidate | None = None
    try:
        for pause in pauses():
            link = await _answering(root)
            if link is not None:
                try:
                    if link.state != "draining":
                        return attrs.evolve(link.registered, state=link.state)
                    await link.lost.wait()
                finally:
                    await link.aclose()
            elif candidate is not None and candidate.code is not None:
                # Looked at only now: where there is a host, or somebody is becoming one, all is well.
                if candidate.code not in _NO_FAILURE and ownership.owner(root) is None:
                    raise candidate.failure()
                candidate.give_way()
                candidate = None
            elif candidate is None and ownership.owner(root) is None:
                turn = _turn(root / LOG)
                if turn is not None:
                    candidate = _Candidate(root, command(root, app, idle), turn)
                    started.append(candidate)
            await (asyncio.sleep(pause) if candidate is None else candidate.ends(pause))
    finally:
        if candidate is not None:
            candidate.give_way()
    raise AssertionError  # the pauses have no end


async def _answering(root: Path) -> Link | None:
    who = {"id": new_id(), "surface": "election"}
    try:
        return await reach(Caller(root=root, hello=who, patience=_HANDSHAKE, told=lambda: None), _HANDSHAKE)
    except HostUnreachable:
        return None


def _turn(log: Path) -> IO[bytes] | None:
    """The right to start a candidate: the log, locked. None where somebody else has one on its way.

    The lock dies with its holder. Where there are no such locks everybody has the right; the root's own lock elects.
    """
    import fcntl

    turn = _opened(log)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        turn.close()
        return None
    except OSError:
        pass
    return turn


class _Candidate:
    """A process that may become the host, and outlives this one. ``turn`` is held until ``give_way``."""

    def __init__(self, root: Path, words: list[str], turn: IO[bytes]) -> None:
        self._log = root / LOG
        self._turn = turn
        with _opened(self._log) as log:
            self._begins = log.tell()
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # A child that ends is to be waited for by its parent, whatever the parent does by then.
        threading.Thread(target=self._wait, name="maka-host-candidate", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    async def ends(self, seconds: float) -> None:
        """Waits for its end, but no longer than that."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            pass

    def give_way(self) -> None:
        """Others may start one."""
        self._turn.close()

    def failure(self) -> HostStartFailed:
        """What it said last, in one sentence, and the end of all that it said."""
        how = f"exit code {self.code}" if (self.code or 0) >= 0 else f"signal {-(self.code or 0)}"
        try:
            with open(self._log, "rb") as log:
                log.seek(max(self._begins, log.seek(0, os.SEEK_END) - _TAIL))
                lines = log.read(_TAIL).decode("utf-8", "replace").split("\n")
        except OSError:
            lines = []
        spoken = [line.strip() for line in reversed(lines) if line.strip()]
        # What an app prints may be written when the process ends, behind what it says of its end.
        said = next((line for line in spoken if line.startswith("maka: ")), spoken[0] if spoken else "")
        if not said:
            return HostStartFailed(f"the host did not start ({how}) and said nothing; read {self._log}, then try again")
        return HostStartFailed(f"the host did not start ({how}): {said.removeprefix('maka: ')}", "\n".join(lines))

    def _wait(self) -> None:
        self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            pass  # whoever started it has gone on


def _opened(path: Path) -> IO[bytes]:
    """The log, 0600, to be written at its end."""
    try:
        files.make_dirs(path.parent)
        if path.is_file() and path.stat().st_size > _LONG:
            path.replace(path.with_name(f"{path.name}.1"))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.fdopen(os.open(path, flags, files.FILE_MODE), "ab")
        os.fchmod(log.fileno(), files.FILE_MODE)
    except OSError as error:
        raise files.write_error(error, path, "open") from None
    log.seek(0, os.SEEK_END)
    return log
