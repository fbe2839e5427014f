"""Calls whose outcome is unknown: found with their arguments, looked at, run again, stated; on journals on the disk."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import maka
from maka.journal.codec import decode
from maka.journal.errors import JournalError
from maka.journal.events import Draft, Event
from maka.journal.state import State
from maka.journal.store import FileStore
from maka.journal.views.turn import Unknown
from maka.repair.session import open_session
from maka.runtime.continuation.failpoints import nowhere
from maka.runtime.continuation.outcomes import dispatches, reconciled, run_again, stated, unsettled
from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import SettleRefused
from maka.runtime.journals import OpenSession
from maka.runtime.outputs import store_in
from maka.runtime.recovery import reconcile_calls, rerun_calls
from maka.runtime.tools import LeftBehind, ToolContext, ToolFailed, ToolOutput
from maka.runtime.tools.write_file import WriteFile
from support.builder import Builder, digest
from support.folds import events, fold
from support.legal import assert_legal
from support.managed import data_of, files_of, go
from support.processes import Child

#: Unsettled ones stay so at once.
SHORT = ToolLimits(grace=0.05, shown=256)


class Looker:
    """A tool whose ``reconcile`` is a function of what it is given."""

    description = "for tests"
    parallel_safe = True

    def __init__(self, rule: Callable[..., Any], name: str = "tool", *, timeout: Any = 5.0, **values: Any) -> None:
        self.name = name
        self.recovery = values.get("recovery", "reconcile")
        self.parameters = values.get("parameters", {"type": "object"})
        self.timeout = timeout
        self.asked: list[tuple[dict[str, Any], str, ToolContext]] = []
        self.ran: list[tuple[dict[str, Any], str]] = []
        self._rule = rule

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.ran.append((arguments, context.operation_id))
        given: ToolOutput = await _result(self._rule(arguments, context))
        return given

    async def reconcile(self, arguments: dict[str, Any], operation_id: str, *, context: ToolContext) -> Any:
        self.asked.append((arguments, operation_id, context))
        return await _result(self._rule(arguments, context))


async def _result(value: Any) -> Any:
    return await value if asyncio.iscoroutine(value) else value


def says(output: Any) -> Callable[..., Any]:
    return lambda arguments, context: output


def killed(*call_ids: str, recovery: str = "reconcile", arguments: str = '{"n":1}', **header: Any) -> Builder:
    """A process died inside of these calls."""
    builder = Builder(**header).start().step().says("", call_ids, arguments)
    for call_id in call_ids:
        builder.call(call_id, arguments, recovery)
    return builder


def call_of(builder: Builder, *, operation_id: str | None = "op-1-c1", recovery: str = "reconcile") -> Unknown:
    [seq] = [event.seq for event in events(builder) if event.type == "tool/call"]
    return Unknown("t1", "r1", "c1", "tool", seq, operation_id, recovery)


@contextmanager
def opened(root: Path, **options: Any) -> Iterator[OpenSession]:
    with open_session("s1", root=root, **options) as writer:
        yield OpenSession("s1", writer.session_dir, writer)


async def reconcile(session: OpenSession, root: Path, *tools: Any, failpoint: Any = nowhere) -> int:
    return await reconcile_calls(session, tools, lambda: FileStore(root).read("s1"), failpoint=failpoint)


def recover(root: Path, *tools: Any, failpoint: Any = nowhere) -> int:
    with opened(root) as session:
        return go(reconcile(session, root, *tools, failpoint=failpoint))


def rerun(root: Path, *tools: Any, call_seqs: Any = range(1000)) -> list[Unknown]:
    with opened(root) as session:
        return go(rerun_calls(session, tools, lambda: FileStore(root).read("s1"), call_seqs=call_seqs))


def results(root: Path) -> list[dict[str, Any]]:
    """What the provider history has of the calls."""
    messages = maka.inspect("s1", root=root).messages()
    assert_legal(messages)
    return [block for message in messages if message["role"] == "tool" for block in message["content"]]


def texts(block: dict[str, Any]) -> str:
    return "".join(inner["text"] for inner in block["content"])


# ---------------------------------------------------------------- what is unsettled


def test_unknown_calls_are_unsettled_oldest_first_until_they_have_an_outcome() -> None:
    builder = killed("a", "b")
    for call_id in ("b", "a"):
        builder.result(call_id, state="unknown")
    builder.end_step().end()
    state = fold(builder)
    assert [call.call_id for call in unsettled(state)] == ["a", "b"]
    assert [call.call_id for call in unsettled(state, run_ids={"r1"})] == ["a", "b"]
    assert unsettled(state, run_ids={"r2"}) == []
    apply(state, builder, stated(state, "a", ok=True))
    assert [call.call_id for call in unsettled(state)] == ["b"]


def apply(state: State, builder: Builder, draft: Draft) -> None:
    """As the writer does it."""
    state.check(draft)
    builder.add(draft.type, draft.data)
    line = decode(builder.lines[-1], 0)
    assert line is not None
    state.apply(line)


# ---------------------------------------------------------------- what they were called with


def bare(builder: Builder, call_id: str, hashed: str, **changes: Any) -> int:
    """A tool/call that has its arguments in the block."""
    data = {**builder.ids, "step": builder.step_number, "call_id": call_id, "operation_id": "op-1-c1", "name": "tool"}
    data |= {"arguments_digest": digest(hashed), "recovery": "reconcile", **changes}
    return builder.add("tool/call", data)


def arguments_of(given: Iterable[Event], calls: list[Unknown]) -> dict[int, str]:
    return {seq: dispatched.arguments for seq, dispatched in dispatches(given, calls).items()}


def found(builder: Builder, **values: Any) -> list[str]:
    return list(arguments_of(events(builder), [call_of(builder, **values)]).values())


def test_arguments_stand_in_the_dispatch() -> None:
    builder = killed("c1", arguments='{"n":2}')
    assert arguments_of(iter(events(builder)), [call_of(builder)]) == {builder.seq - 1: '{"n":2}'}


@pytest.mark.parametrize("spelling", ["c1", " C1 "])
def test_else_in_the_block_that_asked_for_it(spelling: str) -> None:
    builder = Builder().start().step().says("", [spelling], '{"n":3}')
    bare(builder, "c1", '{"n":3}')
    assert found(builder) == ['{"n":3}']


def test_of_namesakes_it_is_the_block_with_the_digest() -> None:
    builder = Builder().start().step().says("", ["c1"], '{"n":1}').result("c1", state="error").end_step()
    builder.step(2).says("", ["c1"], '{"n":2}').result("c1", state="error").end_step()
    builder.step(3).says("", ["c1"], '{"n":3}')
    bare(builder, "c1", '{"n":2}')
    assert found(builder) == ['{"n":2}']


@pytest.mark.parametrize(
    "forged",
    [
        {"arguments": '{"n":9}'},  # others than were hashed
        {"arguments": 7},
        {"arguments_digest": digest('{"n":9}')},
        {"name": "another"},
        {"operation_id": "another"},
    ],
)
def test_arguments_that_are_not_those_on_record_are_left_out(forged: dict[str, Any]) -> None:
    builder = Builder().start().step().says("", ["c1"], '{"n":1}')
    bare(builder, "c1", '{"n":1}', **forged)
    assert found(builder) == []


def test_arguments_of_a_line_that_is_not_proven_are_left_out() -> None:
    builder = killed("c1")
    every = events(builder)
    every[-1].verified = False
    assert arguments_of(every, [call_of(builder)]) == {}


def test_a_block_of_another_turn_is_none_of_the_call() -> None:
    builder = Builder().start().step().says("", ["c1"], '{"n":1}').result("c1", state="error").end_step().end()
    builder.start().step().says("", ["other"])
    bare(builder, "c1", '{"n":1}')
    call = Unknown("t2", "r2", "c1", "tool", builder.seq - 1, "op-1-c1", "reconcile")
    assert arguments_of(events(builder), [call]) == {}


def test_a_call_whose_dispatch_was_lost_has_none() -> None:
    assert found(killed("c1"), operation_id=None) == []


def test_blocks_that_are_nonsense_harm_nothing() -> None:
    builder = Builder().start().step()
    odd = [7, {"kind": "tool_call"}, {"kind": "tool_call", "call_id": "c1", "name": "tool", "arguments": {}}]
    good = {"kind": "tool_call", "call_id": "c1", "name": "tool", "arguments": "{}"}
    message = {**builder.ids, "step": 1, "message_id": "a", "content": [*odd, good], "stop_reason": "tool_use"}
    builder.add("assistant/message", message)
    bare(builder, "c1", "{}")
    assert found(builder) == ["{}"]


# ---------------------------------------------------------------- reconciled


def test_a_call_that_was_killed_in_its_body_is_looked_at_and_stands_in_its_results_place(tmp_path: Path) -> None:
    builder = killed("c1", cwd=str(tmp_path))
    builder.write(tmp_path)
    tool = Looker(says(ToolOutput.of("it is there")))
    assert recover(tmp_path, tool) == 1

    [(arguments, operation_id, context)] = tool.asked
    assert (arguments, operation_id, context.operation_id) == ({"n": 1}, "op-1-c1", "op-1-c1")
    assert (context.call_id, context.turn_id, context.run_id, context.cwd) == ("c1", "t1", "r1", tmp_path)
    assert tool.ran == []
    [outcome] = data_of(tmp_path, "s1", "tool/outcome")
    assert (outcome["state"], outcome["is_error"], outcome["source"]) == ("ok", False, "reconciled")
    [result] = results(tmp_path)
    assert (result["state"], result["is_error"], texts(result)) == ("ok", False, "it is there")
    assert maka.inspect("s1", root=tmp_path).verdict == "healthy"

    once = files_of(tmp_path)
    assert recover(tmp_path, tool) == 0
    assert len(tool.asked) == 1
    assert files_of(tmp_path) == once


def test_a_known_failure_is_an_outcome_too(tmp_path: Path) -> None:
    killed("c1").write(tmp_path)
    failed = ToolOutput([{"kind": "text", "text": "it never was"}], "error", {"name": "N", "code": "C"})
    assert recover(tmp_path, Looker(says(failed))) == 1
    [result] = results(tmp_path)
    assert (result["state"], result["is_error"], texts(result)) == ("error", True, "it never was")


class OfTheContract(Looker):
    """With the two arguments of the contract and no more."""

    async def reconcile(self, arguments: dict[str, Any], operation_id: str) -> Any:  # type: ignore[override]
        return ToolOutput.of(f"{arguments['n']} {operation_id}")


class OfKeywords(Looker):
    async def reconcile(self, arguments: dict[str, Any], operation_id: str, **more: Any) -> Any:
        return ToolOutput.of(f"{arguments['n']} {operation_id} {more['context'].call_id}")


@pytest.mark.parametrize(("kind", "said"), [(OfTheContract, "1 op-1-c1"), (OfKeywords, "1 op-1-c1 c1")])
def test_the_context_is_given_to_those_that_take_it(kind: Any, said: str, tmp_path: Path) -> None:
    killed("c1").write(tmp_path)
    assert recover(tmp_path, kind(says(None))) == 1
    assert texts(results(tmp_path)[0]) == said


class Without:
    """A tool that cannot tell."""

    name, description, recovery, parallel_safe = "tool", "", "reconcile", True
    parameters: ClassVar[dict[str, Any]] = {"type": "object"}


@pytest.mark.parametrize("tools", [[], [Without()], [Looker(says(ToolOutput.of("x")), "another")]])
def test_nothing_is_read_where_there_is_nobody_to_ask(tools: list[Any], tmp_path: Path) -> None:
    killed("c1").write(tmp_path)

    def unread() -> Any:
        raise AssertionError

    with opened(tmp_path) as session:
        assert go(reconcile_calls(session, tools, unread)) == 0
    assert results(tmp_path)[0]["state"] == "unknown"


@pytest.mark.parametrize("recovery", ["read_only", "idempotent", "never"])
def test_only_calls_that_declared_it_are_looked_at(recovery: str, tmp_path: Path) -> None:
    killed("c1", recovery=recovery).write(tmp_path)
    tool = Looker(says(ToolOutput.of("x")))
    assert recover(tmp_path, tool) == 0
    assert tool.asked == []


def raises(error: BaseException) -> Callable[..., Any]:
    def rule(arguments: Any, context: Any) -> Any:
        raise error

    return rule


async def hangs(arguments: Any, context: Any) -> Any:
    await asyncio.Event().wait()


async def will_not_end(arguments: Any, context: Any) -> Any:
    until = asyncio.get_running_loop().time() + 0.25
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return ToolOutput.of("too late")


def asks(arguments: Any, context: ToolContext) -> Any:
    return context.ask("question", {"questions": []})


class NotAsync(Looker):
    def reconcile(self, *given: Any, **more: Any) -> Any:
        return ToolOutput.of("secret")


SECRET = "secret"
HOSTILE = {
    "raises": (Looker(raises(KeyError(SECRET))), "raised a KeyError"),
    "exits": (Looker(raises(SystemExit(SECRET))), "raised a SystemExit"),
    "raises what is no Exception": (Looker(raises(GeneratorExit(SECRET))), "raised a GeneratorExit"),
    "cancels itself": (Looker(raises(asyncio.CancelledError(SECRET))), "cancelled itself"),
    "fails": (Looker(raises(ToolFailed(SECRET))), "raised a ToolFailed"),
    "leaves something": (Looker(raises(LeftBehind(SECRET))), "LeftBehind"),
    "hangs": (Looker(hangs, timeout=0.02), "took longer than 0.02 s"),
    "will not end": (Looker(will_not_end, timeout=0.02), "took longer than 0.02 s"),
    "asks": (Looker(asks), "raised a RuntimeInteractionInvariantError"),
    "cannot tell": (Looker(says(None)), "could not tell"),
    "unknown": (Looker(says(ToolOutput([], "unknown"))), "could not tell"),
    "another state": (Looker(says(ToolOutput([], "fine"))), "no state that there is"),  # type: ignore[arg-type]
    "text": (Looker(says(SECRET)), "gave a str"),
    "text as content": (Looker(says(ToolOutput(SECRET))), "gave a ToolOutput"),  # type: ignore[arg-type]
    "no block": (Looker(says(ToolOutput([{"text": SECRET}]))), "cannot be recorded"),
    "a number that is none": (Looker(says(ToolOutput([{"kind": "x", "n": float("nan")}]))), "cannot be recorded"),
    "more than a line": (Looker(says(ToolOutput([{"kind": "x", "data": "y" * (16 << 20)}]))), "cannot be recorded"),
    "not async": (NotAsync(says(None)), "make it `async def`"),
    "other arguments": (Looker(says(ToolOutput.of("x")), parameters={"required": ["m"]}), "arguments on record"),
    "no schema": (Looker(says(ToolOutput.of("x")), parameters={"type": 7}), "arguments on record"),
    "no time": (Looker(says(ToolOutput.of("x")), timeout="soon"), "cannot be asked (TypeError)"),
}


@pytest.mark.parametrize(("tool", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_reconcile_leaves_it_unknown(
    tool: Looker, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call, store = call_of(killed("c1")), store_in(tmp_path)
    assert asyncio.run(reconciled(call, tool, '{"n":1}', cwd=tmp_path, store=store, limits=SHORT)) is None
    [said] = [record for record in caplog.records if "stays unknown" in record.getMessage()]
    assert said.levelno == logging.WARNING
    assert why in said.getMessage()
    assert SECRET not in caplog.text


def test_what_a_hostile_one_leaves_behind_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tool = Looker(will_not_end, timeout=0.02)
    call, store = call_of(killed("c1")), store_in(tmp_path)
    asyncio.run(reconciled(call, tool, "{}", cwd=tmp_path, store=store, limits=SHORT))
    assert "did not end within 0.05 s" in caplog.text


def test_a_huge_outcome_is_kept_beside_the_journal(tmp_path: Path) -> None:
    killed("c1").write(tmp_path)
    assert recover(tmp_path, Looker(says(ToolOutput.of("word " * 100_000)))) == 1
    [outcome] = data_of(tmp_path, "s1", "tool/outcome")
    [block] = outcome["content"]
    assert block["bytes"] == 500_000
    assert len(block["text"]) < 40_000
    blob = tmp_path / "sessions" / "s1" / "blobs" / block["ref"].removeprefix("sha256:")
    assert blob.read_text() == "word " * 100_000


def test_a_cancellation_goes_through_and_ends_the_look(tmp_path: Path) -> None:
    killed("c1").write(tmp_path)
    entered, ended = asyncio.Event(), list[bool]()

    async def rule(arguments: Any, context: ToolContext) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(context.cancelled.is_set())

    async def main(session: OpenSession) -> None:
        looking = asyncio.ensure_future(reconcile(session, tmp_path, Looker(rule)))
        await entered.wait()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    with opened(tmp_path) as session:
        go(main(session))
    assert ended == [True]
    assert data_of(tmp_path, "s1", "tool/outcome") == []


def test_arguments_that_were_forged_are_shown_to_no_tool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    builder = Builder().start().step().says("", ["c1"], '{"n":1}')
    bare(builder, "c1", '{"n":1}', arguments='{"n":9}')
    builder.write(tmp_path)
    tool = Looker(says(ToolOutput.of("x")))
    assert recover(tmp_path, tool) == 0
    assert tool.asked == []
    assert "is not on record, or was changed" in caplog.text


def test_each_is_durable_before_the_next_is_looked_at_oldest_first(tmp_path: Path) -> None:
    killed("a", "b", "c").write(tmp_path)
    seen: list[tuple[str, int]] = []

    def rule(arguments: Any, context: ToolContext) -> Any:
        seen.append((context.call_id, len(data_of(tmp_path, "s1", "tool/outcome"))))
        return ToolOutput.of("x") if context.call_id != "b" else None

    assert recover(tmp_path, Looker(rule)) == 2
    assert seen == [("a", 0), ("b", 1), ("c", 1)]


class Crash(Exception):
    """In place of a kill."""


@pytest.mark.parametrize(
    ("point", "recorded", "asked"),
    [("after_reconcile_executed", 0, ["a", "a", "b"]), ("after_reconcile_outcome_committed", 1, ["a", "b"])],
)
def test_a_crash_in_between_repeats_only_what_is_not_recorded(
    point: str, recorded: int, asked: list[str], tmp_path: Path
) -> None:
    killed("a", "b").write(tmp_path)
    seen: list[str] = []

    def rule(arguments: Any, context: ToolContext) -> Any:
        seen.append(context.call_id)
        return ToolOutput.of("x")

    async def crashes(reached: str) -> None:
        if reached == point:
            raise Crash

    with pytest.raises(Crash):
        recover(tmp_path, Looker(rule), failpoint=crashes)
    assert len(data_of(tmp_path, "s1", "tool/outcome")) == recorded
    recover(tmp_path, Looker(rule))
    assert seen == asked
    assert [outcome["call_id"] for outcome in data_of(tmp_path, "s1", "tool/outcome")] == ["a", "b"]


def test_what_somebody_stated_meanwhile_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed("c1").write(tmp_path)
    with opened(tmp_path) as session:

        def rule(arguments: Any, context: ToolContext) -> Any:
            session.journal.append(stated(session.journal.state, "c1", ok=False))
            return ToolOutput.of("x")

        assert go(reconcile(session, tmp_path, Looker(rule))) == 0
    assert [outcome["source"] for outcome in data_of(tmp_path, "s1", "tool/outcome")] == ["user"]
    assert "not taken by the journal" in caplog.text


def test_a_journal_that_fails_is_told(tmp_path: Path) -> None:
    path = killed("c1").write(tmp_path)
    with opened(tmp_path) as session:

        def rule(arguments: Any, context: ToolContext) -> Any:
            path.rename(path.with_suffix(".away"))
            return ToolOutput.of("x")

        with pytest.raises(JournalError):
            go(reconcile(session, tmp_path, Looker(rule)))


def test_a_hook_that_fails_is_told_as_a_failure_of_the_journal(tmp_path: Path) -> None:
    killed("c1").write(tmp_path)

    def hook(draft: Draft) -> Draft:
        raise KeyError("the hook")

    with opened(tmp_path, on_append=hook) as session, pytest.raises(JournalError, match=r"KeyError.*mend the hook"):
        go(reconcile(session, tmp_path, Looker(says(ToolOutput.of("x")))))


def test_where_the_session_has_moved_since_it_is_looked_where_the_call_ran(tmp_path: Path) -> None:
    builder = killed("c1", cwd="/then")
    builder.add("session/updated", {"patch": {"cwd": "/now"}})
    builder.write(tmp_path)
    tool = Looker(says(None))
    recover(tmp_path, tool)
    assert tool.asked[0][2].cwd == Path("/then")


# ---------------------------------------------------------------- a real tool, really killed

#: Writes a file as a turn does, and is killed where its last argument says.
WRITING = """
import asyncio, os, signal, sys
from pathlib import Path
import maka
from maka.journal.store import FileStore
from maka.runtime.conversation import Conversation
from maka.runtime.loop import Loop
from maka.runtime.scripted import Ask, ScriptedModel
from maka.runtime.tools.write_file import WriteFile

