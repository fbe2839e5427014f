"""The document of the architecture names every module there is, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()

pytestmark = pytest.mark.repository


@pytest.mark.parametrize("layer", ["journal", "repair", "runtime", "cli"])
def test_its_tables_name_each_module(layer: str) -> None:
    section = TEXT.split(f"\n## {layer}\n")[1].split("\n## ")[0]
    named = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(.+?)`", row)
    }
    modules = {path.relative_to(ROOT / layer).with_suffix("").as_posix() for path in (ROOT / layer).rglob("*.py")}
    expected = {name for name in modules if "__" not in name and not name.startswith("views/")}
    assert named - {"views/"} == expected
