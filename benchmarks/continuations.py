"""Going on again and again: 200 continuations of one run in one session, each of which fails at once.

None of them adds a message, so a plan at the end of such a chain replays as much as one at its beginning. What it
checks is measured with the replay rendered before; then the whole plan, which lists the runs of its boundary too. In a
second chain each continuation adds a call and its result: there the plan is held against the messages that it replays,
and against the journal's reading, without which nothing is planned. Sizes are what one continuation adds.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from _bench import Report, Row, Settings, Target, interleaved, middle, ratio, run, timed

from maka.journal.history import Replay
from maka.journal.reader import JOURNAL
from maka.journal.snapshot import SNAPSHOT
from maka.journal.store import FileStore
from maka.runtime.app import App
from maka.runtime.backends.scripted import Part, Tool, scripted_backend
from maka.runtime.continuation.plan import ContinuationPlan, Facts, plan
from maka.runtime.continuation.safety import SafetyObservation
from maka.runtime.conversation import Conversation
from maka.runtime.kernel.stream import TurnStream
from maka.runtime.opening import facts_of
from maka.runtime.scripted import Fail
from maka.runtime.sessions import SessionManager

#: Plans that are measured together.
AT_ONCE = 20
SEEN = SafetyObservation(
    workspace_identity="workspace", background_operations_settled=True, available_tool_names=("look",)
)
BUSY = SafetyObservation(
    workspace_identity="workspace", background_operations_settled=False, available_tool_names=("look",)
)


class Inspector:
    async def inspect_continuation_safety(self, session_id: str) -> SafetyObservation:
        return SEEN


async def read(stream: TurnStream) -> None:
    async for _ in stream:
        pass


async def chain(root: Path, parts: list[Part], lengths: list[int]) -> dict[int, Path]:
    """A session whose run is continued again and again; a copy of its directory at each of these lengths."""
    app = App(
        backends={"scripted": scripted_backend(lambda _: parts)},
        default_backend="scripted",
        permission_mode="bypass",
        safety_inspector=Inspector(),
    )
    copies = {}
    async with SessionManager(root, app=app) as manager:
        await manager.create(session_id="bench", cwd=root)
        await read(manager.send("bench", "Go on until it is done."))
        for length in range(1, lengths[-1] + 1):
            planned = await manager.plan_safe_boundary_continuation("bench")
            await read(manager.resume_safe_boundary_continuation(planned))
            if length in lengths:
                await manager.kernel.release("bench")
                copies[length] = root / f"after-{length}"
                shutil.copytree(FileStore(root).path("bench").parent, copies[length])
    return copies


class Rendered(Conversation):
    """One whose replay is there already. Nothing else of it is asked in a plan but what it holds of runs."""

    def __init__(self, whole: Conversation, run_id: str) -> None:
        self.__dict__.update(whole.__dict__)
        self._rendered = whole.replay(run_id)

    def replay(self, run_id: str) -> Replay:
        return self._rendered


def rendered(facts: Facts) -> Facts:
    newest = facts.state.runs.newest
    assert newest is not None
    return Facts(facts.session_id, facts.state, Rendered(facts.conversation, newest))


def planned(facts: Facts, observation: SafetyObservation) -> ContinuationPlan:
    ids = (f"new-{number}" for number in count())
    return plan(facts, source_run_id=None, observation=observation, new_id=ids.__next__)


def seconds(action: Callable[[], object]) -> float:
    """For one of ``AT_ONCE``."""
    return timed(lambda: [action() for _ in range(AT_ONCE)]) / AT_ONCE


def measure(settings: Settings) -> Report:
    # Each run fails, and would be told.
    logging.disable()
    short, long = 2, settings.size(200, 4)
    roots = settings.place / "same", settings.place / "grows"
    for root in roots:
        root.mkdir()
    quiet: list[Part] = [Fail()]
    looking: list[Part] = [Tool("look", {"what": "the next page"}, "a page of text " * 20), Fail()]
    same = asyncio.run(chain(roots[0], quiet, [short - 1, short, long - 1, long]))
    grows = asyncio.run(chain(roots[1], looking, [long // 10 or 1, long]))
    facts = {length: facts_of(same[length] / JOURNAL) for length in (short, long)}
    grown = {length: facts_of(copy / JOURNAL) for length, copy in grows.items()}
    cases: dict[str, Callable[[], float]] = {}
    for length, session in facts.items():
        assert planned(session, SEEN).disposition == "continue"
        assert planned(session, BUSY).rejection_reasons == ("background_operation_pending",)
        cases[f"checks {length}"] = partial(seconds, partial(planned, rendered(session), BUSY))
        cases[f"plan {length}"] = partial(seconds, partial(planned, session, SEEN))
    messages = {}
    for length, session in grown.items():
        continuation = planned(session, SEEN).continuation
        assert continuation is not None
        messages[length] = len(continuation.replay)
        cases[f"grown {length}"] = partial(_each, session, messages[length])
    few, many = sorted(messages)
    cases["read"] = lambda: timed(lambda: facts_of(grows[many] / JOURNAL))
    cases["whole"] = partial(seconds, partial(planned, grown[many], SEEN))
    figures = interleaved(cases, settings.rounds)
    rows = [
        _row(
            figures,
            f"what a plan checks, {long} continuations deep",
            f"checks {long}",
            f"{short} deep",
            f"checks {short}",
            Target(high=1.5),
        ),
        _row(
            figures,
            f"a whole plan, {long} continuations deep",
            f"plan {long}",
            f"{short} deep, the same messages",
            f"plan {short}",
        ),
        _row(
            figures,
            f"a plan, for each of {messages[many]} replayed messages",
            f"grown {many}",
            f"of {messages[few]}",
            f"grown {few}",
            Target(high=1.2),
        ),
        _row(
            figures, f"a plan over {messages[many]} messages", "whole", "reading its journal", "read", Target(high=0.1)
        ),
        *_sizes(same, short, long),
    ]
    note = "A claim lists every run of its boundary: the last one's line is longer than the first one's."
    return Report("Going on again and again", rows, [note])


def _each(session: Facts, messages: int) -> float:
    """Seconds of a plan for each message that it replays."""
    return seconds(partial(planned, session, SEEN)) / messages


def _sizes(copies: dict[int, Path], short: int, long: int) -> list[Row]:
    """What the last continuation of a chain has added to the journal and to the snapshot."""
    rows = []
    for what, name, target in (("journal", JOURNAL, Target()), ("snapshot", SNAPSHOT, Target(high=1.2))):
        last, second = (
            (copies[length] / name).stat().st_size - (copies[length - 1] / name).stat().st_size
            for length in (long, short)
        )
        rows.append(
            Row(
                f"bytes of the {what} for continuation {long}",
                f"{last:,}",
                f"for {short}: {second:,}",
                last / second,
                target,
            )
        )
    return rows


def _row(
    figures: dict[str, list[float]], what: str, ours: str, against: str, baseline: str, target: Target | None = None
) -> Row:
    def shown(case: str) -> str:
        return f"{1e6 * middle(figures, case):,.1f} µs"

    return Row(what, shown(ours), f"{against}: {shown(baseline)}", ratio(figures, ours, baseline), target or Target())


if __name__ == "__main__":
    run(__doc__, measure)
