"""Sessions with continuations and handoffs, claimed as the format document says, folded while they are written."""

from typing import Any, Self

from maka.journal.codec import decode
from maka.journal.events import Event
from maka.journal.history import History
from maka.journal.state import State

from .builder import Builder

_SAME = f"sha256:{'0' * 64}"
#: What a run is made of that nobody asks more of.
COMPOSITION: dict[str, Any] = {
    "schema": 1,
    "composer_id": "test.story",
    "composer_revision": "1",
    "source_revisions": [],
    "base_system_prompt_hash": _SAME,
    "tool_catalog_hash": _SAME,
    "tool_availability_hash": _SAME,
    "base_provider_options_hash": _SAME,
    "tool_names": [],
    "context_window": None,
}


class Story(Builder):
    """A journal whose runs go on from one another. ``state`` and ``history`` hold all that was added.

    The current run is ``r<turn>``, its successors in the same turn ``r<turn>'``, ``r<turn>''`` and so on.
    """

    def __init__(self) -> None:
        self.state, self.history = State(), History()
        self.events: list[Event] = []
        self.marks = ""
        #: Of each run: its first ledger event. Of each unknown call: what its outcome must name.
        self.first: dict[str, int] = {}
        self.unknown: dict[int, dict[str, Any]] = {}
        super().__init__()

    def add(self, type_: str, data: dict[str, Any], **more: Any) -> int:
        seq = super().add(type_, data, **more)
        event = decode(self.lines[-1], sum(len(line) + 1 for line in self.lines[:-1]))
        assert event is not None
        self.events.append(event)
        self.state.apply(event)
        self.history.apply(event)
        if type_ in ("turn/start", "continuation/start"):
            self.first[data["run_id"]] = seq
        return seq

    @property
    def ids(self) -> dict[str, Any]:
        return {"turn_id": f"t{self.turn}", "run_id": f"r{self.turn}{self.marks}"}

    def start(self, text: str = "hi") -> Self:
        self.marks = ""
        super().start(text)
        return self

    def end(self, kind: str = "completed", settle: bool = True) -> Self:
        super().end(kind, settle=False)
        if settle and kind != "interrupted":
            self.add("run/settled", {"run_id": self.ids["run_id"]})
        return self

    def tool(self, call_id: str, state: str = "ok", recovery: str = "never") -> int:
        """A call of the message that was said last, and its result."""
        seq = self.call(call_id, recovery=recovery)
        operation_id = f"op-{self.turn}-{call_id}"
        self.result(call_id, f"{state} {seq}", state, operation_id)
        if state == "unknown":
            self.unknown[seq] = {**self.ids, "call_id": call_id, "call_seq": seq, "operation_id": operation_id}
        return seq

    def outcome(self, call_seq: int, source: str = "reconciled") -> Self:
        said = {"state": "ok", "content": [{"kind": "text", "text": f"outcome {self.seq}"}], "is_error": False}
        self.add("tool/outcome", {**self.unknown.pop(call_seq), **said, "source": source})
        return self

    def pause(self, **more: Any) -> Self:
        """The current run is over, and a run of the same turn is to go on from it."""
        self.add("run/composition", {"run_id": self.ids["run_id"], "composition": COMPOSITION})
        successor = self.ids["run_id"] + "'"
        pause = {"protocol": "runtime_handoff_pause_v1", "handoff_id": f"h-{successor}", "host_epoch": "e", **self.ids}
        pause |= {"root_run_id": f"r{self.turn}", "successor_run_id": successor}
        pause |= {"successor_invocation_id": f"i-{successor}", "claim_id": f"c-{successor}", "remaining_steps": 9}
        self.add("handoff/pause", {**pause, **more})
        return self

    def claim(self, source: str, purpose: str = "resume", **more: Any) -> dict[str, Any]:
        """The claim of a run that goes on from ``source``, which has a terminal fact, in a turn of its own or not."""
        replay = self.history.replay(source)
        segments = more.pop("segments", None) or self.state.segments(source)
        came = {key: segments[-1][key] for key in ("run_id", "invocation_id", "turn_id")}
        came["high_water"] = segments[-1]["last_seq"]
        if purpose == "resume":
            self.turn, self.marks = self.turn + 1, ""
        else:
            self.marks += "'"
        run_id = self.ids["run_id"]
        boundary = {"claim_id": f"c-{run_id}", "boundary_digest": segments[-1]["sum"], "source": came}
        data = {"claim_id": f"c-{run_id}", "purpose": purpose, "turn": self.turn, "boundary": {"segments": segments}}
        data |= {"boundary_digest": segments[-1]["sum"], "replay_digest": "0" * 64}
        data |= {"replay_through_seq": replay.through_seq, "source": came, "claimed_at": self.ts}
        data["target_run"] = self.run(run_id, self.ids["turn_id"], continuation=boundary)
        data |= more
        self.add("continuation/claim", data)
        return data

    def admit(self, claim: dict[str, Any], kind: str = "runtime_admission", **more: Any) -> Self:
        """The claimed run, created and started."""
        self.add("run/created", {"run": more.pop("run", claim["target_run"])})
        start = {"protocol": "continuation_start_v2", "start_kind": kind, "purpose": claim["purpose"], **self.ids}
        start |= {key: claim[key] for key in ("claim_id", "boundary_digest", "replay_digest", "source")}
        self.add("continuation/start", {**start, **more})
        return self

    def go_on(self, source: str, purpose: str = "resume") -> Self:
        return self.admit(self.claim(source, purpose))
