"""What a session does with what clients ask of it: started, queued, taken back, answered again. No I/O.

Each decision is made on the fold, what is enqueued included, with nothing between it and its append: so of two that
race one comes first, and the other sees it.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, Literal

import attrs
import orjson

from ...journal.digests import digest_of
from ...journal.events import Draft, JsonObject
from ...journal.shapes import check_blocks
from ...journal.state import State
from ...journal.views.admissions import Admission
from ...journal.views.problem import mapping, sequence, text_of
from ...journal.views.queue import Queued
from ...journal.views.receipts import Receipt
from ..backends.base import StopMode
from ..continuation.drafts import settle, unfinished
from ..handoff.abandonment import busy
from ..tools.base import text_block
from .operations import Content, QueueRetract, TurnMessageSubmit, TurnStart
from .protocol import MAX_CONTENT, MAX_QUEUED, MAX_QUEUED_BYTES, HostError

#: What a message consists of, in the order of the format.
_PARTS: Final = ("content", "quotes", "attachments")
#: Content that is an answer of a model, or to one.
_ONLY_MODELS: Final = frozenset({"thinking", "tool_call", "tool_result"})
#: What of a message that waits everybody who watches is shown.
_SHOWN: Final = (*_PARTS, "message_id", "turn_id")


@attrs.frozen(kw_only=True)
class RootTurn:
    """A turn that was admitted and is to be run. ``input``: ``{content, quotes?, attachments?}``."""

    turn_id: str
    run_id: str
    message_id: str
    input: JsonObject
    max_steps: int | None = None


@attrs.frozen(kw_only=True)
class Decision:
    """``drafts``: one batch to append, nothing where it was done before. ``turn``: what is to be run once that is
    durable. ``receipt``: what was made of it before. ``reply``: what the answer says beside its revision.
    """

    drafts: list[Draft] = attrs.Factory(list)
    turn: RootTurn | None = None
    receipt: Receipt | None = None
    reply: JsonObject = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class Live:
    """What this process knows of a session beyond its journal. ``turn_id``: the root turn that it runs or is about to;
    ``stopping``: that is being stopped. ``refusal``: why no turn may begin here now.
    """

    turn_id: str | None = None
    stopping: bool = False
    refusal: HostError | None = None


@attrs.frozen
class StopAsked:
    """A stop as a client wants it. ``retract``: what waits is taken back with it. ``client``: who asks."""

    stop_id: str
    source: str
    mode: StopMode = "immediate"
    retract: bool = False
    client: str | None = None


def message_of(content: Content, quotes: list[JsonObject] | None, attachments: list[JsonObject] | None) -> JsonObject:
    """A message as the journal holds it: ``{content, quotes?, attachments?}``. Raises HostError, InvalidEvent."""
    blocks = [text_block(content)] if isinstance(content, str) else content
    if not blocks or all(block.get("kind") == "text" and not block.get("text") for block in blocks):
        raise HostError("invalid_request", "a message holds something; `content` is empty")
    message: JsonObject = {"content": blocks}
    message |= {key: value for key, value in (("quotes", quotes), ("attachments", attachments)) if value}
    check_blocks("user/message", blocks, "content")
    if said := next((block["kind"] for block in blocks if block["kind"] in _ONLY_MODELS), None):
        raise HostError("invalid_request", f"a person's message has no {said} in it; send text, images and files")
    # What a kind means that is not known here a later version may know; one without a name nobody will.
    if any(not block["kind"] for block in blocks):
        raise HostError("invalid_request", "a block of the message has an empty `kind`; name one, `text` perhaps")
    try:
        size = _size(message)
    except TypeError as error:
        raise HostError("invalid_request", f"the message cannot be written as JSON: {error}") from None
    if size > MAX_CONTENT:
        raise HostError(
            "invalid_request",
            f"the message has {size} bytes of JSON, and at most {MAX_CONTENT} are taken; put long contents into a file "
            "that the agent can read",
        )
    return message


# ---------------------------------------------------------------- commands


def start(
    state: State, live: Live, asked: TurnStart, new_id: Callable[[], str], *, client: str | None = None
) -> Decision:
    """A root turn by the caller's id. Raises HostError, SessionBusy."""
    message = message_of(asked.content, asked.quotes, asked.attachments)
    options = {} if asked.max_steps is None else {"max_steps": asked.max_steps}
    if (receipt := state.receipts.get("turn", asked.turn_id)) is not None:
        same = receipt.digest == digest_of(message) and mapping(receipt.data.get("options")) == options
        if not same or asked.message_id not in (None, receipt.data.get("message_id")):
            raise conflict(f"turn {asked.turn_id}")
        return Decision(receipt=receipt)
    if state.turns.known(asked.turn_id):
        raise conflict(f"turn {asked.turn_id}")
    if asked.message_id is not None and asked.message_id in state.queue.ids:
        raise conflict(f"message {asked.message_id}")
    _refuse_archived(state)
    _refuse_occupied(state, live)
    turn = RootTurn(
        turn_id=asked.turn_id,
        run_id=new_id(),
        message_id=asked.message_id or new_id(),
        input=message,
        max_steps=asked.max_steps,
    )
    return Decision(drafts=[*_settled(state), _admitted(state, turn, client)], turn=turn)


