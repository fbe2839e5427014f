"""What a backend yields, as it stands in a real journal: what is written, what is told when, what is refused."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maka
from maka.journal.errors import InvalidEvent, JournalError, JournalWriteError
from maka.journal.events import Draft
from maka.journal.store import FileStore
from maka.journal.writer import JournalWriter
from maka.runtime.conversation import Conversation
from maka.runtime.ledger import Ledger
from maka.runtime.progress import beginning
from maka.runtime.session_events import KINDS, SessionEvent
from support.legal import assert_legal
from support.loops import MemoryJournal, header
from support.seeded_loop import run

COMPLETED = {"kind": "completed"}
STOPPED = {"kind": "aborted", "source": "user"}
FAILED = {"kind": "failed", "failure_class": "provider_network", "message": "gone"}
#: An event of a backend: its kind and its data.
Said = tuple[str, dict[str, Any]]


def text(value: str) -> dict[str, Any]:
    return {"kind": "text", "text": value}


def delta(value: str, message_id: str = "m", **more: Any) -> Said:
    return "text_delta", {"message_id": message_id, "text": value, **more}


def complete(value: str, message_id: str = "m", **more: Any) -> Said:
    return "text_complete", {"message_id": message_id, "text": value, **more}


def start(call_id: str, **more: Any) -> Said:
    return "tool_start", {"call_id": call_id, "name": "look", **more}


def result(call_id: str, state: str = "ok", **more: Any) -> Said:
    return "tool_result", {"call_id": call_id, "state": state, "content": [text(f"of {call_id}")], **more}


def message(message_id: str, *blocks: dict[str, Any], stop_reason: str = "end_turn", **more: Any) -> Said:
    return "assistant_message", {
        "message_id": message_id,
        "content": list(blocks),
        "stop_reason": stop_reason,
        **more,
    }


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"kind": "tool_call", "call_id": call_id, "name": "look", "arguments": arguments}


class Desk:
    """A ledger whose turn has begun, on a journal in a file or in memory; ``told`` is what a client was told."""

    def __init__(self, journal: Any, conversation: Conversation, **options: Any) -> None:
        ids = itertools.count(1)
        self.journal = journal
        self.conversation = conversation
        self.told: list[SessionEvent] = []
        self.ledger = Ledger(
            journal,
            conversation.observe,
            self.told.append,
            turn_id="t",
            run_id="r",
            new_id=lambda: f"id{next(ids)}",
            now=lambda: 1_790_000_000_000,
            **options,
        )
        drafts = beginning(
            conversation,
            turn=journal.state.turns.last + 1,
            turn_id="t",
            run_id="r",
            invocation_id="v",
            message_id="asked",
            content=[text("hello")],
            created_at=1_790_000_000_000,
        )
        self.ledger.begin(drafts)

    def say(self, *said: Said) -> None:
        for number, (kind, data) in enumerate(said):
            self.ledger.take(SessionEvent(kind, f"b{number}", "t", 0, data))

    def waits(self) -> bool:
        """Does something wait for the next barrier?"""
        return self.ledger.untold

    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]


def on_disk(directory: Path, said: Iterable[Said], reason: dict[str, Any], **options: Any) -> tuple[Any, Desk]:
    """A whole turn in a file, and what reading it gives. Its journal is healthy, its history legal."""
    store = FileStore(directory / "root")
    store.create(header(cwd=str(directory))).close()

    async def turn(journal: JournalWriter) -> Desk:
        desk = Desk(journal, Conversation(store.read("s1")), **options)
        desk.say(*said)
        desk.ledger.end(reason)
        desk.ledger.settle()
        await desk.ledger.barrier()
        return desk

    with JournalWriter.open(store.path("s1")) as journal:
        desk = asyncio.run(turn(journal))
    view = maka.inspect(store.path("s1"))
    assert view.verdict == "healthy"
    assert not [finding for finding in view.findings if finding.severity == "damage"]
    assert_legal(view.messages())
    assert view.messages() == desk.conversation.messages()
    for kind, type_, key in (("step_start", "step/start", "step"), ("step_end", "step/end", "step")):
        assert told(desk, kind, key) == [data[key] for data in of(view, type_)]
    for key in ("call_id", "state", "content"):
        assert told(desk, "tool_result", key) == [data[key] for data in of(view, "tool/result")]
    return view, desk


def told(desk: Desk, kind: str, key: str) -> list[Any]:
    return [event.data[key] for event in desk.told if event.kind == kind]


def types(view: Any) -> list[str]:
    """Of the turn, without its first two events and without previews."""
    skipped = ("session/header", "assistant/delta")
    return [event.type for event in view.events if event.type not in skipped][2:]


def of(view: Any, type_: str) -> list[dict[str, Any]]:
    return [event.data for event in view.events if event.type == type_]


def spoken(view: Any) -> list[tuple[str, list[Any]]]:
    """The history behind the user's first message, each block by its text or its call."""
    return [
        (part["role"], [block.get("text", block.get("call_id")) for block in part["content"]])
        for part in view.messages()[1:]
    ]


