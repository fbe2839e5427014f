"""The process that `maka demo` kills: one turn of an agent whose only tool call never comes to its end.

Usage: python -m maka.cli.demo_child ROOT WORKPLACE. The model is scripted, the tool is real: it adds a line to
`orders.txt` in the workplace, writes its process id to `sent` there, and waits.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from .. import __version__
from ..journal.events import SessionHeader
from ..journal.store import FileStore
from ..runtime.conversation import Conversation
from ..runtime.loop import Loop
from ..runtime.scripted import Ask, ScriptedModel
from ..runtime.tools.command import Command

SESSION = "demo"
REQUEST = "Please order 40 chairs for the new office."
#: The marker appears whole or not at all, so that nobody reads half a number.
COMMAND = "echo 'order 4711: 40 chairs' >> orders.txt && echo $$ > part && mv part sent && exec sleep 600"


_numbers = itertools.count(1)


def new_id() -> str:
    """Ids that are easy to read, for a session that nobody keeps."""
    return f"id-{next(_numbers)}"


async def turn(root: Path, workplace: Path) -> None:
    store = FileStore(root)
    header = SessionHeader(
        format=1,
        session_id=SESSION,
        created_by={"name": "maka", "version": __version__},
        cwd=str(workplace),
        backend="scripted",
        model="scripted",
        permission_mode="execute",
        tool_boundary="t1_after_preflight_v1",
        name="An order that was interrupted",
    )
    model = ScriptedModel([["I send the order to the supplier.", Ask("command", {"command": COMMAND})]])
    with store.create(header) as journal:
        loop = Loop(
            journal=journal,
            conversation=Conversation(store.read(SESSION)),
            model=model,
            session_dir=store.directory(SESSION),
            tools=[Command(limit=600.0)],
            new_id=new_id,
        )
        await loop.run_turn(REQUEST, turn_id="turn-1", run_id="run-1")


if __name__ == "__main__":
    asyncio.run(turn(Path(sys.argv[1]), Path(sys.argv[2])))
