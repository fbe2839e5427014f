"""What a session does with what clients ask of it, decided on folds alone: each rule, and any order of all of them."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maka.journal.digests import digest_of
from maka.journal.errors import InvalidEvent
from maka.journal.events import Draft
from maka.journal.state import State
from maka.runtime.host import admission
from maka.runtime.host.admission import Decision, Live, RootTurn, StopAsked, message_of
from maka.runtime.host.operations import QueueRetract, TurnMessageSubmit, TurnStart
from maka.runtime.host.protocol import MAX_CONTENT, MAX_QUEUED, MAX_QUEUED_BYTES, HostError
from support.lineages import Story

REST: Final = Live()


def content(text: str) -> list[dict[str, Any]]:
    return [{"kind": "text", "text": text}]


class Desk(Story):
    """A session's fold, what this process knows beside it, and what clients ask. All that was decided is appended."""

    def __init__(self) -> None:
        super().__init__()
        self.live = REST
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def apply(self, decision: Decision) -> Decision:
        for draft in decision.drafts:
            self.put(draft)
        if decision.turn is not None:
            self.live = Live(turn_id=decision.turn.turn_id)
        return decision

    def put(self, draft: Draft) -> int:
        self.state.check(draft)
        return self.add(draft.type, draft.data)

    def ask(self, turn_id: str = "t", text: Any = "go", **more: Any) -> Decision:
        asked = TurnStart(session_id="s1", turn_id=turn_id, content=text, **more)
        return self.apply(admission.start(self.state, self.live, asked, self.new_id))

    def submit(self, message_id: str = "m", text: Any = "more", placement: Any = "next_turn", **more: Any) -> Decision:
        asked = TurnMessageSubmit(session_id="s1", message_id=message_id, content=text, placement=placement, **more)
        return self.apply(admission.submit(self.state, self.live, asked, self.new_id, client="tests"))

    def steer(self, message_id: str = "m", text: str = "more") -> Decision:
        return self.submit(message_id, text, "current_turn")

    def retract(self, retract_id: str, message_ids: list[str] | None = None, leased: tuple[str, ...] = ()) -> Decision:
        asked = QueueRetract(session_id="s1", retract_id=retract_id, message_ids=message_ids)
        return self.apply(admission.retract(self.state, asked, leased))

    def successor(self) -> Decision:
        return self.apply(admission.successor(self.state, self.live, self.new_id))

    # ------------------------------------------------------------ what a kernel writes

    def begin(self, turn: RootTurn) -> None:
        self.turn += 1
        ids = {"turn_id": turn.turn_id, "run_id": turn.run_id}
        run = self.run(turn.run_id, turn.turn_id)
        self.put(
            Draft(
                "turn/start",
                {**ids, "invocation_id": run["invocation_id"], "turn": self.state.turns.last + 1, "run": run},
            )
        )
        message = {"message_id": turn.message_id, **ids, "content": turn.input["content"]}
        self.put(Draft("user/message", {**message, "source": {"kind": "user"}}))

    def say(self, message_id: str, turn: RootTurn) -> None:
        """Steering is taken by the turn."""
        message = {"message_id": message_id, "turn_id": turn.turn_id, "run_id": turn.run_id}
        data = self.state.queue.waiting[message_id].data
        self.put(Draft("user/message", {**message, "content": data["content"], "source": {"kind": "steering"}}))

    def finish(self, turn: RootTurn) -> None:
        ids = {"turn_id": turn.turn_id, "run_id": turn.run_id}
        self.put(Draft("turn/end", {**ids, "reason": {"kind": "completed"}}))
        self.put(Draft("run/settled", {"run_id": turn.run_id}))
        self.live = REST

    def whole(self, turn: RootTurn | None) -> None:
        assert turn is not None
        self.begin(turn)
        self.finish(turn)

    def hand_over(self, text: str = "go") -> None:
        """A turn that waits for its successor."""
        self.start(text)
        self.pause()

    def doubt(self) -> str:
        """A continuation that was cut off behind its start; its turn."""
        self.start().end("interrupted")
        self.go_on("r1")
        turn_id: str = self.ids["turn_id"]
        return turn_id

    @property
    def waiting(self) -> list[str]:
        queue = self.state.queue
        return [item.message_id for item in queue.followups(self.state.turns.open)]


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(HostError) as caught:
        work()
    return caught.value.code


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def busy(desk: Desk) -> Desk:
    """One that runs turn ``t``."""
    turn = desk.ask().turn
    assert turn is not None
    desk.begin(turn)
    return desk


