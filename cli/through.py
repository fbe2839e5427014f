"""Sessions through the host of their root: listed, put away, gone on with. Gives documents."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.host import HostError, HostUnreachable, connect
from ..runtime.host.ownership import owner, process
from . import documents, exits, hosting
from .documents import Answer, Doc

if TYPE_CHECKING:
    from ..journal.events import Recovery
    from ..runtime.host import Client

#: Seconds in which a host that is alive shows it, and before whoever only reads does without.
_PATIENCE = 5.0
_GLANCE = 2.0


async def listed(root: str | None) -> tuple[Doc, Path, str | None]:
    """Of `session list`, and the root: each row as of `journal list`, with ``running`` and ``waiting``, the turns that
    run and those that wait for a person.

    The host says what runs. Where it does not the journals are read without it, and a sentence says why: where they do
    not tell either, both are None.
    """
    where = hosting.place(root)
    untold, rows = None, None
    try:
        async with (
            asyncio.timeout(_GLANCE),
            connect(where, surface="cli", timeout=_GLANCE, wait_ready=False, reconnect=False) as client,
        ):
            rows = await client.list_sessions()
    except (HostUnreachable, HostError, TimeoutError) as error:
        untold = _untold(where, error)
    none_runs = rows is None and untold is None
    return {"sessions": documents.under_way_in(where, rows, none_runs=none_runs)}, where, untold


def _untold(where: Path, error: Exception) -> str | None:
    """Why it is not known what runs; None where no host is."""
    held = owner(where)
    if held is None:
        return None
    why = f"tells nothing now ({error})" if isinstance(error, HostError) else "does not answer"
    return f"the host of {where} ({process(held)}) {why}, so what runs is shown as far as the journals tell"


async def archived(root: Path | None, session_id: str, *, archived: bool) -> int | None:
    """Puts a session away through the host, or takes it back; the event's number. None where no host runs."""
    if root is None or owner(root) is None:
        return None
    async with connect(root, surface="cli", timeout=_PATIENCE) as client:
        done = await (client.archive_session(session_id) if archived else client.unarchive_session(session_id))
        return int(done["revision"])


async def planned(
    client: "Client",
    path: Path,
    session_id: str,
    run_id: str | None,
    *,
    rerun: "list[Recovery]",
    mode: str | None,
    dry: bool,
) -> tuple[Doc, Answer]:
    """What the host would go on with, and the answer of `session resume` for it. ``mode`` is given first."""
    if mode is not None and not dry:
        await client.update_session(session_id, {"permission_mode": mode})
    said: dict[str, Any] = await client.query_resume(session_id, run_id, rerun)
    doc: Doc = {
        "session_id": session_id,
        "path": str(path),
        "recovered": None,
        "disposition": said["disposition"],
        "rejection_reasons": said["rejection_reasons"],
        "diagnostics": [{"code": row["code"], "message": row["text"]} for row in said["diagnostics"]],
        "source_run_id": said.get("source_run_id"),
        "continuation": None,
        "turn": None,
    }
    return said, Answer(doc, exits.OF_PLAN[doc["disposition"]])
