"""Programs that want the host of a root, each a process of its own; whom they start they tell."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from maka.runtime.host import connect, ensure_host

#: The app of the hosts that are started.
APP = "support.host_app:app"


def elect(root: str) -> None:
    """Waits for a line, then makes sure of a host and asks it who it is.

    Prints ``{epoch, pid, asked: {epoch, pid}, lost: [exit code]}``: the last are candidates that it started and that
    did not become the host.
    """
    started: list[subprocess.Popen[bytes]] = []
    begin = subprocess.Popen

    def popen(words: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        started.append(begin(words, **options))
        return started[-1]

    setattr(subprocess, "Popen", popen)  # noqa: B010

    async def main() -> dict[str, Any]:
        found = await ensure_host(root, app=APP, timeout=60)
        async with connect(root, timeout=60) as client:
            status = await client.status()
            asked = {"epoch": client.host_epoch, "pid": status["pid"]}
        return {"epoch": found.host_epoch, "pid": found.pid, "asked": asked}

    sys.stdin.readline()
    told = asyncio.run(main())
    lost = [process.wait(60) for process in started if process.pid != told["pid"]]
    print(json.dumps({**told, "lost": lost}), flush=True)