# ---------------------------------------------------------------- starts


def test_a_start_is_one_admission_that_says_all_of_it(desk: Desk) -> None:
    quotes, attachments = [{"text": "q", "source": "elsewhere"}], [{"name": "a.txt"}]
    decision = desk.ask("t", "go", message_id="m", quotes=quotes, attachments=attachments, max_steps=3)
    [draft] = decision.drafts
    message = {"content": content("go"), "quotes": quotes, "attachments": attachments}
    assert (draft.type, decision.turn) == (
        "turn/admitted",
        RootTurn(turn_id="t", run_id="id1", message_id="m", input=message, max_steps=3),
    )
    assert draft.data == {
        "turn_id": "t",
        "run_id": "id1",
        "message_id": "m",
        "previous_root_turn_id": None,
        "execution": {"kind": "root"},
        "input": message,
        "input_digest": digest_of(message),
        "options": {"max_steps": 3},
    }


def test_a_start_without_options_has_none_on_record(desk: Desk) -> None:
    [draft] = desk.ask().drafts
    assert "options" not in draft.data


@pytest.mark.parametrize("when", ["it runs", "it is over", "other turns came after it"])
def test_the_same_start_is_answered_from_the_record(busy: Desk, when: str) -> None:
    if when != "it runs":
        turn = busy.state.receipts.get("turn", "t")
        assert turn is not None
        busy.finish(RootTurn(turn_id="t", run_id=turn.data["run_id"], message_id="", input={}))
    if when == "other turns came after it":
        busy.whole(busy.ask("t2").turn)
    again = busy.ask()
    assert (again.drafts, again.turn) == ([], None)
    assert again.receipt is not None
    assert again.receipt.seq == busy.events[1].seq


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "content": {"text": "something else"},
    "quotes": {"quotes": [{"text": "q"}]},
    "attachments": {"attachments": [{"name": "a"}]},
    "steps": {"max_steps": 3},
    "message": {"message_id": "another"},
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_start_under_its_id_is_a_conflict(busy: Desk, other: str) -> None:
    assert refused(lambda: busy.ask("t", **OTHERS[other])) == "operation_conflict"


def test_a_text_and_its_block_are_the_same(busy: Desk) -> None:
    assert busy.ask("t", content("go")).receipt is not None


def test_a_turn_that_nobody_admitted_keeps_its_id(desk: Desk) -> None:
    desk.plain_turn()
    assert refused(lambda: desk.ask("t1")) == "operation_conflict"


def test_a_message_that_is_there_keeps_its_id(desk: Desk) -> None:
    turn = desk.ask("t", message_id="m").turn
    desk.whole(turn)
    assert refused(lambda: desk.ask("t2", message_id="m")) == "operation_conflict"


def test_the_message_of_a_start_is_a_message_like_any_other(busy: Desk) -> None:
    message_id = busy.events[1].data["message_id"]
    assert busy.submit(message_id, "go").reply == {"disposition": "turn_started", "turn_id": "t", "run_id": "id1"}
    assert refused(lambda: busy.submit(message_id, "something else")) == "operation_conflict"


@pytest.mark.parametrize("admitted", [False, True])
def test_a_start_waits_for_nobody(desk: Desk, admitted: bool) -> None:
    turn = desk.ask().turn
    assert turn is not None
    if not admitted:
        desk.begin(turn)
    assert refused(lambda: desk.ask("t2")) == "session_busy"
    # Also where this process knows nothing of it: an admission, and an open turn, are in the journal.
    desk.live = REST
    assert refused(lambda: desk.ask("t2")) == "session_busy"
    desk.live = Live(turn_id="t")
    assert len(desk.events) == (2 if admitted else 4)


def test_what_this_process_runs_is_busy_although_its_turn_is_over(busy: Desk) -> None:
    busy.finish(RootTurn(turn_id="t", run_id="id1", message_id="", input={}))
    busy.live = Live(turn_id="t")
    assert refused(lambda: busy.ask("t2")) == "session_busy"


