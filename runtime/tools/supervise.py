"""A small program of its own: runs one command and ends every process that came of it. Standard library only.

Started by path with ``python -I -S``, in a session of its own: ``supervise.py CONTROL_FD REPORT_FD GRACE COMMAND…``.
The command's end, or the end of what CONTROL_FD can give (the starter closed it or died), ends everything: first
politely, after GRACE seconds by SIGKILL. REPORT_FD gets a JSON line each: the command's pid, which is its process
group too, before it runs; a text, where it cannot run; and ``{"status", "ended", "survivors":[pid]}``, ``status`` as
``os.waitstatus_to_exitcode`` gives it, or null where the starter asked for the end.

It is a process between the two because on Linux a process that leaves its group and session and loses its parent is
handed to the nearest subreaper: whatever ends up under this one came of this command and of no other.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
#: Seconds within which processes must be gone after SIGKILL; one that is not is reported.
KILL_SECONDS = 3.0


def adopt_orphans() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents() -> dict[int, tuple[int, str]]:
    """pid → (parent's pid, state letter) of every process that can be seen; empty where there is no /proc."""
    found: dict[int, tuple[int, str]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name stands in brackets and may hold anything, brackets included.
                    fields = file.read().rpartition(b")")[2].split()
                found[int(name)] = (int(fields[1]), fields[0].decode())
            except (OSError, ValueError, IndexError):
                continue
    return found


def descendants(root: int) -> list[int]:
    """Living processes below ``root``, itself and zombies left out."""
    table = parents()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        queue.extend(below)
        found.extend(pid for pid in below if table[pid][1] not in "ZX")
    return found


def reap(main: int) -> int | None:
    """Collects the dead; the status of ``main`` if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, raw = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == main:
                status = os.waitstatus_to_exitcode(raw)
    return status


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def end(main: int, grace: float) -> tuple[set[int], list[int]]:
    """Ends what is left: the pids that lived when asked to end, and those that live on."""
    me = os.getpid()
    seen: set[int] = set()
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        deadline = time.monotonic() + seconds
        asked: set[int] = set()
        while left := living(me, main):
            # SIGTERM once for each, so that a handler can finish; SIGKILL again and again against those that fork on.
            send([pid for pid in left if number == signal.SIGKILL or pid not in asked], number)
            asked.update(left)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.01)
        seen |= asked
    return seen, living(me, main)


def living(me: int, main: int) -> list[int]:
    """What still lives of the command; where there is no /proc, its process group stands for its members (negative)."""
    reap(main)
    return descendants(me) or ([-main] if group_lives(main) else [])


def main(argv: list[str]) -> None:
    control, report, grace, command = int(argv[0]), int(argv[1]), float(argv[2]), argv[3:]
    adopt_orphans()
    for fd in (control, report):
        os.set_inheritable(fd, False)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        become(command, report)
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)
    status = None
    while status is None:
        # The signal writes into the pipe, so an end that comes before this call is not missed.
        ready, _, _ = select.select([control, wake_read], [], [])
        if control in ready:
            break
        if wake_read in ready:
            os.read(wake_read, 4096)
        status = reap(child)
    seen, survivors = end(child, grace)
    if status is not None:
        seen.discard(child)
    answer = {"status": status, "ended": len(seen - set(survivors)), "survivors": survivors}
    os.write(report, json.dumps(answer).encode() + b"\n")


def become(command: list[str], report: int) -> None:
    """Turns this forked process into the command, in a session of its own. Never returns."""
    os.setsid()
    # Before the command runs: whoever starts this learns its group even if the command's first act is to kill this.
    os.write(report, b"%d\n" % os.getpid())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(report, json.dumps(f"{command[0]}: {error.strerror}").encode() + b"\n")
    finally:
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