root, cwd, before = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "before"
replace = os.replace

def killed(source, target, **more):
    if "src_dir_fd" not in more:
        return replace(source, target, **more)
    if not before:
        replace(source, target, **more)
    print("ready", flush=True)
    signal.pause()

os.replace = killed
store = FileStore(root)
header = maka.SessionHeader(
    format=1, session_id="s1", created_by={"name": "t", "version": "1"}, cwd=cwd, backend="loop", model="m",
    permission_mode="bypass", tool_boundary="t1_after_preflight_v1",
)
with store.create(header) as journal:
    model = ScriptedModel([[Ask("write_file", {"path": "sub/note.txt", "content": "new"})], "Done."])
    asyncio.run(Loop(
        journal=journal, conversation=Conversation(store.read("s1")), model=model,
        session_dir=store.directory("s1"), tools=[WriteFile()],
    ).run_turn("Write it."))
"""


@pytest.mark.parametrize(
    ("when", "state", "held"), [("before", "error", "old"), ("after", "ok", "new")], ids=["before", "after"]
)
def test_a_write_that_was_killed_is_proven_either_way(when: str, state: str, held: str, tmp_path: Path) -> None:
    root, cwd = tmp_path / "root", tmp_path / "work"
    (cwd / "sub").mkdir(parents=True)
    (cwd / "sub/note.txt").write_text("old")
    with Child(WRITING, root, cwd, when) as child:
        assert child.line() == "ready"
        child.kill()
    assert recover(root, WriteFile()) == 1
    assert (cwd / "sub/note.txt").read_text() == held
    [result] = results(root)
    assert (result["state"], "sub/note.txt" in texts(result)) == (state, True)


# ---------------------------------------------------------------- run again


@pytest.mark.parametrize("recovery", ["read_only", "idempotent"])
def test_a_call_that_may_be_run_again_has_its_outcome_under_the_same_operation(recovery: str, tmp_path: Path) -> None:
    killed("c1", recovery=recovery).write(tmp_path)
    tool = Looker(says(ToolOutput.of("read it again")), recovery=recovery)
    assert rerun(tmp_path, tool) == []
    assert tool.ran == [({"n": 1}, "op-1-c1")]
    [outcome] = data_of(tmp_path, "s1", "tool/outcome")
    assert (outcome["state"], outcome["source"], outcome["operation_id"]) == ("ok", "rerun", "op-1-c1")
    assert texts(results(tmp_path)[0]) == "read it again"


def test_only_the_calls_that_are_named_are_run_again(tmp_path: Path) -> None:
    killed("a", "b", recovery="read_only").write(tmp_path)
    tool = Looker(says(ToolOutput.of("x")), recovery="read_only")
    with opened(tmp_path) as session:
        second = unsettled(session.journal.state)[1]
    rerun(tmp_path, tool, call_seqs=[second.call_seq])
    assert [operation_id for _, operation_id in tool.ran] == ["op-1-b"]


@pytest.mark.parametrize(
    ("then", "now"), [("never", "read_only"), ("reconcile", "idempotent"), ("read_only", "never")], ids=str
)
def test_what_was_not_or_is_no_longer_declared_is_not_run_again(
    then: str, now: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed("c1", recovery=then).write(tmp_path)
    tool = Looker(says(ToolOutput.of("x")), recovery=now)
    assert [call.call_id for call in rerun(tmp_path, tool)] == ["c1"]
    assert tool.ran == []
    assert "is not run again" in caplog.text


def again(tool: Looker, tmp_path: Path, arguments: str = '{"n":1}', **options: Any) -> Draft | None:
    call = call_of(killed("c1"), recovery="idempotent")
    store = store_in(tmp_path)
    return asyncio.run(run_again(call, tool, arguments, cwd=tmp_path, store=store, limits=SHORT, **options))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (raises(ToolFailed("no such place")), "no such place"),
        (raises(KeyError("x")), "KeyError"),
        (says("text"), "instead of blocks"),
        (says(ToolOutput([{"text": "x"}])), "cannot be recorded"),
    ],
)
def test_a_failure_of_the_second_run_is_the_outcome(rule: Any, words: str, tmp_path: Path) -> None:
    draft = again(Looker(rule, recovery="idempotent"), tmp_path)
    assert draft is not None
    assert (draft.data["state"], draft.data["source"]) == ("error", "rerun")
    assert words in draft.data["content"][0]["text"]


@pytest.mark.parametrize("rule", [hangs, raises(LeftBehind("pid 7")), says(ToolOutput([], "unknown"))])
def test_a_second_run_that_tells_nothing_leaves_it_unknown(
    rule: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert again(Looker(rule, timeout=0.02, recovery="idempotent"), tmp_path) is None
    assert "what came of that either" in caplog.text


def test_arguments_that_do_not_fit_any_more_are_not_run(tmp_path: Path) -> None:
    tool = Looker(says(ToolOutput.of("x")), recovery="idempotent", parameters={"required": ["m"]})
    assert again(tool, tmp_path) is None
    assert again(tool, tmp_path, "{not json") is None
    assert tool.ran == []


def test_what_a_second_run_leaves_behind_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert again(Looker(will_not_end, timeout=0.02, recovery="idempotent"), tmp_path) is None
    assert "left something behind: tool (c1) did not end within 0.05 s" in caplog.text


# ---------------------------------------------------------------- stated


def unknown(*call_ids: str) -> State:
    builder = killed(*call_ids)
    for call_id in call_ids:
        builder.result(call_id, state="unknown")
    return fold(builder.end_step().end("interrupted"))


@pytest.mark.parametrize("name", ["c1", "op-1-c1", "6"])
def test_a_person_names_a_call_by_what_they_see_of_it(name: str) -> None:
    state = unknown("c1")
    assert [call.call_seq for call in unsettled(state)] == [6]
    draft = stated(state, name, ok=True, text="I looked: it is there.")
    state.check(draft)
    assert (draft.type, draft.data["state"], draft.data["source"]) == ("tool/outcome", "ok", "user")
    assert draft.data["content"] == [{"kind": "text", "text": "I looked: it is there."}]


@pytest.mark.parametrize(("ok", "state", "word"), [(True, "ok", "succeeded"), (False, "error", "failed")])
def test_a_bare_word_of_a_person_is_put_into_a_sentence(ok: bool, state: str, word: str) -> None:
    data = stated(unknown("c1"), "c1", ok=ok).data
    assert (data["state"], data["is_error"]) == (state, not ok)
    assert word in data["content"][0]["text"]


def test_a_word_without_end_is_cut() -> None:
    [block] = stated(unknown("c1"), "c1", ok=True, text="x" * 10_000_000).data["content"]
    assert len(block["text"]) < 100_000


def refused(state: State, name: str) -> SettleRefused:
    with pytest.raises(SettleRefused) as caught:
        stated(state, name, ok=True)
    return caught.value


def test_a_name_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    error = refused(unknown("c1", "c2"), "c3")
    assert error.code == "call_unknown"
    assert "op-1-c1" in str(error)
    assert "op-1-c2" in str(error)
    assert "no call whose outcome is unknown" in str(refused(fold(Builder().tool_turn()), "c1"))
    assert "and 28 more" in str(refused(unknown(*(f"c{number}" for number in range(40))), "x"))


def test_a_name_of_several_is_refused_with_their_operations() -> None:
    builder = Builder()
    for _ in range(2):
        builder.start().step().says("", ["c1"])
        builder.call("c1")
        builder.result("c1", state="unknown").end_step().end()
    state = fold(builder)
    error = refused(state, "c1")
    assert error.code == "call_ambiguous"
    assert "op-1-c1" in str(error)
    assert "op-2-c1" in str(error)
    assert stated(state, "op-2-c1", ok=True).data["turn_id"] == "t2"


def test_a_call_whose_dispatch_was_lost_can_have_no_outcome() -> None:
    builder = Builder().start().step().says("", ["c1"])
    data = {**builder.ids, "step": 1, "call_id": "c1", "state": "unknown", "content": [], "is_error": True}
    builder.add("tool/result", data)
    state = fold(builder.end_step().end("interrupted"))
    error = refused(state, "c1")
    assert error.code == "call_unknown"
    assert "was lost" in str(error)
    assert "dispatch lost" in str(refused(state, "c2"))


def test_a_statement_is_the_first_and_the_last(tmp_path: Path) -> None:
    killed("c1").write(tmp_path)
    with opened(tmp_path) as session:
        session.journal.append(stated(session.journal.state, "c1", ok=False, text="It is not there."))
        again = refused(session.journal.state, "c1")
        assert again.code == "call_settled"
        assert "error (stated by a person), and that stands" in str(again)
    [result] = results(tmp_path)
    assert (result["state"], texts(result)) == ("error", "It is not there.")
