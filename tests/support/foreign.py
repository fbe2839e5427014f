"""A foreign file, read and folded; every event that an import would write is checked as a writer checks it."""

import json
import os
from pathlib import Path
from typing import Any

import attrs

from maka.journal import export, legality
from maka.journal.codec import check_shape, serialize
from maka.journal.events import Draft, Event
from maka.journal.foreign import reading
from maka.journal.foreign.conversion import Batch
from maka.journal.foreign.findings import Report
from maka.journal.foreign.records import MAIN
from maka.journal.history import History
from maka.journal.source import BytesSource
from maka.journal.state import State

#: Real files of these tools, in folders by format; only whoever has some sets it.
REAL = os.environ.get("MAKA_FOREIGN")


@attrs.define
class Thread:
    """``history`` has what the thread itself says, ``whole`` also what stands before its fork, as ``before`` has it."""

    header: dict[str, Any]
    state: State
    history: History
    drafts: list[Draft]
    times: list[int]
    fork: Any
    before: list[Draft]
    whole: History

    def texts(self) -> list[str]:
        """What a model is told, text by text."""
        messages = self.history.messages()
        return [block["text"] for message in messages for block in message["content"] if block["kind"] == "text"]

    def results(self) -> list[str]:
        """What a model is told of its calls, state by state."""
        return [
            block["state"]
            for message in self.history.messages()
            for block in message["content"]
            if block["kind"] == "tool_result"
        ]

    def statuses(self) -> list[str]:
        return [turn["status"] for turn in self.state.turn_rows()]

    def types(self) -> list[str]:
        return [draft.type for draft in self.drafts]

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [draft.data for draft in self.drafts if draft.type == type_]


@attrs.define
class Folded:
    report: Report
    threads: dict[str, Thread]

    @property
    def main(self) -> Thread:
        return self.threads[MAIN]

    def codes(self) -> list[str]:
        return sorted(finding.code for finding in self.report.findings)

    def found(self, code: str) -> list[tuple[int | None, int | None]]:
        """Lines, and those that they have to do with."""
        return [(found.line, found.related) for found in self.report.findings if found.code == code]  # type: ignore[attr-defined]


def folded(data: bytes | list[Any], format: str, name: str = "file.jsonl") -> Folded:
    if isinstance(data, list):
        data = b"".join(json.dumps(line).encode() + b"\n" for line in data)
    report = Report()
    threads: dict[str, Thread] = {}
    for batch in reading.batches(BytesSource(data), format, report, name):
        thread = threads.get(batch.thread)
        if thread is None:
            thread = threads[batch.thread] = _opened(batch, threads)
        for draft in batch.drafts:
            if thread.drafts:
                # The header gets its ids from whoever writes it.
                check_shape(serialize(draft)[0])
                thread.state.check(draft)
            event = Event(len(thread.drafts), batch.ts, draft.type, draft.data, "", draft.ignorable)
            thread.state.apply(event)
            thread.history.apply(event)
            thread.whole.apply(event)
            thread.drafts.append(draft)
            thread.times.append(batch.ts)
    for thread in threads.values():
        assert_legal(thread.history.messages())
        assert_legal(thread.whole.messages())
    return Folded(report, threads)


def _opened(batch: Batch, threads: dict[str, Thread]) -> Thread:
    """A thread, with what a fork begins with."""
    before: list[Draft] = []
    if batch.fork is not None:
        parent = threads[batch.fork.thread]
        before = [*parent.before, *parent.drafts[: batch.fork.seq + 1]]
    thread = Thread(batch.drafts[0].data, State(), History(), [], [], batch.fork, before, History())
    for seq, draft in enumerate(before):
        event = Event(seq, batch.ts, draft.type, draft.data, "", draft.ignorable)
        thread.state.inherit(event)
        thread.whole.apply(event)
    return thread


def assert_legal(messages: list[Any]) -> None:
    """In each form that a provider takes."""
    assert legality.anthropic(export.anthropic(messages)) == []
    assert legality.openai_chat(export.openai_chat(messages)) == []
    assert legality.openai_responses(export.openai_responses(messages)) == []


def real(format: str) -> list[Path]:
    """The real files of a format, where there are some."""
    return [] if REAL is None else sorted(path for path in (Path(REAL) / format).iterdir() if path.is_file())
