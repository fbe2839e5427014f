"""`maka demo`: an agent is killed inside a tool call; then inspect, repair, inspect, and what a model would be told.

Everything happens in a temporary folder, with the parts that a real session uses: a child process, the loop, a real
tool, SIGKILL, and the documents that the commands print.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from . import documents, exits, onward, render
from .console import Console
from .conversation import messages

#: The session that the child writes.
_SESSION = "demo"
#: Seconds that the child may take to get into its tool call, and its tool to end.
_PATIENCE = 60.0
_PAUSE = 0.02


class DemoFailed(Exception):
    """The demonstration did not come to its end. The message says at which point."""


def play(console: Console) -> int:
    """Run the demonstration; 0 if everything went as it says."""
    with tempfile.TemporaryDirectory(prefix="maka-demo-") as folder:
        try:
            _play(console, Path(folder).resolve())
        except DemoFailed as error:
            console.say(f"maka: the demonstration failed: {error}", "red")
            return exits.PENDING
    return exits.DONE


def _play(console: Console, folder: Path) -> None:
    root, workplace = folder / "root", folder / "workplace"
    for place in (root, workplace):
        place.mkdir(mode=0o700)

    _tell(
        console,
        "An agent is asked to order 40 chairs. It calls a tool that sends the order, and in the middle of",
        "that call its process is killed with SIGKILL. Its journal was synced before the tool ran.",
    )
    _kill_inside_the_tool(root, workplace)
    orders = (workplace / "orders.txt").read_text().splitlines()
    _tell(console, "", f"Killed. Outside, the order was sent: orders.txt holds {orders[0]!r}.")

    _command(console, "maka journal inspect demo")
    before = documents.inspection(_SESSION, str(root), False)
    console.write(render.inspection(_typed(before.doc, root), console.paint, words=_SESSION))
    _expect(before.doc["verdict"] == "interrupted", f"the journal is {before.doc['verdict']}, not interrupted")

    _command(console, "maka journal repair demo")
    repaired = documents.repair(_SESSION, str(root), dry_run=False, salvage=False)
    then = {"next": documents.next_steps(_SESSION, str(root))}
    console.write(render.repair({**repaired.doc, **_typed(then, root)}, console.paint))
    _expect(repaired.code == exits.DONE, repaired.refusal or "the repair did not end healthy")

    _command(console, "maka journal inspect demo")
    after = documents.inspection(_SESSION, str(root), False)
    console.write(render.inspection(_typed(after.doc, root), console.paint, words=_SESSION))
    _expect(after.doc["verdict"] == "healthy", f"the journal is {after.doc['verdict']}, not healthy")

    _command(console, "maka journal show demo --json    # here for people: the history that a model is given")
    history = documents.conversation(_SESSION, str(root), for_people=False)
    console.write(messages(history.doc["messages"], console.paint))
    _tell(
        console,
        "",
        "The model is not told that the order failed, and not that it went through: the journal cannot know.",
        "It is told to look before it tries again. The order was sent once.",
        "",
        "The session goes on where somebody has looked, and says so: with `maka session settle demo --call … --ok`,",
        "then `maka session resume demo --app MODULE:OBJECT`, which sends no message again and makes no call twice.",
    )
    _expect((workplace / "orders.txt").read_text().splitlines() == orders, "the order was sent again")


def _typed(doc: documents.Doc, root: Path) -> documents.Doc:
    """With its commands as somebody types them whose root this is."""
    words = onward.words_of(_SESSION, str(root))
    steps = [{**step, "command": (step["command"] or "").replace(words, _SESSION) or None} for step in doc["next"]]
    return {**doc, "next": steps}


def _kill_inside_the_tool(root: Path, workplace: Path) -> None:
    """Start the child, wait until its tool has had its effect, and end it in the hardest way there is."""
    marker = workplace / "sent"
    command = [sys.executable, "-m", "maka.cli.demo_child", str(root), str(workplace)]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        try:
            _wait(lambda: marker.exists() or child.poll() is not None, "the tool did not run in time")
            if child.poll() is not None:
                said.seek(0)
                lines = said.read().decode(errors="replace").split("\n")
                raise DemoFailed(f"the child ended by itself ({child.returncode}): {' '.join(lines[-2:]).strip()}")
        finally:
            child.kill()
            child.wait()
            if marker.exists():
                _end(int(marker.read_text()))
    _expect(child.returncode == -signal.SIGKILL, f"the child ended with {child.returncode}, not by SIGKILL")


def _end(tool: int) -> None:
    """The tool's own process, orphaned by now: it must not outlive the demonstration."""
    with suppress(ProcessLookupError):
        os.kill(tool, signal.SIGKILL)


def _wait(done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        _expect(time.monotonic() < deadline, otherwise)
        time.sleep(_PAUSE)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoFailed(otherwise)


def _tell(console: Console, *lines: str) -> None:
    console.write([console.paint(line, "cyan") for line in lines])


def _command(console: Console, command: str) -> None:
    console.write(["", console.paint(f"$ {command}", "bold")])