def test_why_nothing_may_begin_here_is_what_a_start_is_told(desk: Desk) -> None:
    desk.live = Live(refusal=HostError("host_draining", "it ends"))
    assert refused(desk.ask) == "host_draining"
    # One that was admitted before is answered all the same.
    desk.live = REST
    desk.ask()
    desk.live = Live(turn_id="t", refusal=HostError("host_draining", "it ends"))
    assert desk.ask().receipt is not None


def test_each_admission_names_the_root_turn_before_it(desk: Desk) -> None:
    previous = None
    for number in range(3):
        decision = desk.ask(f"t{number}")
        assert decision.drafts[0].data["previous_root_turn_id"] == previous
        desk.whole(decision.turn)
        previous = f"t{number}"
    assert desk.submit("m").drafts[0].data["previous_root_turn_id"] == previous


def test_a_turn_of_a_program_is_the_one_before_too(desk: Desk) -> None:
    desk.plain_turn()
    assert desk.ask("t").drafts[0].data["previous_root_turn_id"] == "t1"


def test_a_turn_that_was_resumed_is_the_one_before_too(desk: Desk) -> None:
    desk.start().end("interrupted")
    desk.go_on("r1").step().says().end_step().end()
    assert desk.ask("t").drafts[0].data["previous_root_turn_id"] == "t2"


# ---------------------------------------------------------------- messages


def test_a_message_to_a_session_at_rest_begins_its_turn(desk: Desk) -> None:
    decision = desk.submit("m", "go", placement="current_turn")
    assert decision.reply == {"disposition": "turn_started", "turn_id": "id1", "run_id": "id2"}
    [draft] = decision.drafts
    assert draft.type == "turn/admitted"
    assert draft.data["message_id"] == "m"
    assert draft.data["input"] == {"content": content("go")}
    assert decision.turn == RootTurn(turn_id="id1", run_id="id2", message_id="m", input={"content": content("go")})


def test_one_message_makes_one_turn(desk: Desk) -> None:
    first = desk.submit("m", "go")
    again = desk.submit("m", "go")
    assert again.reply == first.reply
    assert (again.drafts, again.turn) == ([], None)
    desk.whole(first.turn)
    assert desk.submit("m", "go").reply == first.reply
    assert len([event for event in desk.events if event.type == "turn/admitted"]) == 1


@pytest.mark.parametrize(
    ("placement", "disposition", "into"),
    [("current_turn", "steering", {"turn_id": "t"}), ("next_turn", "followup", {})],
)
def test_a_message_to_a_session_that_runs_waits(
    busy: Desk, placement: str, disposition: str, into: dict[str, str]
) -> None:
    quotes = [{"text": "q", "source": "elsewhere"}]
    decision = busy.submit("m", "more", placement=placement, quotes=quotes)
    [draft] = decision.drafts
    message = {"content": content("more"), "quotes": quotes}
    assert draft == Draft(
        "message/accepted",
        {
            "message_id": "m",
            "placement": placement,
            "disposition": disposition,
            **into,
            **message,
            "digest": digest_of(message),
            "client": "tests",
        },
    )
    assert decision.reply == {"disposition": disposition, **into}
    assert decision.turn is None
    assert busy.submit("m", "more", placement=placement, quotes=quotes).reply == decision.reply


@pytest.mark.parametrize("other", [{"text": "else"}, {"placement": "current_turn"}, {"quotes": [{"text": "q"}]}])
def test_another_message_under_its_id_is_a_conflict(busy: Desk, other: dict[str, Any]) -> None:
    busy.submit("m")
    assert refused(lambda: busy.submit("m", **other)) == "operation_conflict"


def test_a_message_of_a_program_keeps_its_id(desk: Desk) -> None:
    desk.plain_turn()
    said = next(event.data["message_id"] for event in desk.events if event.type == "user/message")
    assert refused(lambda: desk.submit(said)) == "operation_conflict"


def test_what_steers_a_turn_that_is_stopped_is_for_the_next(busy: Desk) -> None:
    busy.live = Live(turn_id="t", stopping=True)
    assert busy.steer().reply == {"disposition": "followup"}


def test_what_would_steer_where_nothing_runs_is_for_the_next(desk: Desk) -> None:
    desk.live = Live(refusal=HostError("session_unavailable", "quarantined"))
    assert desk.steer().reply == {"disposition": "followup"}


