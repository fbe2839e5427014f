"""Sessions through the host of their root: listed, put away, gone on with. Gives documents."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.host import HostUnreachable, connect
from ..runtime.host.ownership import owner
from . import documents, exits, hosting
from .documents import Answer, Doc

if TYPE_CHECKING:
    from ..journal.events import Recovery
    from ..runtime.host import Client

#: Seconds in which a host that is alive shows it, before one does without.
_PATIENCE = 5.0


async def listed(root: str | None) -> tuple[Doc, Path]:
    """Of `session list`, and the root: each row as of `journal list`, and with ``running``, the turns that run."""
    where = hosting.place(root)
    try:
        async with connect(where, surface="cli", timeout=_PATIENCE, reconnect=False) as client:
            return {"sessions": await client.list_sessions()}, where
    except HostUnreachable:
        if owner(where) is not None:
            raise
    doc, _ = documents.listing(root)
    return {"sessions": [{**row, "running": []} for row in doc["sessions"]]}, where


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
