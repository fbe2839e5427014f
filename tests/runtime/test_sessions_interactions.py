"""Questions and permissions by a manager: answered, also after a restart; who is asked in which permission mode."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import maka
from maka.runtime.app import App
from maka.runtime.backends.base import SendInput
from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import Boundary, Do, Never, Permission, Question
from maka.runtime.errors import InteractionRefused
from maka.runtime.scripted import Ask, ScriptedModel
from maka.runtime.sessions import SessionManager
from maka.runtime.tools.ask_user import AskUser
from maka.runtime.tools.base import Tool
from maka.runtime.tools.command import Command
from maka.runtime.tools.write_file import WriteFile
from support.loops import FakeTool
from support.managed import data_of, go, managing, playing, said, told, until
from support.processes import Child

YES = {"kind": "question_answer", "answers": ["Yes"]}
NO = {"kind": "question_answer", "answers": ["No"]}
ALLOW = {"kind": "permission_answer", "decision": "allow"}
DENY = {"kind": "permission_answer", "decision": "deny"}


def test_a_question_waits_is_listed_and_its_answer_stands_before_the_run_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Question("Go on?")])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            asked = await until(stream, "question_request")
            interaction_id = asked.data["interaction_id"]
            [requested] = data_of(tmp_path, "s", "interaction/requested")
            assert requested["interaction_id"] == interaction_id
            [row] = await manager.pending("s")
            assert (row["interaction_id"], row["kind"], row["status"]) == (interaction_id, "question", "pending")
            assert row["request"]["questions"] == asked.data["questions"]
            assert (await manager.interaction("s", interaction_id)) == row

            answered = await manager.answer("s", interaction_id, YES)
            assert (answered["status"], answered["outcome"]) == ("answered", YES)
            assert data_of(tmp_path, "s", "interaction/resolved")[0]["outcome"] == YES
            assert await manager.pending("s") == []
            assert await manager.interaction("s", interaction_id) == answered
            assert '"Yes"' in said(await told(stream))[0]

    go(main())


@pytest.mark.parametrize(
    ("part", "answer"),
    [(Permission("t"), DENY), (Boundary({"network": True}), {"kind": "sandbox_boundary_decision", "decision": "deny"})],
    ids=["permission", "boundary"],
)
def test_permissions_and_boundaries_are_answered_alike(tmp_path: Path, part: Any, answer: dict[str, Any]) -> None:
    async def main() -> None:
        script = playing([part])
        async with managing(tmp_path, script) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            while not (pending := await manager.pending("s")):
                await anext(stream)
            await manager.answer("s", pending[0]["interaction_id"], answer)
            await told(stream)
            assert script.built[0].outcomes == [answer]

    go(main())


def test_the_same_answer_again_is_fine_and_another_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Question("Go on?"), Never()])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            interaction_id = (await until(stream, "question_request")).data["interaction_id"]
            first = await manager.answer("s", interaction_id, YES)
            await same(manager, interaction_id, first)
        async with managing(tmp_path, playing()) as manager:
            await same(manager, interaction_id, first)
            with pytest.raises(InteractionRefused) as caught:
                await manager.answer("s", "i-none", YES)
            assert caught.value.code == "not_found"
        assert len(data_of(tmp_path, "s", "interaction/resolved")) == 1

    async def same(manager: SessionManager, interaction_id: str, first: dict[str, Any]) -> None:
        assert await manager.answer("s", interaction_id, YES) == first
        with pytest.raises(InteractionRefused) as caught:
            await manager.answer("s", interaction_id, NO)
        assert caught.value.code == "already_resolved"

    go(main())


def test_a_kind_of_question_that_there_is_not_is_refused_and_the_kinds_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        caught: list[InteractionRefused] = []

        async def misspelt(given: SendInput) -> None:
            kinds: list[Any] = ["qestion", None, []]
            for kind in kinds:
                with pytest.raises(
                    InteractionRefused, match="ask one of question, permission, sandbox_boundary"
                ) as error:
                    await given.interactions.ask(kind, {})
                caught.append(error.value)

        async with managing(tmp_path, playing([Do(misspelt), "well"])) as manager:
            await manager.create(session_id="s")
            assert said(await told(manager.send("s", "go"))) == ["well"]
        assert [error.code for error in caught] == ["invalid_request"] * 3
        assert "'qestion'" in str(caught[0])

    go(main())


ASKING = """
import asyncio, sys
from pathlib import Path
from maka.runtime.backends.scripted import Question
from support.managed import managing, playing, until

async def main():
    async with managing(Path(sys.argv[1]), playing([Question("Go on?")])) as manager:
        await manager.create(session_id="s")
        asked = await until(manager.send("s", "go"), "question_request")
        print(asked.data["interaction_id"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_question_of_a_process_that_was_killed_is_closed_and_takes_no_answer(tmp_path: Path) -> None:
    with Child(ASKING, tmp_path) as child:
        interaction_id = child.line()
        assert interaction_id
        child.kill()

    async def main() -> None:
        async with managing(tmp_path, playing("next")) as manager:
            # The first thing that anybody wants of the session closes what the crash left open.
            with pytest.raises(InteractionRefused) as caught:
                await manager.answer("s", interaction_id, YES)
            assert caught.value.code == "already_resolved"
            row = await manager.interaction("s", interaction_id)
            assert (row["status"], row["outcome"]) == ("closed", {"kind": "closure", "reason": "host_restarted"})
            assert await manager.pending("s") == []
            assert said(await told(manager.send("s", "go on"))) == ["next"]
        first, second = data_of(tmp_path, "s", "turn/end")
        assert (first["reason"]["kind"], second["reason"]["kind"]) == ("interrupted", "completed")

    go(main())


def test_a_question_is_closed_with_the_turn_that_is_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Question("Go on?")])) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            interaction_id = (await until(stream, "question_request")).data["interaction_id"]
            await manager.stop("s")
            with pytest.raises(InteractionRefused) as caught:
                await manager.answer("s", interaction_id, YES)
            assert caught.value.code == "already_resolved"
            await told(stream)
        [resolved] = data_of(tmp_path, "s", "interaction/resolved")
        assert resolved["outcome"] == {"kind": "closure", "reason": "turn_stopped"}

    go(main())