def test_a_message_is_accepted_although_no_turn_may_begin_here(desk: Desk) -> None:
    desk.live = Live(refusal=HostError("session_unavailable", "quarantined"))
    assert desk.submit().reply == {"disposition": "followup"}
    assert desk.waiting == ["m"]


def test_a_message_does_not_overtake_those_that_wait(busy: Desk) -> None:
    busy.submit("m1")
    busy.finish(RootTurn(turn_id="t", run_id="id1", message_id="", input={}))
    assert busy.submit("m2").reply == {"disposition": "followup"}
    assert busy.waiting == ["m1", "m2"]


@pytest.mark.parametrize("command", ["start", "submit"])
def test_an_archived_session_takes_nothing(desk: Desk, command: str) -> None:
    desk.put(Draft("session/updated", {"patch": {"archived": True}}))
    before = len(desk.events)
    assert refused(desk.ask if command == "start" else desk.submit) == "session_archived"
    assert len(desk.events) == before


@pytest.mark.parametrize("empty", ["", [], content(""), [*content(""), *content("")]])
def test_a_message_holds_something(desk: Desk, empty: Any) -> None:
    assert refused(lambda: desk.ask("t", empty)) == refused(lambda: desk.submit("m", empty)) == "invalid_request"


def test_a_message_of_another_kind_of_block_holds_something() -> None:
    block = {"kind": "image", "media_type": "image/png", "data": "a"}
    assert message_of([block], None, None) == {"content": [block]}


def test_a_message_has_a_most() -> None:
    frame = len('{"content":[{"kind":"text","text":""}]}')
    most = "x" * (MAX_CONTENT - frame)
    assert message_of(most, None, None) == {"content": content(most)}
    assert refused(lambda: message_of(most + "x", None, None)) == "invalid_request"
    # Quotes count too, and an umlaut for two.
    assert refused(lambda: message_of(most[:-9], [{"text": "quote"}], None)) == "invalid_request"
    assert refused(lambda: message_of(most[:-1] + "ü", None, None)) == "invalid_request"


def test_what_is_empty_is_not_on_record() -> None:
    assert message_of("go", [], []) == {"content": content("go")}


def test_so_many_messages_wait_and_no_more(busy: Desk) -> None:
    for number in range(MAX_QUEUED):
        busy.submit(f"m{number}")
    assert refused(lambda: busy.submit("beyond")) == "queue_full"
    # What is there already is answered, and one that is taken back makes room.
    assert busy.submit("m0").receipt is not None
    busy.retract("x", ["m0"])
    assert busy.submit("beyond").reply == {"disposition": "followup"}


