"""What callers asked for by ids of their own is found again for good."""

import hashlib
import json
from typing import Any

import orjson
import pytest

from maka.journal import summary
from maka.journal.digests import digest_of
from maka.journal.events import Event
from maka.journal.state import State
from maka.journal.views.receipts import Kind, Receipt
from support.builder import Builder
from support.folds import events, fold

TEXT = [{"kind": "text", "text": "do it"}]
A, B = "a" * 64, "b" * 64


def admit(builder: Builder, turn_id: str, run_id: str, message_id: Any = None, digest: str = A, **more: Any) -> int:
    data = {"turn_id": turn_id, "run_id": run_id, "message_id": message_id, "previous_root_turn_id": None, **more}
    if message_id is None:
        del data["message_id"]
    rest = {"execution": {"kind": "root"}, "input": {"content": TEXT}, "input_digest": digest}
    return builder.add("turn/admitted", {**rest, **data})


def accept(builder: Builder, message_id: str, digest: str = A, **more: Any) -> int:
    data = {"message_id": message_id, "placement": "current_turn", "disposition": "steering", **more}
    return builder.add("message/accepted", {**data, "content": TEXT, "digest": digest})


def stop(builder: Builder, stop_id: str, **more: Any) -> int:
    data = {"stop_id": stop_id, "turn_id": "t1", "source": "user", "mode": "immediate", **more}
    return builder.add("turn/stop_requested", data)


def claim(builder: Builder, **more: Any) -> int:
    data: dict[str, Any] = {"claim_id": "c", "purpose": "resume", "turn": 2, "boundary": {"segments": []}}
    data |= {"boundary_digest": "d" * 32, "replay_digest": B, "replay_through_seq": 1, "claimed_at": 1}
    data["source"] = {"run_id": "r1", "invocation_id": "i-r1", "turn_id": "t1", "high_water": 1}
    data["target_run"] = builder.run("r2", "t2")
    return builder.add("continuation/claim", {**data, **more})


def get(builder: Builder, kind: Kind, id: str) -> Receipt | None:
    return fold(builder).receipts.get(kind, id)


def test_a_digest_is_that_of_compact_json_with_sorted_keys() -> None:
    value = {"b": [1, None, "ü"], "a": {"d": 1.5, "c": True}}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest_of(value) == hashlib.sha256(text.encode()).hexdigest()


def test_a_turn_that_was_admitted_and_the_message_that_it_began_with() -> None:
    builder = Builder()
    seq = admit(builder, "t1", "r1", "m1", options={"max_steps": 3})
    bare = admit(builder, "t2", "r2", digest=B)
    data = {"run_id": "r1", "message_id": "m1", "options": {"max_steps": 3}}
    assert get(builder, "turn", "t1") == Receipt("turn", "t1", A, seq, data)
    assert get(builder, "turn", "t2") == Receipt("turn", "t2", B, bare, {"run_id": "r2"})
    started = {"disposition": "turn_started", "turn_id": "t1", "run_id": "r1"}
    assert get(builder, "message", "m1") == Receipt("message", "m1", A, seq, started)


def test_a_message_that_waited_was_accepted_and_its_turn_says_that_it_came_from_the_queue() -> None:
    builder = Builder()
    first = accept(builder, "m1", turn_id="t0", client={"id": "x"})
    second = accept(builder, "m2", B, placement="next_turn", disposition="followup")
    admit(builder, "t1", "r1", "m1", B)
    said = {"disposition": "steering", "placement": "current_turn", "turn_id": "t0"}
    assert get(builder, "message", "m1") == Receipt("message", "m1", A, first, said)
    said = {"disposition": "followup", "placement": "next_turn"}
    assert get(builder, "message", "m2") == Receipt("message", "m2", B, second, said)
    turn = get(builder, "turn", "t1")
    assert turn is not None
    assert turn.data == {"run_id": "r1", "message_id": "m1", "queued": True}


def test_a_resume_is_the_admission_of_its_turn_and_a_handoff_is_none() -> None:
    builder = Builder().plain_turn()
    claim(builder, purpose="handoff", target_run=builder.run("r9", "t9"))
    seq = claim(builder)
    data = {"run_id": "r2", "source_run_id": "r1", "claim_id": "c"}
    assert get(builder, "turn", "t2") == Receipt("turn", "t2", "d" * 32, seq, data)
    assert get(builder, "turn", "t9") is None


