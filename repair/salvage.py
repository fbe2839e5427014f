"""Damage → ``journal/gap``: the spans to copy aside, what is accepted, and the rebuilt header. No I/O of its own."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..journal.events import Draft, JsonObject
from .tail import SetAside, measure

if TYPE_CHECKING:
    from ..journal.scan import ScanResult
    from ..journal.source import Source

#: A line holds at most 16 MiB, so the lists of a journal with very much damage go on in a further gap.
LISTED_IN_ONE_GAP: Final = 50_000

#: Keys of the header that a run header knows too, in the order of the header's keys.
_FROM_RUN: Final = ("cwd", "backend", "model", "permission_mode")


@attrs.frozen
class Salvage:
    """``copies``: spans whose bytes go to ``damage/``. ``drafts``: one ``journal/gap``; more where lists are long."""

    copies: list[SetAside]
    drafts: list[Draft]


def plan_salvage(
    source: "Source", scan: "ScanResult", damage: Iterable[tuple[str, int]], header: JsonObject | None
) -> Salvage:
    """``damage``: code and offset of every finding to accept. ``header``: the rebuilt one where line 0 was lost."""
    copies = [measure(source, span.offset, span.length) for span in sorted(scan.spans, key=lambda span: span.offset)]
    lists: dict[str, list[Any]] = {
        "spans": [
            {"offset": copy.offset, "length": copy.length, "sha256": copy.sha256, "file": copy.file} for copy in copies
        ],
        "missing": [[first, last] for first, last in scan.missing],
        "unverified": sorted(set(scan.unverified)),
        "accepted": [
            {"code": code, "offset": offset}
            for offset, code in sorted({(offset, code) for code, offset in damage} - _listed(scan))
        ],
    }
    longest = max(map(len, lists.values()))
    drafts = []
    for at in range(0, longest or 1, LISTED_IN_ONE_GAP):
        data: JsonObject = {key: values[at : at + LISTED_IN_ONE_GAP] for key, values in lists.items()}
        if header is not None and at == 0:
            data["header"] = header
        drafts.append(Draft("journal/gap", data))
    return Salvage(copies, drafts)


def _listed(scan: "ScanResult") -> set[tuple[int, str]]:
    return {(offset, code) for code, offset in scan.accepted}


def rebuild_header(name: str, run: Mapping[str, Any] | None) -> JsonObject:
    """The ``session/header`` data that stands in for a lost line 0.

    ``name``: the directory's (else the file's); ``run``: the first run header in the file. Without ``tool_boundary``:
    nobody can tell any more whether a call that was only requested may have run.
    """
    from .. import __version__

    run = run or {}
    header: JsonObject = {"format": 1, "session_id": name, "created_by": {"name": "maka", "version": __version__}}
    for key in (*_FROM_RUN, "connection"):
        value = run.get(key)
        header[key] = value if isinstance(value, str) else ""
    return header
