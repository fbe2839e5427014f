"""What callers asked for by ids of their own, kept for good: whoever asks again is answered the same. No I/O."""

from typing import Final, Literal

import attrs

from ..digests import digest_of as digest_of  # whoever looks a receipt up compares digests
from ..events import Event, JsonObject
from .closed import Closed
from .problem import Handlers, Problem, mapping, sequence, text_of

Kind = Literal["turn", "message", "stop", "retract", "update"]


@attrs.frozen
class Receipt:
    """What the first event under an id did. ``seq`` is its number; ``digest`` that of what was asked for, by which the
    same is told from something else, empty where the id alone tells it. ``data``, by ``kind``:

    - ``turn``: ``{run_id, message_id?, options?, queued?}``, and ``queued`` is True for a turn whose message had waited
      in the queue; of one that a resume has claimed ``{run_id, source_run_id, claim_id}``;
    - ``message``: ``{disposition, placement, turn_id?}``; of one that began its turn at once
      ``{disposition: "turn_started", turn_id, run_id}``;
    - ``stop``: ``{turn_id, run_id?, mode, source, retract}``; ``retract``: ``{message_ids}``; ``update``: ``{}``.
    """

    kind: Kind
    id: str
    digest: str
    seq: int
    data: JsonObject


@attrs.define(slots=True)
class Receipts:
    """``rows``: ``[kind and id, digest, seq, data]`` in the order of their events, and ``[kind and id, turn_id]`` for a
    message that began its turn at once: all of it stands in the turn's. A fork inherits none.
    """

    rows: Closed = attrs.field(factory=Closed)

    def get(self, kind: Kind, id: str) -> Receipt | None:
        """What was asked for by this id in this journal."""
        row = self.rows.get(_key(kind, id))
        if row is None:
            return None
        if len(row) == 2:
            turn = self.get("turn", row[1])
            assert turn is not None, "it stands before the message's row"
            return Receipt(kind, id, turn.digest, turn.seq, _started(turn.id, turn.data["run_id"]))
        return Receipt(kind, id, *row[1:])

    def _add(self, kind: Kind, id: str, digest: str, seq: int, data: JsonObject) -> bool:
        """The first event under an id stands. Is this the first?"""
        key = _key(kind, id)
        if key in self.rows:
            return False
        self.rows.add([key, digest, seq, data])
        return True


def _key(kind: Kind, id: str) -> str:
    """No kind has a blank, so no two of these are one."""
    return f"{kind} {id}"


def _started(turn_id: str, run_id: str) -> JsonObject:
    return {"disposition": "turn_started", "turn_id": turn_id, "run_id": run_id}


def _header(receipts: Receipts, event: Event) -> Problem | None:
    receipts.rows = Closed()
    return None


def _admitted(receipts: Receipts, event: Event) -> Problem | None:
    data, seq = event.data, event.seq
    turn_id, run_id, digest = data["turn_id"], data["run_id"], data["input_digest"]
    message_id, options = text_of(data.get("message_id")), mapping(data.get("options"))
    known = None if message_id is None else receipts.get("message", message_id)
    turn: JsonObject = {"run_id": run_id}
    if message_id is not None:
        turn["message_id"] = message_id
    if options:
        turn["options"] = options
    if known is not None and known.data["disposition"] != "turn_started":
        turn["queued"] = True
    first = receipts._add("turn", turn_id, digest, seq, turn)
    if message_id is not None and known is None:
        if first:
            receipts.rows.add([_key("message", message_id), turn_id])
        else:
            receipts._add("message", message_id, digest, seq, _started(turn_id, run_id))
    return None


def _claim(receipts: Receipts, event: Event) -> Problem | None:
    data = event.data
    target, source = data["target_run"], data["source"]
    turn_id = text_of(target.get("turn_id"))
    if data["purpose"] == "resume" and turn_id is not None:
        runs = {"run_id": text_of(target.get("run_id")) or "", "source_run_id": text_of(source.get("run_id")) or ""}
        receipts._add("turn", turn_id, data["boundary_digest"], event.seq, {**runs, "claim_id": data["claim_id"]})
    return None


def _accepted(receipts: Receipts, event: Event) -> Problem | None:
    data = event.data
    said = {"disposition": data["disposition"], "placement": data["placement"]}
    if (turn_id := text_of(data.get("turn_id"))) is not None:
        said["turn_id"] = turn_id
    receipts._add("message", data["message_id"], data["digest"], event.seq, said)
    return None


def _stop(receipts: Receipts, event: Event) -> Problem | None:
    data = event.data
    run_id = text_of(data.get("run_id"))
    asked: JsonObject = {"turn_id": data["turn_id"], **({} if run_id is None else {"run_id": run_id})}
    asked |= {"mode": data["mode"], "source": data["source"], "retract": _texts(data.get("retract"))}
    receipts._add("stop", data["stop_id"], "", event.seq, asked)
    return None


def _retracted(receipts: Receipts, event: Event) -> Problem | None:
    receipts._add(
        "retract", event.data["retract_id"], "", event.seq, {"message_ids": _texts(event.data["message_ids"])}
    )
    return None


def _updated(receipts: Receipts, event: Event) -> Problem | None:
    request_id = text_of(event.data.get("request_id"))
    if request_id is not None:
        receipts._add("update", request_id, digest_of(event.data["patch"]), event.seq, {})
    return None


def _texts(value: object) -> list[str]:
    return [item for item in sequence(value) if item.__class__ is str]


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "turn/admitted": _admitted,
    "continuation/claim": _claim,
    "message/accepted": _accepted,
    "turn/stop_requested": _stop,
    "message/retracted": _retracted,
    "session/updated": _updated,
}