def test_a_permission_that_nobody_gives_in_time_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        script = playing([Permission("t")])
        async with managing(tmp_path, script, permission_timeout=0.05) as manager:
            await manager.create(session_id="s")
            await told(manager.send("s", "go"))
            assert script.built[0].outcomes == [{"kind": "closure", "reason": "timed_out"}]

    go(main())


def test_answers_do_not_need_the_session_to_be_open_or_to_stay_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with managing(tmp_path, playing([Question("Go on?")]), keep_open=0) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            interaction_id = (await until(stream, "question_request")).data["interaction_id"]
            first = await manager.answer("s", interaction_id, YES)
            await told(stream)
            again = [manager.answer("s", interaction_id, YES) for _ in range(3)]
            again += [manager.interaction("s", interaction_id) for _ in range(3)]
            assert await asyncio.gather(*again) == [first] * 6
            assert await manager.pending("s") == []

    go(main())


# ---------------------------------------------------------------- who is asked in which mode


async def asked_about(manager: SessionManager, message: str, answer: dict[str, Any]) -> list[str]:
    """Sends, gives every permission that answer, and returns the names of the tools that were asked about."""
    names = []
    async for event in manager.send("s", message):
        if event.kind == "permission_request":
            names.append(event.data["name"])
            await manager.answer("s", event.data["interaction_id"], answer)
    return names


def looping(script: list[Any], *tools: Tool) -> App:
    model = ScriptedModel(script, repeat=True)
    return App(backends={"loop": loop_backend(model, tools)}, default_backend="loop", model="m", tools=tools)


def test_a_mode_of_its_own_decides_in_each_session_what_asks_and_can_be_changed(tmp_path: Path) -> None:
    calls = [
        Ask("look"),
        Ask("write_file", {"path": "note.txt", "content": "40 chairs\n"}),
        Ask("command", {"command": "true"}),
    ]
    app = looping([calls, "Done."], FakeTool("look", recovery="read_only"), WriteFile(), Command())
    workplace = tmp_path / "workplace"
    workplace.mkdir()

    async def main() -> None:
        async with managing(tmp_path / "root", app) as manager:
            await manager.create(session_id="s", cwd=workplace)
            assert await asked_about(manager, "go", ALLOW) == ["write_file", "command"]
            assert (workplace / "note.txt").read_text() == "40 chairs\n"
            await manager.update("s", {"permission_mode": "execute"})
            assert await asked_about(manager, "go", ALLOW) == ["command"]
            await manager.update("s", {"permission_mode": "bypass"})
            assert await asked_about(manager, "go", ALLOW) == []
            [*_, last] = data_of(tmp_path / "root", "s", "turn/start")
            assert last["run"]["permission_mode"] == "bypass"
        states = [data["state"] for data in data_of(tmp_path / "root", "s", "tool/result")]
        assert states == ["ok"] * 9

    go(main())


def test_what_is_not_allowed_does_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    tool = FakeTool("change")

    async def main() -> None:
        async with managing(tmp_path, looping([[Ask("change")], "Then not."], tool)) as manager:
            await manager.create(session_id="s")
            assert await asked_about(manager, "go", DENY) == ["change"]
        assert tool.entered == 0
        assert data_of(tmp_path, "s", "tool/call") == []
        [result] = data_of(tmp_path, "s", "tool/result")
        assert result["content"] == [{"kind": "text", "text": "the user did not allow change"}]

    go(main())


def test_a_stop_while_a_permission_is_asked_for_leaves_a_call_that_never_ran(tmp_path: Path) -> None:
    tool = FakeTool("change")

    async def main() -> None:
        async with managing(tmp_path, looping([[Ask("change")]], tool)) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "go")
            await until(stream, "permission_request")
            await manager.stop("s")
            await told(stream)
        assert tool.entered == 0
        [result] = data_of(tmp_path, "s", "tool/result")
        assert (result["state"], result["error"]["code"]) == ("cancelled", "TOOL_ABORTED_BEFORE_DISPATCH")
        assert maka.inspect("s", root=tmp_path).verdict == "healthy"

    go(main())


def test_a_tool_asks_the_user_and_the_model_gets_the_answers(tmp_path: Path) -> None:
    options = [{"label": "Red"}, {"label": "Blue"}]
    question = {"questions": [{"question": "Which colour?", "options": options}]}
    app = looping([[Ask("ask_user", question)], "Blue it is."], AskUser())

    async def main() -> None:
        async with managing(tmp_path, app) as manager:
            await manager.create(session_id="s")
            stream = manager.send("s", "paint it")
            asked = await until(stream, "question_request")
            assert asked.data["questions"][0]["question"] == "Which colour?"
            answer = {"kind": "question_answer", "answers": ["Blue"]}
            await manager.answer("s", asked.data["interaction_id"], answer)
            assert said(await told(stream)) == ["Blue it is."]
        [result] = data_of(tmp_path, "s", "tool/result")
        assert result["content"] == [{"kind": "text", "text": "Which colour?\nBlue"}]

    go(main())
