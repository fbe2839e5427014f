"""Runs pytest again and again in one folder, each time in a fork of a process that has imported what pytest needs.

Reads a line of JSON for each run, ``{"arguments": […], "seconds": …}``, and writes one, ``{"code": …, "output": …}``;
the code is None where the run was ended because it took longer. Nothing of the package itself is imported here.
"""

import json
import os
import signal
import sys
import tempfile
import time
from typing import Any, Final

#: What nearly all tests import, and what starting Python for each of them would cost most.
WARM: Final = ("asyncio", "attrs", "cattrs", "filelock", "hypothesis.strategies", "orjson", "pytest", "typer")
#: Seconds between two looks at a run.
LOOK: Final = 0.005


def run(arguments: list[str], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _play(arguments, output.fileno())
        code = _waited(child, seconds)
        output.seek(0)
        return {"code": code, "output": output.read().decode(errors="replace")}


def _play(arguments: list[str], output: int) -> None:
    """In the fork, and to its end."""
    code = 70
    try:
        # Whatever it starts ends with it, if it takes too long.
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        import pytest

        code = int(pytest.main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _waited(child: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(LOOK)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    for name in WARM:
        __import__(name)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(asked["arguments"], asked["seconds"])), flush=True)


if __name__ == "__main__":
    main()
