"""What the factory of a session's backend tells before there is a backend, and what the app does in its place."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maka.runtime.app import App
from maka.runtime.app.telling import Telling
from maka.runtime.continuation.shapes import Prospect
from support.continued import Stage, cutting
from support.loops import FakeTool
from support.managed import go

OWN, APPS = FakeTool("own"), FakeTool("app")


class Factory(SimpleNamespace):
    """A factory that tells what it is given, and builds nothing."""

    def __call__(self, context: Any) -> Any:
        raise AssertionError("a backend was built")


def telling(**told: Any) -> Telling:
    app = App(backends={"other": Factory(tools=[]), "b": Factory(**told)}, default_backend="other", tools=[APPS])
    return Telling(app, {"backend": "b", "cwd": "/w"})


@pytest.mark.parametrize(
    ("told", "tools", "names"),
    [
        ({}, [APPS], ["app"]),
        ({"tools": None}, [APPS], ["app"]),
        ({"tools": [OWN]}, [OWN], ["own"]),
        ({"tools": []}, [], []),
        ({"tool_names": ["x"]}, [APPS], ["x"]),
        ({"tools": [OWN], "tool_names": []}, [OWN], []),
    ],
)
def test_the_tools_are_the_backends_as_far_as_they_are_told_and_else_the_apps(
    told: dict[str, Any], tools: list[Any], names: list[str]
) -> None:
    tells = telling(**told)
    assert ([*tells.tools], [*tells.tool_names], tells.tells_tools) == (tools, names, "tools" in told)


def test_a_hook_and_whether_it_hands_over_are_told_or_not() -> None:
    async def hook(*_: Any) -> None: ...

    assert (telling(authorize=hook).authorize, telling().authorize) == (hook, None)
    assert [telling(handoff=told).handoff for told in (True, False, None, "yes")] == [True, False, None, None]
    assert telling().handoff is None


def test_what_is_known_is_asked_of_the_settings_and_the_apps_tools() -> None:
    asked: list[Any] = []

    def known(settings: Any, tools: Any) -> dict[str, Any]:
        asked.append((settings, [*tools]))
        return {"context_window": 9}

    assert telling(known=known, tools=[OWN], handoff=True).prospect() == Prospect({"context_window": 9}, True)
    assert asked == [({"backend": "b", "cwd": "/w"}, [APPS])]


@pytest.mark.parametrize("known", [None, "a text", lambda settings, tools: None, lambda settings, tools: ["a list"]])
def test_what_is_no_answer_is_none(known: Any) -> None:
    assert telling(known=known).prospect() == telling().prospect() == Prospect()


@pytest.mark.parametrize("settings", [{}, {"backend": "gone"}, {"backend": 1}])
def test_a_backend_that_the_app_lacks_tells_nothing(settings: dict[str, Any]) -> None:
    told = Telling(telling(tools=[OWN], handoff=True).app, settings)
    assert ([*told.tools], told.tells_tools, told.handoff, told.prospect()) == ([APPS], False, None, Prospect())


def test_a_factory_that_fails_at_telling_keeps_no_plan_from_being_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(settings: Any, tools: Any) -> Any:
        raise LookupError("the catalogue is gone")

    async def main() -> None:
        stage, script = Stage(tmp_path), cutting("Done.")
        async with stage.life(script) as manager:
            await stage.cut(manager)
            before = await stage.planned(manager)
            script.known = fails  # type: ignore[attr-defined]
            plan = await stage.planned(manager)
        assert (plan.disposition, plan.diagnostics) == ("continue", before.diagnostics)
        [record] = [record for record in caplog.records if "the catalogue is gone" in record.getMessage()]
        assert (record.name, record.levelname) == ("maka.runtime", "WARNING")
        assert "what a run would be made of cannot be told: LookupError" in record.getMessage()

    go(main())
