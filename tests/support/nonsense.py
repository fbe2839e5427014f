"""Journals whose lines are all valid and whose relations are whatever chance makes of them."""

import random
from typing import Any

from .builder import Builder

ANYTHING: list[Any] = [None, True, -1, 2**62, 1.5, "", "x", "t1", "r1", [], [None], [[]], {}, {"a": [1, {}]}]


class Nonsense(Builder):
    """``wild``: how often an optional or nested value is anything at all, of 1."""

    def __init__(self, seed: int, events: int, wild: float = 0.0, **header: Any) -> None:
        super().__init__(**header)
        self.random = random.Random(seed)
        self.wild = wild
        self.known: list[tuple[str, str]] = []
        while events > 0:
            count = self.random.choice([1, 1, 1, 1, 1, 2, 3])
            for left in range(min(count, events) - 1, -1, -1):
                self.one(left)
            events -= count

    def pick(self, *given: Any) -> Any:
        return self.random.choice(given)

    def any(self, value: Any) -> Any:
        """The value, or now and then anything at all."""
        return self.random.choice(ANYTHING) if self.random.random() < self.wild else value

    def maybe(self, **optional: Any) -> dict[str, Any]:
        return {key: self.any(value) for key, value in optional.items() if self.random.random() < 0.5}

    def id(self, letter: str) -> str:
        return f"{letter}{self.random.randrange(3)}"

    def where(self) -> dict[str, Any]:
        """A turn and a run that mostly belong together."""
        turn = self.id("t")
        return {"turn_id": turn, "run_id": turn.replace("t", "r") if self.random.random() < 0.8 else self.id("r")}

    def in_step(self) -> dict[str, Any]:
        return {**self.where(), "step": self.pick(1, 1, 2, 3)}

    def content(self) -> list[Any]:
        blocks: list[Any] = []
        for _ in range(self.random.randrange(4)):
            blocks.append(
                self.any(
                    self.pick(
                        {"kind": "text", "text": self.any(self.pick("hello", "", " "))},
                        {"kind": "thinking", "text": "hm", **self.maybe(signature="s")},
                        {"kind": "image", "media_type": "image/png", "data": "AA=="},
                        {"kind": "file", "media_type": "a/b", "ref": "sha256:" + "0" * 64},
                        {"kind": "tool_result", "call_id": "c0", "content": []},
                        {"kind": "future", "x": 1},
                    )
                )
            )
        return blocks

    def message(self) -> list[Any]:
        calls = [
            {
                "kind": "tool_call",
                "call_id": self.any(self.call_id()),
                "name": self.any("tool"),
                "arguments": self.any("{}"),
            }
            for _ in range(self.pick(0, 0, 1, 2, 4))
        ]
        blocks = self.content() + calls
        self.random.shuffle(blocks)
        return blocks

    def call_id(self) -> str:
        return str(self.pick("c0", "c1", "c2", "c0", " C0", "C1", ""))

    def header_of(self, run_id: str, turn_id: str) -> dict[str, Any]:
        run = self.run(run_id, turn_id)
        for key in list(run):
            if self.random.random() < self.wild:
                run[key] = self.any(run[key])
        return run

    def ref(self) -> dict[str, Any]:
        where = self.where()
        high = self.random.randrange(max(1, self.seq))
        return {**where, "invocation_id": f"i-{where['run_id']}", "high_water": self.any(high)}

    def one(self, more: int) -> None:
        make = self.pick(*MAKERS)
        type_, data = make(self)
        ts = self.ts + self.pick(0, 0, 0, 5, -1000)
        self.add(type_, data, more=more, ts=ts, ignorable=type_ == "assistant/delta")

    # ------------------------------------------------------------ one event of each type

    def turn_start(self) -> Any:
        where = self.where()
        run = self.header_of(where["run_id"], where["turn_id"])
        return "turn/start", {**where, "invocation_id": "i", "turn": self.pick(1, 2, 3, self.turn + 1), "run": run}

    def user_message(self) -> Any:
        source = {"kind": self.any(self.pick("user", "steering", "other"))}
        more = self.maybe(
            quotes=[{"text": "q"}], attachments=[{"name": "a", "media_type": "b", "ref": "c", "bytes": 1}]
        )
        return "user/message", {
            "message_id": self.id("m"),
            **self.where(),
            "content": self.content(),
            "source": source,
            **more,
        }

    def step_start(self) -> Any:
        return "step/start", self.in_step()

    def step_end(self) -> Any:
        return "step/end", self.in_step()

    def request_header(self) -> Any:
        header = {"provider": "p", "model": "m"}
        return "request/header", {**self.in_step(), "reason": "change", "header": header}

    def assistant_delta(self) -> Any:
        where = self.where()
        return "assistant/delta", {
            "run_id": where["run_id"],
            "step": self.pick(1, 2),
            "message_id": self.id("a"),
            "index": self.pick(0, 1, 2, -1),
            "kind": self.pick("text", "thinking"),
            "text": self.pick("", "x", "yz"),
        }

    def assistant_message(self) -> Any:
        more = self.maybe(usage={"input_tokens": self.any(1), "output_tokens": self.any(2)}, interrupted=True)
        ids = {**self.in_step(), "message_id": self.id("a")}
        return "assistant/message", {**ids, "content": self.message(), "stop_reason": "end_turn", **more}

    def tool_call(self) -> Any:
        return "tool/call", {
            **self.in_step(),
            "call_id": self.call_id(),
            "operation_id": self.id("o"),
            "name": "tool",
            "arguments_digest": "0" * 64,
            "recovery": self.pick("read_only", "idempotent", "reconcile", "never"),
        }

    def tool_result(self) -> Any:
        state = self.pick("ok", "error", "cancelled", "unknown", "not_started")
        more = self.maybe(operation_id=self.id("o"), call_seq=self.random.randrange(self.seq + 1))
        return "tool/result", {
            **self.in_step(),
            "call_id": self.call_id(),
            "state": state,
            "content": self.content(),
            "is_error": state != "ok",
            **more,
        }

    def tool_outcome(self) -> Any:
        seq = self.random.randrange(self.seq + 1)
        return "tool/outcome", {
            **self.where(),
            "call_id": self.call_id(),
            "call_seq": seq,
            "operation_id": self.id("o"),
            "state": "ok",
            "content": self.content(),
            "is_error": False,
            "source": "user",
        }

    def stop(self) -> Any:
        more = self.maybe(run_id=self.id("r"), retract=[self.id("m"), self.any("m1")], client="c")
        return "turn/stop_requested", {
            "stop_id": self.id("s"),
            "turn_id": self.id("t"),
            "source": "b",
            "mode": "immediate",
            **more,
        }

    def turn_end(self) -> Any:
        kinds = ("completed", "max_tokens", "step_limit", "blocked", "aborted", "failed", "interrupted", "future")
        reason = {"kind": self.any(self.pick(*kinds)), **self.maybe(failure_class="f", source="s")}
        return "turn/end", {**self.where(), "reason": reason}

    def run_created(self) -> Any:
        where = self.where()
        return "run/created", {"run": self.header_of(where["run_id"], where["turn_id"])}

    def composition(self) -> Any:
        return "run/composition", {"run_id": self.id("r"), "composition": {"schema": self.any(1)}}

    def run_settled(self) -> Any:
        return "run/settled", {"run_id": self.id("r"), **self.maybe(cleanup={"error": "e"})}

    def claim(self) -> Any:
        where, came = self.where(), self.ref()
        segment = {**came, "session_id": self.session_id, "first_seq": 1, "last_seq": 2, "sum": self.prev}
        run = self.header_of(where["run_id"], where["turn_id"])
        return "continuation/claim", {
            "claim_id": self.id("k"),
            "purpose": self.pick("resume", "handoff"),
            "turn": self.pick(1, 2, 3),
            "boundary": {"segments": self.any([self.any(segment)])},
            "boundary_digest": self.prev,
            "replay_digest": "0" * 64,
            "replay_through_seq": self.random.randrange(self.seq + 1),
            "source": came,
            "target_run": run,
            "claimed_at": self.ts,
        }

    def continuation(self) -> Any:
        return "continuation/start", {
            "protocol": "continuation_start_v2",
            "start_kind": self.pick("runtime_admission", "claim_repair"),
            "purpose": self.pick("resume", "handoff"),
            "claim_id": self.id("k"),
            **self.where(),
            "boundary_digest": self.prev,
            "replay_digest": "0" * 64,
            "source": self.ref(),
        }

    def pause(self) -> Any:
        return "handoff/pause", {
            "protocol": "runtime_handoff_pause_v1",
            "handoff_id": self.id("h"),
            "host_epoch": "e",
            **self.where(),
            "root_run_id": self.id("r"),
            "successor_run_id": self.pick("r0", "r1", "rS", "rT"),
            "successor_invocation_id": "i",
            "claim_id": self.id("k"),
            "remaining_steps": self.pick(None, 0, 3),
        }

    def admitted(self) -> Any:
        kind = self.pick("root", "linked_child_initial", "linked_child_resume", "linked_child_provider_retry", "new")
        more = self.maybe(message_id=self.id("m"), options={"max_steps": self.any(3)}, agent_id="a")
        execution = {"kind": self.any(kind), **self.maybe(source_run_id="r9")}
        given = {"content": self.any(self.content())}
        return "turn/admitted", {
            **self.where(),
            "previous_root_turn_id": self.pick(None, "t0"),
            "execution": execution,
            "input": given,
            "input_digest": "0" * 64,
            **more,
        }

    def accepted(self) -> Any:
        disposition = self.pick("steering", "followup")
        more = self.maybe(turn_id=self.id("t"))
        ids = {"message_id": self.id("m"), "placement": "next_turn", "disposition": disposition}
        return "message/accepted", {**ids, "content": self.content(), "digest": "0" * 64, **more}

    def retracted(self) -> Any:
        return "message/retracted", {"retract_id": "x", "message_ids": [self.any(self.id("m"))]}

    def asked(self) -> Any:
        kind = self.pick("question", "permission", "sandbox_boundary")
        return "interaction/requested", {"interaction_id": self.id("q"), **self.where(), "kind": kind, "request": {}}

    def resolved(self) -> Any:
        outcome = {"kind": self.any("closure"), "reason": self.any("r")}
        return "interaction/resolved", {"interaction_id": self.id("q"), "outcome": outcome}

    def proposed(self) -> Any:
        data = {"proposal_id": self.id("p"), "revision": self.pick(1, 2), "turn_id": self.id("t"), "title": "x"}
        return "plan/proposed", {**data, "steps": [self.any({"id": "1"})]}

    def approved(self) -> Any:
        return "plan/approved", {"proposal_id": self.id("p"), "revision": self.pick(1, 2), "execution_id": self.id("e")}

    def execution(self) -> Any:
        status = self.pick("completed", "cancelled", "interrupted")
        return "plan/execution", {"execution_id": self.id("e"), "status": status}

    def updated(self) -> Any:
        return "session/updated", {"patch": {"name": self.any("n"), "labels": self.any([]), "archived": self.any(True)}}

    def note(self) -> Any:
        return "session/note", {"kind": self.pick("abort", "quarantine", "x"), **self.maybe(text="t", source="s")}

    def extension(self) -> Any:
        return "x-team/task", {"anything": self.any(1)}

    def gap(self) -> Any:
        lists = {key: [self.any({"code": "x", "offset": 3})] for key in ("spans", "accepted")}
        return "journal/gap", {**lists, "missing": [self.any([1, 2])], "unverified": [self.any(3)]}


ORDINARY = [
    *[Nonsense.turn_start] * 4,
    *[Nonsense.user_message] * 3,
    *[Nonsense.step_start] * 4,
    *[Nonsense.step_end] * 2,
    Nonsense.request_header,
    *[Nonsense.assistant_delta] * 3,
    *[Nonsense.assistant_message] * 5,
    *[Nonsense.tool_call] * 5,
    *[Nonsense.tool_result] * 4,
    *[Nonsense.tool_outcome] * 2,
    *[Nonsense.turn_end] * 3,
]
MAKERS = [
    *ORDINARY,
    *(Nonsense.stop, Nonsense.run_created, Nonsense.composition, Nonsense.run_settled),
    *[Nonsense.claim, Nonsense.continuation, Nonsense.pause] * 2,
    *[Nonsense.admitted] * 2,
    *(Nonsense.accepted, Nonsense.retracted, Nonsense.asked, Nonsense.resolved, Nonsense.proposed),
    *(Nonsense.approved, Nonsense.execution, Nonsense.updated, Nonsense.note, Nonsense.extension),
]