def test_stops_retractions_and_updates() -> None:
    builder = Builder().start()
    bare = stop(builder, "s1")
    full = stop(builder, "s2", run_id="r1", mode="after_step", source="host_shutdown", retract=["m1", 5, "m2"])
    taken = builder.add("message/retracted", {"retract_id": "x", "message_ids": ["m3", None]})
    patched = builder.add("session/updated", {"patch": {"name": "n", "flagged": True}, "request_id": "u"})
    builder.add("session/updated", {"patch": {"name": "of nobody"}})
    data: dict[str, Any] = {"turn_id": "t1", "mode": "immediate", "source": "user", "retract": []}
    assert get(builder, "stop", "s1") == Receipt("stop", "s1", "", bare, data)
    data = {"turn_id": "t1", "run_id": "r1", "mode": "after_step", "source": "host_shutdown", "retract": ["m1", "m2"]}
    assert get(builder, "stop", "s2") == Receipt("stop", "s2", "", full, data)
    assert get(builder, "retract", "x") == Receipt("retract", "x", "", taken, {"message_ids": ["m3"]})
    digest = digest_of({"flagged": True, "name": "n"})
    assert get(builder, "update", "u") == Receipt("update", "u", digest, patched, {})


def test_the_first_under_an_id_stands_and_each_kind_has_ids_of_its_own() -> None:
    builder = Builder().start()
    admit(builder, "x", "r", "x")
    accept(builder, "x", B)
    admit(builder, "y", "q", "x", B)
    admit(builder, "x", "p", "z", digest=B)
    claim(builder, target_run=builder.run("o", "x"))
    for mode in ("after_step", "immediate"):
        stop(builder, "x", mode=mode)
    for ids in (["a"], ["b"]):
        builder.add("message/retracted", {"retract_id": "x", "message_ids": ids})
    for name in "ab":
        builder.add("session/updated", {"patch": {"name": name}, "request_id": "x"})
    receipts = fold(builder).receipts
    kinds: list[Kind] = ["turn", "message", "stop", "retract", "update"]
    found = [receipts.get(kind, "x") for kind in kinds]
    assert [(one.digest, one.data) for one in found if one is not None] == [
        (A, {"run_id": "r", "message_id": "x"}),
        (A, {"disposition": "turn_started", "turn_id": "x", "run_id": "r"}),
        ("", {"turn_id": "t1", "mode": "after_step", "source": "user", "retract": []}),
        ("", {"message_ids": ["a"]}),
        (digest_of({"name": "a"}), {}),
    ]
    other = receipts.get("turn", "y")
    assert other is not None
    assert "queued" not in other.data, "that message had begun another turn, and did not wait"
    assert receipts.get("turn", "turn x") is None
    begun = receipts.get("message", "z")
    assert begun is not None
    assert (begun.digest, begun.data["run_id"]) == (B, "p"), "what it was asked with, whatever its turn was"


@pytest.mark.parametrize("odd", [None, 7, "", [], {}, [["x"]], {"x": [1]}, True])
def test_what_is_inside_may_be_anything(odd: Any) -> None:
    builder = Builder()
    admit(builder, "t1", "r1", message_id=odd, options=odd, execution={"kind": odd})
    accept(builder, "m", turn_id=odd)
    stop(builder, "s", run_id=odd, retract=odd)
    builder.add("message/retracted", {"retract_id": "x", "message_ids": [odd]})
    builder.add("session/updated", {"patch": {"x": odd}, "request_id": odd})
    claim(builder, target_run={"run_id": odd, "turn_id": odd}, source={"run_id": odd})
    claim(builder, target_run={"run_id": odd, "turn_id": "t2"}, source={"run_id": odd})
    receipts = fold(builder).receipts
    assert receipts.get("turn", "t1") is not None
    assert receipts.get("message", "m") is not None
    resumed = receipts.get("turn", "t2")
    assert resumed is not None
    assert resumed.data == {"run_id": "", "source_run_id": "", "claim_id": "c"}


def test_a_snapshot_keeps_them_and_the_first_still_stands() -> None:
    builder = Builder().start()
    admit(builder, "t2", "r2", "m2")
    accept(builder, "m3")
    state = fold(builder)
    again = summary.from_json(orjson.loads(orjson.dumps(summary.to_json(state))))
    later = accept(builder, "m3", B)
    accept(builder, "m4", B)
    for event in events(builder)[later:]:
        again.apply(event)
    first, fresh = again.receipts.get("message", "m3"), again.receipts.get("message", "m4")
    assert first is not None
    assert fresh is not None
    assert (first.digest, fresh.digest) == (A, B)
    assert again.receipts.get("turn", "t2") == state.receipts.get("turn", "t2") is not None


def test_a_fork_inherits_none() -> None:
    builder = Builder().start()
    accept(builder, "m")
    state = State()
    for event in events(builder):
        state.inherit(event)
    state.apply(Event(0, 0, "session/header", {"parent": {}}, ""))
    assert state.receipts.get("message", "m") is None
    state.apply(events(builder)[-1])
    assert state.receipts.get("message", "m") is not None