def submit(
    state: State, live: Live, asked: TurnMessageSubmit, new_id: Callable[[], str], *, client: str | None
) -> Decision:
    """A message by the caller's id: a turn where the session is at rest, else it waits. Raises HostError."""
    message = message_of(asked.content, asked.quotes, asked.attachments)
    if (receipt := state.receipts.get("message", asked.message_id)) is not None:
        data = receipt.data
        if receipt.digest != digest_of(message) or data.get("placement", asked.placement) != asked.placement:
            raise conflict(f"message {asked.message_id}")
        kept = {key: data[key] for key in ("disposition", "turn_id", "run_id") if data.get(key) is not None}
        return Decision(receipt=receipt, reply=kept)
    if asked.message_id in state.queue.ids:
        raise conflict(f"message {asked.message_id}")
    _refuse_archived(state)
    rests = occupation(state, live) is None
    if rests and live.refusal is None and not state.queue.waiting:
        turn = RootTurn(turn_id=new_id(), run_id=new_id(), message_id=asked.message_id, input=message)
        reply: JsonObject = {"disposition": "turn_started", "turn_id": turn.turn_id, "run_id": turn.run_id}
        return Decision(drafts=[*_settled(state), _admitted(state, turn, client)], turn=turn, reply=reply)
    _refuse_full(state, message)
    into = _steered(state, live) if asked.placement == "current_turn" else None
    disposition: Literal["steering", "followup"] = "followup" if into is None else "steering"
    data = {"message_id": asked.message_id, "placement": asked.placement, "disposition": disposition}
    if into is not None:
        data["turn_id"] = into
    data |= {**message, "digest": digest_of(message)}
    if client is not None:
        data["client"] = client
    reply = {"disposition": disposition, **({} if into is None else {"turn_id": into})}
    # What a continuation rests at keeps the queue waiting until somebody wants to go on: that is now.
    before = _settled(state) if rests else []
    return Decision(drafts=[*before, Draft("message/accepted", data)], reply=reply)


def retract(state: State, asked: QueueRetract, leased: Collection[str]) -> Decision:
    """Messages that wait are taken back; by themselves all. What a run has taken already is not. Raises HostError."""
    if (receipt := state.receipts.get("retract", asked.retract_id)) is not None:
        taken = sequence(receipt.data.get("message_ids"))
        # What was asked for and not taken back is not on record.
        if asked.message_ids is not None and not set(taken) <= set(asked.message_ids):
            raise conflict(f"retraction {asked.retract_id}")
        return Decision(receipt=receipt, reply={"retracted": taken})
    wanted = state.queue.waiting if asked.message_ids is None else asked.message_ids
    there = [each for each in dict.fromkeys(wanted) if each in state.queue.waiting and each not in leased]
    return Decision(drafts=[taken_back(asked.retract_id, there)], reply={"retracted": there})


def stop_known(state: State, turn_id: str, request: StopAsked) -> bool:
    """Is this stop on record already? Raises HostError where its id stands for another one."""
    receipt = state.receipts.get("stop", request.stop_id)
    if receipt is None:
        return False
    data = receipt.data
    more = bool(data.get("retract")) and not request.retract
    if (data.get("turn_id"), data.get("mode")) != (turn_id, request.mode) or more:
        raise conflict(f"stop {request.stop_id}")
    return True


def taken_back(retract_id: str, message_ids: list[str]) -> Draft:
    return Draft("message/retracted", {"retract_id": retract_id, "message_ids": message_ids})


