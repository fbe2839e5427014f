"""Which calls ask: permission modes × tools, and what happens where nobody can tell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from maka.journal.events import JsonObject, Recovery
from maka.runtime.permissions import MODES, asks, stance
from maka.runtime.tools import Tool, ToolContext, ToolOutput
from maka.runtime.tools.command import Command
from maka.runtime.tools.write_file import WriteFile

CWD = Path("/somewhere")


@attrs.frozen
class Plain:
    """A tool that cannot say where it reaches."""

    recovery: Recovery = "never"
    name: str = "plain"
    description: str = ""
    parameters: JsonObject = attrs.Factory(dict)
    parallel_safe: bool = False

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        raise AssertionError


@attrs.frozen
class Knowing(Plain):
    """A tool that can: ``answer`` is what it says, or raises."""

    answer: Any = False

    def leaves(self, arguments: dict[str, Any], cwd: Path) -> Any:
        assert (arguments, cwd) == ({"a": 1}, CWD)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


READ = Plain("read_only")
CHANGE = Plain("never")

#: mode → does it ask about: a tool that only reads, one that changes; one that says that the call stays, that it leaves
TABLE: dict[str, tuple[bool, bool, bool, bool]] = {
    "ask": (False, True, True, True),
    "execute": (False, True, False, True),
    "bypass": (False, False, False, False),
    "": (False, True, True, True),
    "Bypass": (False, True, True, True),
    " bypass": (False, True, True, True),
    "yolo": (False, True, True, True),
}


@pytest.mark.parametrize("mode", TABLE)
def test_modes_and_tools(mode: str) -> None:
    tools = (READ, CHANGE, Knowing(answer=False), Knowing(answer=True))
    assert tuple(asks(mode, tool, {"a": 1}, CWD) is not None for tool in tools) == TABLE[mode]
    assert mode in MODES or mode in ("", "Bypass", " bypass", "yolo")


@pytest.mark.parametrize("recovery", ["idempotent", "reconcile", "never"])
@pytest.mark.parametrize("mode", ["ask", "execute", "yolo"])
def test_only_read_only_tools_change_nothing(mode: str, recovery: Recovery) -> None:
    assert asks(mode, Plain(recovery), {}, CWD) is not None


def test_a_tool_that_only_reads_asks_where_it_says_that_it_leaves() -> None:
    for answer in (False, True):
        assert (asks("execute", Knowing("read_only", answer=answer), {"a": 1}, CWD) is not None) is answer
        assert asks("ask", Knowing("read_only", answer=answer), {"a": 1}, CWD) is None


@pytest.mark.parametrize("answer", [None, 0, "", [], "no", ValueError("broken"), SystemExit(1), RecursionError()])
def test_anything_but_false_leaves(answer: Any) -> None:
    reason = asks("execute", Knowing(answer=answer), {"a": 1}, CWD)
    assert reason is not None
    assert str(CWD) in reason
    if isinstance(answer, ValueError):
        assert "ValueError: broken" in reason
    assert asks("bypass", Knowing(answer=answer), {"a": 1}, CWD) is None


def test_what_leaves_raises_is_shown_in_part_only() -> None:
    reason = asks("execute", Knowing(answer=ValueError("x" * 100_000)), {"a": 1}, CWD)
    assert reason is not None
    assert len(reason) < 500


def test_something_called_leaves_that_is_no_method_tells_nothing() -> None:
    @attrs.frozen
    class Odd(Plain):
        leaves: bool = False

    assert asks("execute", Odd(), {}, CWD) is not None
    assert stance("execute", Odd()) == "asks"


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("ask", "`ask`"),
        ("execute", "`execute`"),
        ("", "no permission mode is set"),
        ("yolo", "'yolo' is none of `ask`, `execute`, `bypass`"),
        ("y" * 100_000, "'yyy"),
    ],
)
def test_the_reason_names_the_mode(mode: str, says: str) -> None:
    reason = asks(mode, CHANGE, {}, CWD)
    assert reason is not None
    assert says in reason
    assert len(reason) < 500


@pytest.mark.parametrize("mode", [*MODES, "", "yolo"])
@pytest.mark.parametrize("tool", [READ, CHANGE, Knowing(), Knowing("read_only"), Command(), WriteFile()])
def test_the_stance_is_what_comes_of_it(mode: str, tool: Tool) -> None:
    said = stance(mode, tool)
    arguments = {"a": 1} if isinstance(tool, Knowing) else {"path": "x", "command": "true"}
    if said != "depends":
        assert (asks(mode, tool, arguments, CWD) is not None) is (said == "asks")
    assert (said == "depends") is (mode == "execute" and hasattr(tool, "leaves"))


def test_a_shell_command_asks_unless_nothing_does() -> None:
    tool = Command()
    assert [asks(mode, tool, {"command": "true"}, CWD) is None for mode in MODES] == [False, False, True]


def outside(cwd: Path) -> str:
    (cwd / "link").symlink_to("..")
    return "link/x"


def inside(cwd: Path) -> str:
    (cwd / "real").mkdir()
    (cwd / "link").symlink_to("real")
    return "link/x"


@pytest.mark.parametrize(
    ("place", "leaves"),
    [
        (lambda cwd: "x", False),
        (lambda cwd: "a/b/../x", False),
        (lambda cwd: str(cwd / "x"), False),
        (inside, False),
        (lambda cwd: "../x", True),
        (lambda cwd: str(cwd.parent / "x"), True),
        (outside, True),
        (lambda cwd: ".", True),
        (lambda cwd: "\0", True),
    ],
)
def test_writing_a_file_leaves_where_it_would_be_refused(
    tmp_path: Path, place: Callable[[Path], str], leaves: bool
) -> None:
    arguments = {"path": place(tmp_path), "content": "new"}
    before = sorted(tmp_path.rglob("*"))
    assert (asks("execute", WriteFile(), arguments, tmp_path) is not None) is leaves
    assert asks("ask", WriteFile(), arguments, tmp_path) is not None
    assert sorted(tmp_path.rglob("*")) == before