STEP = ["step/start", "assistant/message", "step/end"]
END = ["turn/end", "run/settled"]
WITH_TOOL = ["step/start", "assistant/message", "tool/call", "tool/result", "step/end"]


# ---------------------------------------------------------------- backends that say little


@pytest.mark.parametrize(
    ("said", "wanted", "history"),
    [
        ([], END, []),
        ([delta("a"), delta("b")], [*STEP, *END], [("assistant", ["ab"])]),
        ([delta("ab"), complete("abc")], [*STEP, *END], [("assistant", ["abc"])]),
        ([complete("whole")], [*STEP, *END], [("assistant", ["whole"])]),
        (
            [delta("a"), complete("A"), delta("b"), complete("B")],
            [*STEP, *END],
            [("assistant", ["A", "B"])],
        ),
        (
            [("thinking_delta", {"message_id": "m", "text": "h"}), delta("a"), complete("a")],
            [*STEP, *END],
            [("assistant", ["h", "a"])],
        ),
        (
            [complete("one", "m1"), complete("two", "m2")],
            ["step/start", "assistant/message", "assistant/message", "step/end", *END],
            [("assistant", ["one", "two"])],
        ),
        (
            [delta("let me"), start("c"), result("c"), delta("so"), complete("so")],
            [*WITH_TOOL, *STEP, *END],
            [("assistant", ["let me", "c"]), ("tool", ["c"]), ("assistant", ["so"])],
        ),
        (
            [start("c1"), result("c1"), start("c2"), result("c2")],
            [*WITH_TOOL, *WITH_TOOL, *END],
            [("assistant", ["c1"]), ("tool", ["c1"]), ("assistant", ["c2"]), ("tool", ["c2"])],
        ),
        (
            [complete("both"), start("c1"), start("c2"), result("c2"), result("c1")],
            [
                "step/start",
                *("assistant/message", "tool/call") * 2,
                *["tool/result"] * 2,
                *("step/end", *END),
            ],
            [("assistant", ["both", "c1"]), ("tool", ["c1"]), ("assistant", ["c2"]), ("tool", ["c2"])],
        ),
        (
            [start("c"), delta("meanwhile"), result("c"), delta(" more")],
            ["step/start", "assistant/message", "tool/call", "tool/result", "assistant/message", "step/end", *END],
            [("assistant", ["c"]), ("tool", ["c"]), ("assistant", ["meanwhile more"])],
        ),
        (
            [delta("a"), ("steering_message", {"message_id": "s", "content": [text("no, b")]}), delta("b", "m2")],
            [*STEP, "user/message", *STEP, *END],
            [("assistant", ["a"]), ("user", ["no, b"]), ("assistant", ["b"])],
        ),
        (
            [("step_start", {}), complete("one"), ("step_end", {}), ("step_start", {}), delta("two"), ("step_end", {})],
            [*STEP, *STEP, *END],
            [("assistant", ["one", "two"])],
        ),
        (
            [complete("before"), ("step_start", {}), complete("in it", "m2"), ("step_end", {})],
            [*STEP, *STEP, *END],
            [("assistant", ["before", "in it"])],
        ),
    ],
)
def test_pieces_become_steps_and_messages(
    said: list[Said], wanted: list[str], history: list[Any], tmp_path: Path
) -> None:
    view, desk = on_disk(tmp_path, said, COMPLETED)
    assert types(view) == wanted
    assert spoken(view) == history
    assert [data["step"] for data in of(view, "step/start")] == list(range(1, wanted.count("step/start") + 1))
    assert not of(view, "request/header")
    assert not [data for data in of(view, "assistant/message") if "interrupted" in data]
    assert desk.told[-1].data == {"stop_reason": "end_turn"}