def test_so_many_bytes_wait_and_no_more(busy: Desk) -> None:
    half = "x" * (MAX_QUEUED_BYTES // 2)
    busy.submit("m1", half)
    assert refused(lambda: busy.submit("m2", half)) == "queue_full"
    assert refused(lambda: busy.submit("m2", "short", quotes=[{"text": half}])) == "queue_full"
    assert busy.submit("m2", half[:-1024]).reply == {"disposition": "followup"}


# ---------------------------------------------------------------- taken back


def test_all_that_waits_is_taken_back(busy: Desk) -> None:
    busy.submit("m1")
    busy.steer("m2")
    decision = busy.retract("x")
    assert decision.drafts == [Draft("message/retracted", {"retract_id": "x", "message_ids": ["m1", "m2"]})]
    assert decision.reply == {"retracted": ["m1", "m2"]}
    assert busy.waiting == []


def test_some_of_what_waits_is_taken_back_once(busy: Desk) -> None:
    for number in (1, 2, 3):
        busy.submit(f"m{number}")
    busy.retract("x", ["m2"])
    decision = busy.retract("y", ["m3", "m2", "nobody", "m3"])
    assert decision.reply == {"retracted": ["m3"]}
    assert busy.waiting == ["m1"]


def test_what_a_run_has_taken_is_not_taken_back(busy: Desk) -> None:
    busy.steer("m1")
    busy.steer("m2")
    assert busy.retract("x", leased=("m1",)).reply == {"retracted": ["m2"]}
    assert busy.retract("y", ["m1"], leased=("m1",)).reply == {"retracted": []}


def test_the_same_retraction_is_answered_from_the_record(busy: Desk) -> None:
    busy.submit("m1")
    first = busy.retract("x", ["m1", "nobody"])
    busy.submit("m2")
    again = busy.retract("x", ["m1", "nobody"])
    assert again.receipt is not None
    assert (again.drafts, again.reply) == ([], first.reply)
    assert busy.retract("x").reply == first.reply
    assert busy.waiting == ["m2"]
    assert refused(lambda: busy.retract("x", ["m2"])) == "operation_conflict"


def test_what_was_taken_back_is_not_delivered_and_keeps_its_id(busy: Desk) -> None:
    first = busy.submit("m")
    busy.retract("x")
    busy.finish(RootTurn(turn_id="t", run_id="id1", message_id="", input={}))
    assert busy.successor() == Decision()
    assert busy.submit("m").reply == first.reply
    assert refused(lambda: busy.ask("t2", message_id="m")) == "operation_conflict"


# ---------------------------------------------------------------- stops


def stop(stop_id: str = "x", mode: Any = "immediate", retract: bool = False) -> StopAsked:
    return StopAsked(stop_id, "user", mode, retract)


def stopped(desk: Desk, **more: Any) -> None:
    data = {"stop_id": "x", "turn_id": "t", "run_id": "id1", "source": "user", "mode": "immediate", **more}
    desk.put(Draft("turn/stop_requested", data))


def test_a_stop_that_is_not_on_record_is_new(busy: Desk) -> None:
    assert not admission.stop_known(busy.state, "t", stop())


def test_the_same_stop_is_known(busy: Desk) -> None:
    stopped(busy)
    assert admission.stop_known(busy.state, "t", stop())


@pytest.mark.parametrize(
    ("turn_id", "request_"), [("t2", stop()), ("t", stop(mode="after_step"))], ids=["turn", "mode"]
)
def test_another_stop_under_its_id_is_a_conflict(busy: Desk, turn_id: str, request_: StopAsked) -> None:
    stopped(busy)
    assert refused(lambda: admission.stop_known(busy.state, turn_id, request_)) == "operation_conflict"


def test_a_stop_that_took_something_back_is_not_one_that_does_not(busy: Desk) -> None:
    busy.submit("m")
    stopped(busy, retract=["m"])
    assert admission.stop_known(busy.state, "t", stop(retract=True))
    assert refused(lambda: admission.stop_known(busy.state, "t", stop())) == "operation_conflict"


# ---------------------------------------------------------------- what comes next


def over(desk: Desk) -> Desk:
    """Turn ``t`` is over."""
    desk.finish(RootTurn(turn_id="t", run_id="id1", message_id="", input={}))
    return desk


def test_the_first_message_that_waits_becomes_the_next_turn(busy: Desk) -> None:
    quotes = [{"text": "q", "source": "elsewhere"}]
    busy.submit("m1", "one", quotes=quotes)
    busy.submit("m2", "two")
    decision = over(busy).successor()
    assert decision.turn is not None
    assert decision.turn.message_id == "m1"
    assert decision.turn.input == {"content": content("one"), "quotes": quotes}
    [draft] = decision.drafts
    assert draft.type == "turn/admitted"
    assert draft.data["previous_root_turn_id"] == "t"
    assert draft.data["input"] == decision.turn.input
    assert draft.data["input_digest"] == digest_of(decision.turn.input)
    assert busy.waiting == ["m2"]


def test_steering_that_was_not_taken_comes_before_follow_ups(busy: Desk) -> None:
    busy.submit("m1", "one")
    busy.steer("s1", "steer")
    busy.steer("s2", "more")
    turns = []
    over(busy)
    while (decision := busy.successor()).turn is not None:
        turns.append(decision.turn.message_id)
        busy.whole(decision.turn)
    assert turns == ["s1", "s2", "m1"]


def test_steering_that_was_taken_is_not_a_follow_up(busy: Desk) -> None:
    busy.steer("s1")
    busy.say("s1", RootTurn(turn_id="t", run_id="id1", message_id="", input={}))
    assert over(busy).successor() == Decision()


def test_an_admitted_turn_comes_before_what_waits(desk: Desk) -> None:
    turn = desk.ask("t", max_steps=2).turn
    desk.submit("m")
    # Another process takes the session up.
    desk.live = REST
    decision = desk.successor()
    assert (decision.drafts, decision.turn) == ([], turn)


def test_an_admission_without_a_message_of_its_own_has_that_of_its_turn(desk: Desk) -> None:
    data = {"turn_id": "t", "run_id": "r", "previous_root_turn_id": None, "execution": {"kind": "root"}}
    message = {"content": content("go")}
    desk.put(Draft("turn/admitted", {**data, "input": message, "input_digest": digest_of(message)}))
    assert desk.successor().turn == RootTurn(turn_id="t", run_id="r", message_id="t", input=message)


@pytest.mark.parametrize("live", [Live(turn_id="t"), Live(refusal=HostError("session_unavailable", "quarantined"))])
def test_nothing_comes_next_while_something_runs_or_nothing_may(busy: Desk, live: Live) -> None:
    busy.submit("m")
    over(busy).live = live
    assert busy.successor() == Decision()
    assert busy.waiting == ["m"]


def test_nothing_comes_next_where_a_turn_is_open(busy: Desk) -> None:
    busy.submit("m")
    busy.live = REST
    assert busy.successor() == Decision()


def test_what_waits_in_an_archived_session_goes_on_waiting(busy: Desk) -> None:
    busy.submit("m")
    over(busy).put(Draft("session/updated", {"patch": {"archived": True}}))
    assert busy.successor() == Decision()
    busy.put(Draft("session/updated", {"patch": {"archived": False}}))
    assert busy.successor().turn is not None


# ---------------------------------------------------------------- handoffs, and continuations at rest


def test_a_turn_that_was_handed_over_takes_no_start(desk: Desk) -> None:
    desk.hand_over()
    assert refused(lambda: desk.ask("t")) == "session_busy"
    assert desk.successor() == Decision()


def test_what_steers_a_turn_that_was_handed_over_goes_into_it(desk: Desk) -> None:
    desk.hand_over()
    assert desk.steer("s").reply == {"disposition": "steering", "turn_id": "t1"}
    assert desk.submit("m").reply == {"disposition": "followup"}
    assert desk.successor() == Decision()


@pytest.mark.parametrize("command", ["start", "submit"])
def test_a_continuation_in_doubt_is_settled_before_a_turn(desk: Desk, command: str) -> None:
    turn_id = desk.doubt()
    decision = desk.ask("t") if command == "start" else desk.submit("m")
    assert [draft.type for draft in decision.drafts] == ["turn/end", "run/settled", "turn/admitted"]
    assert decision.drafts[0].data["turn_id"] == turn_id
    assert decision.drafts[-1].data["previous_root_turn_id"] == turn_id
    assert decision.turn is not None


def test_a_continuation_in_doubt_keeps_what_waits_waiting_until_somebody_wants_to_go_on(desk: Desk) -> None:
    turn_id = desk.doubt()
    data = {"message_id": "m1", "placement": "next_turn", "disposition": "followup", "content": content("one")}
    desk.put(Draft("message/accepted", {**data, "digest": digest_of({"content": content("one")})}))
    assert desk.successor() == Decision()
    decision = desk.submit("m2")
    assert [draft.type for draft in decision.drafts] == ["turn/end", "run/settled", "message/accepted"]
    assert decision.drafts[0].data["turn_id"] == turn_id
    following = desk.successor().turn
    assert following is not None
    assert following.message_id == "m1"


def test_what_is_asked_for_again_settles_nothing(desk: Desk) -> None:
    desk.whole(desk.submit("m").turn)
    desk.turn = 1
    [run_id] = [event.data["run_id"] for event in desk.events if event.type == "turn/start"]
    desk.go_on(run_id)
    assert desk.submit("m").drafts == []


# ---------------------------------------------------------------- any order of all of it

OPERATIONS: Final = ("start", "submit", "steer", "again", "retract", "begin", "take", "finish", "next", "restart")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5)), max_size=40))
def test_in_any_order_nothing_is_lost_or_delivered_twice_or_overtakes(asked: list[tuple[str, int]]) -> None:
    desk = Desk()
    running: RootTurn | None = None
    begun = False
    answered: dict[str, Any] = {}
    number = 0

    def submitted(message_id: str, placement: str) -> None:
        nonlocal running
        decision = desk.submit(message_id, f"text of {message_id}", placement)
        if message_id in answered:
            assert decision.reply == answered[message_id][1]
            assert decision.drafts == []
        answered[message_id] = placement, decision.reply
        running = decision.turn or running

    for operation, choice in asked:
        if operation == "start":
            number += 1
            if running is None and not desk.state.admissions.waiting():
                running = desk.ask(f"t{number}", "go").turn
            else:
                assert refused(lambda: desk.ask(f"t{number}", "go")) == "session_busy"  # noqa: B023
        elif operation in ("submit", "steer"):
            number += 1
            submitted(f"m{number}", "next_turn" if operation == "submit" else "current_turn")
        elif operation == "again" and answered:
            message_id = sorted(answered)[choice % len(answered)]
            submitted(message_id, answered[message_id][0])
        elif operation == "retract":
            number += 1
            desk.retract(f"x{number}", None if choice == 0 else desk.waiting[choice - 1 : choice])
        elif operation == "begin" and running is not None and not begun:
            desk.begin(running)
            begun = True
        elif operation == "take" and running is not None and begun:
            for item in desk.state.queue.steering((running.turn_id,))[:1]:
                desk.say(item.message_id, running)
        elif operation == "finish" and running is not None and begun:
            desk.finish(running)
            running, begun = None, False
        elif operation == "next":
            running = desk.successor().turn or running
        elif operation == "restart" and not begun:
            # The next host takes up what was admitted and not begun.
            desk.live, running = REST, None
            running = desk.successor().turn

    if running is not None:
        if not begun:
            desk.begin(running)
        desk.finish(running)
    while (decision := desk.successor()).turn is not None:
        desk.whole(decision.turn)
    assert_delivered_once(desk.state, desk.events)


