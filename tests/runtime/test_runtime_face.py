"""The runtime's public names: all are there, and none costs anything before it is used."""

import importlib
import inspect
import subprocess
import sys

import pytest

import maka.runtime


@pytest.mark.parametrize("name", maka.runtime.__all__)
def test_a_public_name_is_there_and_is_what_its_module_says(name: str) -> None:
    found = getattr(maka.runtime, name)
    if not isinstance(found, type) and not inspect.isfunction(found):
        return  # an alias of types
    assert found is getattr(importlib.import_module(found.__module__), name)
    assert found.__doc__, f"{name} has no documentation"


def test_nothing_else_is_public() -> None:
    assert dir(maka.runtime) == sorted(maka.runtime.__all__)
    assert len(set(maka.runtime.__all__)) == len(maka.runtime.__all__)
    with pytest.raises(AttributeError, match=r"module 'maka.runtime' has no attribute 'nonsense'"):
        maka.runtime.nonsense  # noqa: B018


def test_every_error_of_the_runtime_is_public() -> None:
    from maka.runtime import errors

    family = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert family <= set(maka.runtime.__all__)


def test_importing_it_imports_nothing_heavy() -> None:
    code = """
import sys
import maka.runtime
heavy = {"asyncio", "attrs", "orjson", "cattrs", "jsonschema", "openai", "logging", "tomllib", "inspect"}
print(*sorted(heavy & set(sys.modules)))
print(*sorted(name for name in sys.modules if name.split(".")[0] == "maka"))
from maka.runtime import SessionManager
print(*sorted({"cattrs", "jsonschema", "openai", "tomllib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "maka maka.runtime", ""]