def test_a_call_without_a_block_gets_one_and_its_dispatch(tmp_path: Path) -> None:
    view, _ = on_disk(
        tmp_path, [start("c", arguments='{"a": 1}', recovery="read_only"), result("c")], {"kind": "max_tokens"}
    )
    [said], [dispatch], [answer] = of(view, "assistant/message"), of(view, "tool/call"), of(view, "tool/result")
    assert said["stop_reason"] == "tool_use"
    assert said["content"] == [call("c", '{"a": 1}')]
    assert "arguments" not in dispatch
    assert (dispatch["recovery"], dispatch["name"]) == ("read_only", "look")
    assert answer["operation_id"] == dispatch["operation_id"]


def test_messages_of_one_name_are_told_apart(tmp_path: Path) -> None:
    view, desk = on_disk(tmp_path, [delta("a"), start("c"), result("c"), delta("b"), complete("b")], COMPLETED)
    first, second = (data["message_id"] for data in of(view, "assistant/message"))
    assert first == "m"
    assert second != "m"
    said = [event.data["message_id"] for event in desk.told if event.kind == "text_delta"]
    assert said == [first, second]


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ([{}], {"input_tokens": 3, "output_tokens": 1}),
        ([{}, {"reasoning_tokens": 5}], {"input_tokens": 6, "output_tokens": 2, "reasoning_tokens": 5}),
        ([{"message_id": "m"}, {"message_id": "m"}], {"input_tokens": 3, "output_tokens": 1}),
    ],
)
def test_token_counts_stand_with_their_message(counts: list[Any], wanted: dict[str, int], tmp_path: Path) -> None:
    said = [("token_usage", {"input_tokens": 3, "output_tokens": 1, **count}) for count in counts]
    view, desk = on_disk(tmp_path, [delta("a"), *said], COMPLETED)
    assert of(view, "assistant/message")[0]["usage"] == wanted
    assert [event.data for event in desk.told if event.kind == "token_usage"] == [wanted]


@pytest.mark.parametrize("reason", [COMPLETED, STOPPED])
def test_token_counts_without_a_message_are_kept(reason: dict[str, Any], tmp_path: Path) -> None:
    usage = {"input_tokens": 3, "output_tokens": 1}
    view, _ = on_disk(tmp_path, [start("c"), result("c"), ("token_usage", usage)], reason)
    assert [data.get("usage") for data in of(view, "assistant/message")] == [None, usage]
    assert of(view, "assistant/message")[1]["content"] == []


# ---------------------------------------------------------------- backends that say all


def test_whole_messages_and_steps_are_taken_as_they_are(tmp_path: Path) -> None:
    usage = {"input_tokens": 1, "output_tokens": 2}
    said: list[Said] = [
        ("step_start", {}),
        ("request_header", {"reason": "initial", "header": {"provider": "p", "model": "m"}}),
        delta("let"),
        message("m", text("let me"), call("a"), call("b"), stop_reason="tool_use", usage=usage),
        start("a", operation_id="op-a"),
        start("b", arguments='{"other":1}'),
        result("b"),
        result("a", operation_id="op-a"),
        ("step_end", {}),
        ("step_start", {}),
        message("n", text("done")),
        ("step_end", {}),
    ]
    view, desk = on_disk(tmp_path, said, COMPLETED)
    assert types(view) == [
        *("step/start", "request/header", "assistant/message"),
        *("tool/call", "tool/call", "tool/result", "tool/result", "step/end"),
        *(*STEP, *END),
    ]
    assert spoken(view) == [("assistant", ["let me", "a", "b"]), ("tool", ["a", "b"]), ("assistant", ["done"])]
    first, second = of(view, "tool/call")
    assert (first["operation_id"], "arguments" in first) == ("op-a", False)
    assert second["arguments"] == '{"other":1}'
    assert desk.kinds() == [
        *("text_delta", "step_start", "request_header", "text_complete", "token_usage"),
        *("tool_start", "tool_start", "tool_result", "tool_result", "step_end"),
        *("step_start", "text_complete", "step_end", "complete"),
    ]


