"""A session of three runs of one lineage, each of its lines lost in turn: once it is salvaged, it goes on."""

import asyncio
import shutil
from pathlib import Path

import pytest

import maka
from maka.repair.apply import repair
from maka.runtime.scripted import Ask, Fail
from support.continued import Order, Stage, looping
from support.legal import assert_legal
from support.managed import told


async def three_runs(stage: Stage) -> None:
    """A turn, one that fails behind a call, and two continuations of that, the last of which completes."""
    app = looping("hello", [Ask("order", {})], Fail("provider_quota"), Fail("provider_quota"), "done", tools=[Order()])
    async with stage.life(app) as manager:
        await manager.create(session_id="s", cwd=stage.work)
        await told(manager.send("s", "hi"))
        await told(manager.send("s", "Order chairs."))
        for _ in range(2):
            await told(manager.resume_safe_boundary_continuation(await stage.continuation(manager)))


async def goes_on(stage: Stage) -> None:
    """Recovery leaves nothing to be repaired, a second one writes nothing, and a message is answered."""
    async with stage.life(looping("answer", tools=[Order()])) as manager:
        await manager.recover("s")
        recovered = stage.journal.read_bytes()
        await manager.recover("s")
        assert stage.journal.read_bytes() == recovered
        view = maka.inspect(stage.journal)
        assert view.verdict == "healthy"
        assert {claim["state"] for claim in view.continuations()} <= {"settled", "started_indeterminate"}
        await told(stream := manager.send("s", "and now?"))
        assert stream.reason == {"kind": "completed"}
        for claim in view.continuations():
            if (source := claim["source"]["run_id"]) in {run["run_id"] for run in view.runs()}:
                plan = await stage.planned(manager, source_run_id=source)
                assert plan.disposition == "park", "nothing is done twice"
    view = maka.inspect(stage.journal)
    assert view.verdict == "healthy"
    assert len({turn["turn"] for turn in view.turns()}) == len(view.turns())
    assert_legal(view.messages())


@pytest.mark.parametrize("whole", [True, False])
def test_whichever_line_is_lost(tmp_path: Path, whole: bool) -> None:
    stage = Stage(tmp_path)
    asyncio.run(three_runs(stage))
    built = stage.root
    count = len(stage.types())
    assert stage.types().count("continuation/claim") == 2
    for number in range(1, count):
        stage.root = tmp_path / f"lost-{number}"
        shutil.copytree(built, stage.root)
        if not whole:
            lines = stage.journal.read_bytes().splitlines(keepends=True)
            stage.restore(b"".join(lines[: number + 2]))
        stage.damage(number)
        assert repair(stage.journal, salvage=True).verdict_after == "healthy"
        asyncio.run(goes_on(stage))