def successor(state: State, live: Live, new_id: Callable[[], str]) -> Decision:
    """What the session does next by itself: an admitted turn that nobody runs, else the first message that waits.

    Nothing where it is not at rest, or a continuation rests in it: then somebody has to want to go on.
    """
    waiting = state.admissions.waiting()
    if live.turn_id is not None or live.refusal is not None or _elsewhere(state) is not None:
        return Decision()
    if waiting:
        return Decision(turn=of_admission(waiting[0]))
    queued = state.queue.followups(state.turns.open)
    if not queued or unfinished(state) is not None or state.session.value("archived"):
        return Decision()
    turn = _of_queued(queued[0], new_id)
    return Decision(drafts=[_admitted(state, turn)], turn=turn)


def of_admission(admission: Admission) -> RootTurn:
    """The turn of an admission that is on the disk."""
    options = mapping(admission.data.get("options"))
    steps = options.get("max_steps")
    return RootTurn(
        turn_id=admission.turn_id,
        run_id=admission.run_id,
        message_id=admission.message_id or admission.turn_id,
        input=mapping(admission.data["input"]),
        max_steps=steps if steps.__class__ is int else None,
    )


# ---------------------------------------------------------------- what stands in the way


def occupation(state: State, live: Live) -> HostError | None:
    """Why the session cannot take a turn now; None: it rests. A continuation at rest is no obstacle: it is settled."""
    if live.turn_id is not None:
        return _busy(state, f"runs turn {live.turn_id}")
    waiting = state.admissions.waiting()
    if waiting:
        return _busy(state, f"is to run turn {waiting[0].turn_id} first")
    return _elsewhere(state)


def _elsewhere(state: State) -> HostError | None:
    for handoff in state.continuations.pending():
        return HostError("session_busy", str(busy(_name(state), handoff)))
    open_turn = next((turn for turn in state.turns.open.values() if turn.rest != "indeterminate"), None)
    return None if open_turn is None else _busy(state, f"has turn {open_turn.turn_id} open")


def _busy(state: State, what: str) -> HostError:
    return HostError(
        "session_busy", f"session {_name(state)} {what}; wait for its end, stop it, or queue the message instead"
    )


def _refuse_occupied(state: State, live: Live) -> None:
    refusal = live.refusal or occupation(state, live)
    if refusal is not None:
        raise refusal


def _refuse_archived(state: State) -> None:
    if state.session.value("archived"):
        raise HostError(
            "session_archived",
            f"session {_name(state)} is archived and takes no turns; take it back first, with "
            f"`maka session archive {_name(state)} --undo`",
        )


def _refuse_full(state: State, message: JsonObject) -> None:
    waiting = state.queue.waiting.values()
    # Its ids are shown too.
    size = _size(message) + sum(_size({key: item.data.get(key) for key in _SHOWN}) for item in waiting)
    if len(waiting) >= MAX_QUEUED or size > MAX_QUEUED_BYTES:
        raise HostError(
            "queue_full",
            f"{len(waiting)} messages wait in session {_name(state)} already; let some be taken, or take some back",
        )


def conflict(what: str) -> HostError:
    return HostError(
        "operation_conflict", f"{what} stands for something else already; ask for this under an id of its own"
    )


# ---------------------------------------------------------------- parts


def _settled(state: State) -> list[Draft]:
    """The end of a continuation of which nobody knows whether it was carried out."""
    claim_id = unfinished(state)
    return [] if claim_id is None else settle(state, claim_id)


def _steered(state: State, live: Live) -> str | None:
    """The turn that a message may go into: the one that runs, or waits for the run that finishes it."""
    if live.turn_id is not None:
        return None if live.stopping else live.turn_id
    return next((turn.turn_id for turn in state.turns.open.values() if turn.rest == "paused"), None)


def _of_queued(queued: Queued, new_id: Callable[[], str]) -> RootTurn:
    message = {key: queued.data[key] for key in _PARTS if queued.data.get(key) is not None}
    return RootTurn(turn_id=new_id(), run_id=new_id(), message_id=queued.message_id, input=message)


def _admitted(state: State, turn: RootTurn, client: str | None = None) -> Draft:
    data: JsonObject = {
        "turn_id": turn.turn_id,
        "run_id": turn.run_id,
        "message_id": turn.message_id,
        "previous_root_turn_id": state.admissions.tip,
        "execution": {"kind": "root"},
        "input": turn.input,
        "input_digest": digest_of(turn.input),
    }
    if turn.max_steps is not None:
        data["options"] = {"max_steps": turn.max_steps}
    if client is not None:
        data["client"] = client
    return Draft("turn/admitted", data)


def _size(value: Any) -> int:
    return len(orjson.dumps(value))


def _name(state: State) -> str:
    return text_of(mapping(state.session.header).get("session_id")) or ""