def test_what_else_there_is_to_say(tmp_path: Path) -> None:
    plan = {"proposal_id": "p", "revision": 1, "title": "how", "steps": [{"id": "1", "title": "x", "description": ""}]}
    said: list[Said] = [
        ("provider_retry", {"attempt": 1, "delay": 0.5, "failure_class": "provider_network"}),
        ("plan_submitted", plan),
        ("cleanup_failed", {"text": "process 7 lives on"}),
    ]
    view, desk = on_disk(tmp_path, said, FAILED)
    [note], [proposed], [settled] = of(view, "session/note"), of(view, "plan/proposed"), of(view, "run/settled")
    assert note["kind"] == "retry"
    assert "provider_network" in note["text"]
    assert proposed == {"turn_id": "t", **plan}
    assert settled["cleanup"] == {"error": "process 7 lives on"}
    assert desk.kinds() == ["provider_retry", "plan_submitted", "error", "complete"]
    assert desk.told[-2].data == {"failure_class": "provider_network", "message": "gone"}


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("reason", [STOPPED, FAILED])
def test_an_end_in_the_middle_keeps_what_came(reason: dict[str, Any], tmp_path: Path) -> None:
    said = [delta("half a sen"), start("c1"), start("c2"), result("c2"), delta("and then", "m2")]
    view, desk = on_disk(tmp_path, said, reason)
    *_, last = of(view, "assistant/message")
    assert (last["interrupted"], last["content"]) == (True, [text("and then")])
    states = {data["call_id"]: (data["state"], data.get("call_seq")) for data in of(view, "tool/result")}
    dispatched = {event.data["call_id"]: event.seq for event in view.events if event.type == "tool/call"}
    assert states == {"c1": ("unknown", dispatched["c1"]), "c2": ("ok", None)}
    assert view.turns()[0]["status"] in ("aborted", "failed")
    assert ("abort" in desk.kinds()) == (reason is STOPPED)
    assert desk.kinds()[-1] == "complete"


def test_calls_that_were_never_started_are_cancelled(tmp_path: Path) -> None:
    view, _ = on_disk(tmp_path, [message("m", call("a"), call("b")), start("a")], STOPPED)
    first, second = of(view, "tool/result")
    assert (first["call_id"], first["state"]) == ("a", "unknown")
    assert (second["call_id"], second["state"]) == ("b", "cancelled")
    assert second["error"]["code"] == "TOOL_ABORTED_BEFORE_DISPATCH"
    assert types(view)[-4:] == ["step/end", "turn/end", "session/note", "run/settled"]


def test_the_end_is_one_batch_and_begins_with_what_it_is_given() -> None:
    async def turn() -> MemoryJournal:
        journal = MemoryJournal()
        desk = Desk(journal, Conversation([journal.append(header())]))
        desk.say(start("c"), delta("so far"))
        closure = {"interaction_id": "i", "outcome": {"kind": "closure", "reason": "turn_stopped"}}
        desk.ledger.stop_requested("stop", "user", "immediate")
        desk.ledger.end(STOPPED, before=[Draft("interaction/resolved", closure)], settle=True)
        await desk.ledger.barrier()
        return journal

    journal = asyncio.run(turn())
    batch = [(event.type, event.more) for event in journal.events[-7:]]
    assert batch == [
        ("interaction/resolved", 6),
        ("assistant/message", 5),
        ("tool/result", 4),
        ("step/end", 3),
        ("turn/end", 2),
        ("session/note", 1),
        ("run/settled", 0),
    ]


