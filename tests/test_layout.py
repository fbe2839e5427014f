"""The shape of the project: what ships, which way imports point, and what no file of it may say."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import maka

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: Each may import itself and what stands before it.
LAYERS = ("journal", "repair", "runtime", "cli")

pytestmark = pytest.mark.repository


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file() and not path.is_symlink()]


def test_every_folder_with_code_ships_and_nothing_else() -> None:
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    expected = {"maka"} | {".".join(("maka", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_the_root_holds_no_stray_module() -> None:
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"]


def test_type_checkers_see_every_part() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "typings" / "maka").iterdir() if path.is_symlink()}
    assert links == {name: (ROOT / name).resolve() for name in ("__init__.py", *LAYERS)}


def test_names_of_tests_are_unique() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_version_is_said_once() -> None:
    version = PROJECT["project"]["version"]
    assert maka.__version__ == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def imported(path: Path) -> set[str]:
    """The parts of the project that a module imports, anywhere in it."""
    package = path.relative_to(ROOT).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            parts = (*base, *(node.module or "").split("."))
            found.update([parts[0]] if parts[0] else [alias.name for alias in node.names])
        elif isinstance(node, ast.ImportFrom):
            found.update(["absolute"] if (node.module or "").split(".")[0] == "maka" else [])
        elif isinstance(node, ast.Import):
            found.update("absolute" for alias in node.names if alias.name.split(".")[0] == "maka")
    return found & {*LAYERS, "absolute"}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    wrong = {
        str(path.relative_to(ROOT)): imported(path) - allowed
        for path in (ROOT / layer).rglob("*.py")
        if imported(path) - allowed
    }
    assert not wrong


def test_every_module_says_its_one_idea_first() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if not (ast.get_docstring(ast.parse(path.read_bytes())) or "").strip()
    ]
    assert not silent


FORBIDDEN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.>])/(?:work|root|Users|opt)/\w"),
    "the host of a package registry": re.compile(r"\b(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b"),
    "the number of a task": re.compile(r"\b[Ii]ssues? #?\d"),
}


def test_files_speak_of_the_project_alone() -> None:
    found = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        if path != Path(__file__):
            found += [
                f"{path.relative_to(ROOT)}: {what}" for what, pattern in FORBIDDEN.items() if pattern.search(text)
            ]
    assert not found


def test_no_build_product_is_tracked() -> None:
    assert not [
        path for path in tracked() if {"__pycache__", "build", "dist"} & set(path.parts) or ".egg-info" in str(path)
    ]


def test_the_readme_names_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    jobs = subprocess.run(["python3", ".ci/do", "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for job in re.findall(r"python3 \.ci/do (\w+)", readme):
        assert re.search(rf"^  {job}\b", jobs, re.MULTILINE), job
    for extra in re.findall(r"--extra (\w+)", readme):
        assert extra in PROJECT["project"]["optional-dependencies"]
    for path in re.findall(r"`((?:docs|benchmarks|fixtures|\.ci)/[\w./-]*|[A-Z]+(?:\.md)?)`", readme):
        assert (ROOT / path).exists() or path == "TARGET", path


def test_a_job_that_does_not_exist_is_a_usage_error() -> None:
    asked = subprocess.run(["python3", ".ci/do", "nonsense"], check=False, cwd=ROOT, capture_output=True, text=True)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "demo" in asked.stderr
    assert "no job 'nonsense'" in asked.stderr
