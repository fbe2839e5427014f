"""Processes for tests that kill many: forked from one that has imported all they need, each with pipes of its own.

The one they come from has a single thread and no event loop, so that what it forks is as good as new.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
#: What is imported where it is needed, and would be by each life again.
_LATE = ("filelock", "jsonschema", "maka.journal.blobs", "maka.journal.summary")
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); from support.nursery import serve; serve(*sys.argv[2:])"


class Nursery:
    """Runs functions of ``modules``, each in a process of its own."""

    def __init__(self, *modules: str) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(TESTS), str(theirs.fileno()), *modules],
                pass_fds=(theirs.fileno(),),
            )
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()
        self._process.wait()

    def life(self, function: str, *arguments: Any) -> "Life":
        """A process that runs ``function`` (``module:name``) with the arguments, which travel as JSON."""
        its_in, our_out = os.pipe()
        our_in, its_out = os.pipe()
        try:
            pid = self._ask([function, *arguments], its_in, its_out)
        finally:
            os.close(its_in)
            os.close(its_out)
        return Life(self, pid, our_in, our_out)

    def wait(self, pid: int) -> int:
        """How the process has ended: its exit code, or minus the signal. Nothing of it is left then, no lock either."""
        return self._ask(pid)

    def _ask(self, what: object, *fds: int) -> int:
        said = json.dumps(what).encode() + b"\n"
        if fds:
            socket.send_fds(self._socket, [said], fds)
        else:
            self._socket.sendall(said)
        answer = self._answers.readline()
        assert answer, "the nursery has ended"
        return int(answer)


class Life:
    """One process. Leaving ``with`` kills it, unless it has ended."""

    def __init__(self, nursery: Nursery, pid: int, reads: int, writes: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self._nursery = nursery
        self._out = os.fdopen(reads, encoding="utf-8")
        self._in = os.fdopen(writes, "w", encoding="utf-8")

    def line(self) -> str:
        """The next line that it prints; empty once it has ended."""
        return self._out.readline().rstrip("\n")

    def until(self, wanted: str) -> list[str]:
        """Reads up to the line ``wanted``; what came before it. AssertionError where it ends without it."""
        before: list[str] = []
        while (line := self.line()) != wanted:
            assert line, f"it ended without {wanted!r}; it said {before}"
            before.append(line)
        return before

    def rest(self) -> list[str]:
        """All that it still prints, up to its end."""
        lines = self._out.read().splitlines()
        self.end()
        return lines

    def tell(self, text: str = "go") -> None:
        self._in.write(text + "\n")
        self._in.flush()

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.end()

    def end(self) -> int:
        """Waits for its end."""
        if self.code is None:
            self.code = self._nursery.wait(self.pid)
        return self.code

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._out.close()
        with suppress(OSError):
            self._in.close()


# ---------------------------------------------------------------- in the process that they come from


def serve(fd: str, *modules: str) -> None:
    """Forks a process for each list that it is sent, and says how a process has ended for each number."""
    for module in (*modules, *_LATE):
        importlib.import_module(module)
    living: set[int] = set()
    with socket.socket(fileno=int(fd)) as asked:
        while True:
            said, fds, _, _ = socket.recv_fds(asked, 1 << 16, 2)
            while said and not said.endswith(b"\n"):
                said += asked.recv(1 << 16)
            if not said:
                break
            what = json.loads(said)
            if isinstance(what, list):
                pid = os.fork()
                if not pid:
                    asked.close()
                    _live(what[0], what[1:], *fds)
                living.add(pid)
                for each in fds:
                    os.close(each)
                answer = pid
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(what, 0)[1])
                living.discard(what)
            asked.sendall(b"%d\n" % answer)
    # Whoever asked is gone.
    for pid in living:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _live(function: str, arguments: list[Any], reads: int, writes: int) -> None:
    code = 1
    try:
        for fd, place in ((reads, 0), (writes, 1)):
            os.dup2(fd, place)
            os.close(fd)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        module, name = function.split(":")
        getattr(sys.modules[module], name)(*arguments)
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