def test_a_response_that_the_journal_refuses_does_not_keep_the_turn_from_its_end(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.create(header()).close()

    def refuse(draft: Draft) -> Draft:
        if draft.type == "assistant/message":
            return Draft(draft.type, {**draft.data, "usage": "much"})
        return draft

    async def turn(journal: JournalWriter) -> None:
        desk = Desk(journal, Conversation(store.read("s1")))
        desk.say(delta("text"))
        with pytest.raises(InvalidEvent):
            desk.ledger.end(COMPLETED)
        assert not desk.ledger.sealed
        desk.ledger.end(FAILED, settle=True)
        await desk.ledger.barrier()

    with JournalWriter.open(store.path("s1"), on_append=refuse) as journal:
        asyncio.run(turn(journal))
    assert maka.inspect(store.path("s1")).turns()[0]["status"] == "failed"


# ---------------------------------------------------------------- after the end


def test_a_result_that_comes_after_the_end_is_the_outcome_of_its_call_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.create(header()).close()

    async def turn(journal: JournalWriter) -> None:
        desk = Desk(journal, Conversation(store.read("s1")))
        desk.say(start("c", operation_id="op"), start("d"), result("d"), start("e"))
        desk.ledger.end(STOPPED)
        await desk.ledger.barrier()
        assert not desk.waits()
        told = len(desk.told)
        late = [result("e", "unknown"), result("c", "error", operation_id="op"), result("c"), result("d"), delta("x")]
        desk.say(*late, ("complete", {"stop_reason": "end_turn"}), ("nonsense", {}), ("tool_result", {}))
        assert desk.waits()
        desk.say(("cleanup_failed", {"text": "it was slow"}))
        desk.ledger.settle()
        await desk.ledger.barrier()
        assert len(desk.told) == told

    with JournalWriter.open(store.path("s1")) as journal:
        asyncio.run(turn(journal))
    view = maka.inspect(store.path("s1"))
    assert view.verdict == "healthy"
    [outcome] = of(view, "tool/outcome")
    assert (outcome["call_id"], outcome["operation_id"], outcome["source"]) == ("c", "op", "late")
    assert (outcome["state"], outcome["is_error"]) == ("error", True)
    assert of(view, "run/settled")[0]["cleanup"] == {"error": "it was slow"}
    assert types(view)[-3:] == ["session/note", "tool/outcome", "run/settled"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("before", "said", "words"),
    [
        ([], ("nonsense", {}), "nothing that it may yield"),
        ([], ("complete", {"stop_reason": "end_turn"}), "nothing that it may yield"),
        ([], ("question_request", {"interaction_id": "i", "questions": []}), "nothing that it may yield"),
        ([], ("text_delta", {"text": "x"}), "without message_id"),
        ([], ("text_delta", {"message_id": "m", "text": None}), "text is of the wrong kind (NoneType)"),
        ([], ("text_delta", {"message_id": ["m"], "text": "x"}), "message_id is of the wrong kind (list)"),
        ([], ("text_delta", {"message_id": "m", "text": "x", "index": "0"}), "index is of the wrong kind"),
        ([], ("token_usage", {"input_tokens": "many", "output_tokens": 1}), "input_tokens is of the wrong kind"),
        ([], delta("x" * (16 << 20)), "longer than"),
        ([], complete("x" * (16 << 20)), "longer than"),
        ([], result("c"), "names the call c"),
        ([start("c"), result("c")], result("c"), "names the call c"),
        ([message("m", call("c"))], result("c"), "was never started"),
        ([message("m", call("c"))], result("c", "unknown"), "was never started"),
        ([], ("step_end", {}), "step must be positive"),
        ([("step_start", {})], ("step_start", {}), "out of order"),
        ([("step_start", {})], ("steering_message", {"message_id": "s", "content": []}), "inside step 1"),
        ([start("c")], ("steering_message", {"message_id": "s", "content": []}), "call c has no result"),
        ([message("m", text("a"))], message("x", {"kind": "text"}), "content[0].text"),
        ([], ("request_header", {"reason": "whim", "header": {}}), "whim"),
    ],
)
def test_what_cannot_be_right_is_refused_and_the_turn_goes_on(
    before: list[Said], said: Said, words: str, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "root")
    store.create(header()).close()

    async def turn(journal: JournalWriter) -> None:
        desk = Desk(journal, Conversation(store.read("s1")))
        desk.say(*before)
        with pytest.raises(InvalidEvent) as raised:
            desk.say(said)
        assert words in str(raised.value)
        desk.ledger.end(FAILED, settle=True)
        await desk.ledger.barrier()

    with JournalWriter.open(store.path("s1")) as journal:
        asyncio.run(turn(journal))
    assert maka.inspect(store.path("s1")).verdict == "healthy"


@pytest.mark.parametrize(
    "event",
    [
        "text",
        None,
        SessionEvent("text_delta", "1", "another turn", 0, {"message_id": "m", "text": "x"}),
        SessionEvent("text_delta", "1", "t", 0, None),  # type: ignore[arg-type]
        SessionEvent(["text_delta"], "1", "t", 0, {}),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_event_of_the_turn_is_refused(event: Any) -> None:
    async def turn() -> None:
        journal = MemoryJournal()
        desk = Desk(journal, Conversation([journal.append(header())]))
        with pytest.raises(InvalidEvent):
            desk.ledger.take(event)

    asyncio.run(turn())


def test_an_outcome_that_cannot_be_written_is_told_in_words_that_can(tmp_path: Path) -> None:
    nan = {"kind": "text", "text": "x", "n": float("nan")}
    view, desk = on_disk(
        tmp_path, [start("c"), ("tool_result", {"call_id": "c", "state": "ok", "content": [nan]})], COMPLETED
    )
    [answer] = of(view, "tool/result")
    assert (answer["state"], answer["error"]["code"]) == ("error", "TOOL_OUTPUT_INVALID")
    assert [event.data["state"] for event in desk.told if event.kind == "tool_result"] == ["error"]


@pytest.mark.parametrize("reason", [STOPPED, FAILED], ids=lambda reason: reason["kind"])
def test_what_the_end_closes_is_told_before_it(tmp_path: Path, reason: dict[str, Any]) -> None:
    said = [
        ("step_start", {}),
        message("m", text("I look."), call("c1"), call("c2"), call("c3"), stop_reason="tool_use"),
        start("c1"),
        start("c2"),
        result("c1"),
    ]
    _, desk = on_disk(tmp_path, said, reason)
    end = ["abort" if reason is STOPPED else "error", "complete"]
    assert desk.kinds()[-6:] == ["tool_result", "tool_result", "tool_result", "step_end", *end]
    assert told(desk, "tool_result", "state") == ["ok", "unknown", "cancelled"]
    assert told(desk, "tool_result", "is_error") == [False, True, True]


# ---------------------------------------------------------------- durable, then told


def test_deltas_are_told_at_once_and_the_rest_behind_the_barrier() -> None:
    async def turn() -> None:
        journal = MemoryJournal()
        desk = Desk(journal, Conversation([journal.append(header())]))
        await desk.ledger.barrier()
        desk.say(("step_start", {}))
        await desk.ledger.barrier()
        assert not desk.waits()
        desk.say(delta("a"))
        assert desk.kinds() == ["step_start", "text_delta"]
        assert not desk.waits()
        desk.say(start("c"))
        assert desk.kinds() == ["step_start", "text_delta"]
        assert desk.waits()
        await desk.ledger.barrier()
        assert desk.kinds() == ["step_start", "text_delta", "text_complete", "tool_start"]
        assert not desk.waits()
        assert [event.id for event in desk.told] == sorted({event.id for event in desk.told})

    asyncio.run(turn())


@pytest.mark.parametrize("live", [True, False])
def test_live_text_is_journalled_joined_and_its_timer_ends_with_its_message(live: bool) -> None:
    async def turn() -> list[dict[str, Any]]:
        journal = MemoryJournal()
        desk = Desk(journal, Conversation([journal.append(header())]), live_text=live, live_seconds=0.02)
        desk.say(delta("a"), delta("b"), delta("c"))
        await asyncio.sleep(0.05)
        desk.say(delta("d"), start("c"), delta("e"), complete("e f", "m"))
        desk.ledger.end(STOPPED)
        await asyncio.sleep(0.05)
        return journal.of("assistant/delta")

    pieces = [(data["step"], data["text"]) for data in run(turn(), 1)]
    assert pieces[:3] == ([(1, "a"), (1, "bc"), (1, "d")] if live else [])
    assert "".join(text for _, text in pieces[3:]) == ("e" if live else "")


def test_after_a_failed_barrier_nothing_is_taken() -> None:
    async def turn() -> None:
        error = JournalWriteError("no room", errno=28)
        journal = MemoryJournal(lambda journal: error)
        desk = Desk(journal, Conversation([journal.append(header())]))
        with pytest.raises(JournalWriteError):
            await desk.ledger.barrier()
        assert desk.ledger.failure is error
        acts: list[Callable[[], None]] = [
            lambda: desk.say(start("c")),
            lambda: desk.ledger.end(FAILED),
            desk.ledger.settle,
        ]
        for act in acts:
            with pytest.raises(JournalError) as raised:
                act()
            assert raised.value is error
        assert not desk.told

    asyncio.run(turn())


# ---------------------------------------------------------------- whatever comes

_CALLS = st.sampled_from(["a", "b"])
_TEXTS = st.sampled_from(["x", "", "long"])
_MESSAGES = st.sampled_from(["m", "n"])
_SAID: st.SearchStrategy[Said] = st.one_of(
    st.builds(delta, _TEXTS, _MESSAGES),
    st.builds(complete, _TEXTS, _MESSAGES),
    st.builds(lambda name, value: ("thinking_delta", {"message_id": name, "text": value}), _MESSAGES, _TEXTS),
    st.builds(start, _CALLS),
    st.builds(result, _CALLS, st.sampled_from(["ok", "error", "unknown", "cancelled"])),
    st.just(("step_start", {})),
    st.just(("step_end", {})),
    st.just(("token_usage", {"input_tokens": 1, "output_tokens": 1})),
    st.builds(lambda name, calls: message(name, *map(call, calls)), _MESSAGES, st.lists(_CALLS, max_size=2)),
    st.just(("steering_message", {"message_id": "s", "content": [text("steer")]})),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_SAID, max_size=14), st.sampled_from([COMPLETED, STOPPED, FAILED]))
def test_whatever_a_backend_yields_the_journal_is_whole(said: list[Said], reason: dict[str, Any]) -> None:
    """What is refused leaves no trace; what was taken reads as a healthy journal with a legal history."""
    with tempfile.TemporaryDirectory() as directory:
        store = FileStore(Path(directory) / "root")
        store.create(header()).close()

        async def turn(journal: JournalWriter) -> Desk:
            desk = Desk(journal, Conversation(store.read("s1")))
            for one in said:
                try:
                    desk.say(one)
                except InvalidEvent:
                    continue
                assert_legal(desk.conversation.messages())
            desk.ledger.end(reason, settle=True)
            await desk.ledger.barrier()
            return desk

        with JournalWriter.open(store.path("s1")) as journal:
            desk = asyncio.run(turn(journal))
        view = maka.inspect(store.path("s1"))
        assert view.verdict == "healthy"
        assert not [finding for finding in view.findings if finding.severity in ("damage", "warning")]
        assert_legal(view.messages())
        assert desk.kinds().count("complete") == 1


def test_each_kind_is_translated_or_the_drivers() -> None:
    drivers = {"error", "abort", "complete", "question_request", "permission_request", "sandbox_boundary_request"}

    async def turn() -> set[str]:
        journal = MemoryJournal()
        desk = Desk(journal, Conversation([journal.append(header())]))
        refused = set()
        for kind, keys in KINDS.items():
            try:
                desk.say((kind, dict.fromkeys(keys, "")))
            except InvalidEvent as error:
                if "nothing that it may yield" in str(error):
                    refused.add(kind)
        return refused

    assert asyncio.run(turn()) == drivers