def assert_delivered_once(state: State, events: list[Any]) -> None:
    """Each accepted message was said once or taken back, in order; the turns are one chain."""
    accepted = [event.data for event in events if event.type == "message/accepted"]
    admitted = [event.data for event in events if event.type == "turn/admitted"]
    said = [event.data["message_id"] for event in events if event.type == "user/message"]
    taken_back = [
        message_id for event in events if event.type == "message/retracted" for message_id in event.data["message_ids"]
    ]
    assert len(said) == len(set(said))
    assert not set(said) & set(taken_back)
    assert {data["message_id"] for data in accepted} <= {*said, *taken_back}
    assert not state.queue.waiting
    assert not state.admissions.open
    assert [data["previous_root_turn_id"] for data in admitted] == [None, *(data["turn_id"] for data in admitted)][
        : len(admitted)
    ]
    inputs = {data["message_id"]: data["input"] for data in admitted}
    for disposition in ("followup", "steering"):
        order = [data["message_id"] for data in accepted if data["disposition"] == disposition]
        delivered = [message_id for message_id in said if message_id in order]
        assert delivered == [message_id for message_id in order if message_id in said]
    for data in accepted:
        assert inputs.get(data["message_id"], {"content": data["content"]}) == {"content": data["content"]}


@pytest.mark.parametrize(
    "block",
    [
        {"x": 1},
        {"kind": 5},
        {"kind": None},
        {"kind": "text", "text": 5},
        {"kind": "image"},
        {"kind": "text", "text": "a", "ref": "x"},
    ],
)
def test_what_is_no_content_block_is_refused_before_anything_is_admitted(block: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        message_of([block], None, None)


@pytest.mark.parametrize(
    "block",
    [
        {"kind": "thinking", "text": "a"},
        {"kind": "tool_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"kind": "tool_result", "call_id": "c", "content": []},
    ],
)
def test_a_person_says_nothing_that_only_models_say(block: dict[str, Any]) -> None:
    said = {"kind": "text", "text": "a"}
    assert refused(lambda: message_of([said, block], None, None)) == "invalid_request"
    assert message_of([said, {"kind": "x-other"}], None, None)["content"][1] == {"kind": "x-other"}


def test_a_block_of_an_empty_kind_is_refused() -> None:
    assert refused(lambda: message_of([{"kind": "text", "text": "a"}, {"kind": ""}], None, None)) == "invalid_request"


def test_a_message_that_is_too_deep_is_refused() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    assert refused(lambda: message_of([{"kind": "text", "text": "a", "deep": deep}], None, None)) == "invalid_request"
    assert refused(lambda: message_of("a", [{"text": "a", "source": deep}], None)) == "invalid_request"
