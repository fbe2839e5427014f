"""What a program gives is looked at where it gives it, and refused in one sentence."""

from typing import Any

import pytest

from maka.runtime.backends.loop import loop_backend
from maka.runtime.backends.scripted import scripted_backend
from maka.runtime.dispatch import ToolLimits
from maka.runtime.errors import AppError
from maka.runtime.interactions import JournalInteractions
from maka.runtime.kernel.generations import Deadlines
from maka.runtime.retry import RetryPolicy
from maka.runtime.scripted import ScriptedModel
from maka.runtime.steps import Options
from maka.runtime.tools.arguments import BadArguments, validate
from support.loops import FakeTool

GIVEN: Any = ScriptedModel(["hello"])


NUMBER = "must be a number of seconds, 0 or more"
LIMIT = "`max_steps` of Options must be a whole number, 0 or more, or None"


@pytest.mark.parametrize(
    ("made", "given", "sentence"),
    [
        (Deadlines, {"stop": "x"}, f"`stop` of Deadlines {NUMBER}, not 'x'"),
        (Deadlines, {"grace": -1}, f"`grace` of Deadlines {NUMBER}, not -1"),
        (Deadlines, {"exit": None}, f"`exit` of Deadlines {NUMBER}, not None"),
        (Options, {"max_steps": "4"}, f"{LIMIT}, not '4'"),
        (Options, {"max_steps": True}, f"{LIMIT}, not True"),
        (Options, {"system": 5}, "`system` of Options must be a text or None, not 5"),
        (Options, {"params": []}, "`params` of Options must be a dict, not an object of type list"),
        (Options, {"retry": 3}, "`retry` of Options must be a RetryPolicy, not 3"),
        (Options, {"limits": 3}, "`limits` of Options must be ToolLimits, not 3"),
        (ToolLimits, {"parallel": 0}, "`parallel` of ToolLimits must be a whole number, 1 or more, not 0"),
        (RetryPolicy, {"attempts": 1.5}, "`attempts` of RetryPolicy must be a whole number, 1 or more, not 1.5"),
        (
            JournalInteractions,
            {"session": GIVEN, "lifecycle": GIVEN, "permission_timeout": "5"},
            "permission_timeout must be a number of seconds, or None, not '5'",
        ),
        (loop_backend, {"model": None}, "loop_backend takes a model, or a function that makes one, and not None"),
        (loop_backend, {"model": "gpt"}, "loop_backend takes a model, or a function that makes one, and not 'gpt'"),
        (
            loop_backend,
            {"model": ScriptedModel},
            "loop_backend got the class ScriptedModel; give it a model, ScriptedModel(…)",
        ),
        (
            loop_backend,
            {"model": GIVEN, "options": {}},
            "the options of loop_backend must be Options, not an object of type dict",
        ),
        (loop_backend, {"model": GIVEN, "authorize": True}, "authorize must be an `async def`, not True"),
        (
            ScriptedModel,
            {"script": [5]},
            "a script holds 5, which is no part; the parts are in maka.runtime.scripted",
        ),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_at_once(made: Any, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as refused:
        made(**given)
    assert str(refused.value) == sentence


def test_what_is_right_is_taken() -> None:
    assert Deadlines(stop=0, exit=1.5).exit == 1.5
    options = Options(max_steps=0, params={"a": 1}, retry=RetryPolicy(attempts=1), limits=ToolLimits(parallel=1))
    assert options.max_steps == 0


def test_tools_of_a_loop_are_looked_at_as_those_of_an_app() -> None:
    timeout: Any = "1"
    with pytest.raises(AppError, match="the `timeout` of tool 'a' must be a number of seconds"):
        loop_backend(GIVEN, [FakeTool("a", timeout=timeout)])


def test_a_function_that_makes_no_model_is_told_so() -> None:
    def makes_none(context: Any) -> Any:
        return None

    with pytest.raises(TypeError, match="the function that makes a model gave None, which is none"):
        loop_backend(makes_none)(GIVEN)


def test_a_bare_text_is_a_script_of_one_response() -> None:
    assert [len(response) for response in ScriptedModel("hello")._script] == [1]
    assert scripted_backend("hello")._script == ["hello"]


def test_a_schema_that_is_none_is_told_in_a_line() -> None:
    with pytest.raises(BadArguments) as refused:
        validate({}, {"type": "objekt"})
    assert "'objekt'" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200
