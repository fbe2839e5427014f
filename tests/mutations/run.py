"""Break one rule of the runtime at a time and see the tests that it names fail: python tests/mutations/run.py [NAME...]

Each ``NAME.patch`` beside this file breaks one rule in a copy of the tree. ``Rule:`` above its diff says which,
``Test:`` each test that must fail then; of one that is named without a parameter a case must. Without the patch they
pass.
"""

import argparse
import difflib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
#: What the named tests need of the tree.
PARTS: Final = ("__init__.py", "pyproject.toml", "journal", "repair", "runtime", "cli", "tests", "fixtures", "docs")
AT_ONCE: Final = 2
#: So many of the last commits say which files have changed.
RECENT: Final = 3
#: Seconds for one test; a deadlock is a failure.
PATIENCE: Final = 20
_FILES: Final = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


@attrs.frozen
class Mutation:
    """``diff`` breaks ``rule`` in ``files``; ``tests`` are the node ids of those that must fail with it."""

    name: str
    rule: str
    tests: list[str]
    files: list[str]
    diff: str


class Broken(Exception):
    """Something is wrong with the mutation itself, not with the rule's tests."""


def read(path: Path) -> Mutation:
    said, separator, diff = path.read_text().partition("--- a/")
    diff = separator + diff
    entries = re.split(r"^(Rule|Test): ", said, flags=re.MULTILINE)[1:]
    values = [(key, " ".join(value.split())) for key, value in zip(entries[::2], entries[1::2], strict=True)]
    rule = next((value for key, value in values if key == "Rule"), "")
    return Mutation(path.stem, rule, [value for key, value in values if key == "Test"], _FILES.findall(diff), diff)


def mutations(names: Sequence[str] = ()) -> list[Mutation]:
    """Those of these names, else all. Raises SystemExit for a name that there is not."""
    found = {path.stem: path for path in sorted(HERE.glob("*.patch"))}
    if unknown := [name for name in names if name not in found]:
        raise SystemExit(f"there is no mutation {', '.join(unknown)}; --list names those that there are")
    return [read(found[name]) for name in names or found]


def drawn(chosen: Iterable[Mutation], one_in: int, commit: str, changed: Collection[str]) -> list[Mutation]:
    """One in so many, the same for the same commit, and all that are in ``changed`` or break a file that is."""
    return [
        mutation
        for mutation in chosen
        if zlib.crc32(f"{commit} {mutation.name}".encode()) % one_in == 0
        or not {*mutation.files, f"tests/mutations/{mutation.name}.patch"}.isdisjoint(changed)
    ]


def git(*words: str) -> str | None:
    """What it says of the repository; None where it cannot."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def due(chosen: Sequence[Mutation], one_in: int) -> list[Mutation]:
    """Those that are drawn for the commit that is checked out; all where that is not known."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return list(chosen)
    changed = git("diff", "--name-only", "--no-renames", f"HEAD~{RECENT}") or ""
    return drawn(chosen, one_in, commit, changed.splitlines())


def copy(destination: Path) -> Path:
    """The tree as package ``maka`` below ``destination``."""
    home = destination / "maka"
    home.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, home / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, home / part)
    return home


def apply(mutation: Mutation, home: Path, *options: str) -> None:
    """Raises Broken where it does not fit. One line of its surroundings is enough."""
    # No repository around the copy may take part in this.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(home.parent)}
    command = ["git", "apply", "-p1", "-C1", *options, "-"]
    done = subprocess.run(command, cwd=home, env=env, input=mutation.diff, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Broken(f"the patch does not apply: {done.stderr.strip()}")


def restore(mutation: Mutation, whole: Path, home: Path) -> None:
    for file in mutation.files:
        shutil.copy2(whole / file, home / file)


class Copy:
    """A copy of the tree, and a process that runs tests in it. ``compiled``: it keeps the compiled modules it has."""

    def __init__(self, home: Path, *, compiled: bool = True) -> None:
        self.home = home
        # Other plugins than the one that is named cost more time than the tests.
        env = {**os.environ, "PYTHONPATH": str(home.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        # Tests that run beside these, as another user too, share no folder of temporary files whose mode pytest sets.
        temporary = home.parent / "temporary"
        temporary.mkdir()
        env["PYTEST_DEBUG_TEMPROOT"] = str(temporary)
        if compiled:
            env["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, str(HERE / "warm.py")]
        pipe = subprocess.PIPE
        self._warm = subprocess.Popen(command, cwd=home, env=env, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._warm.stdin is not None
        self._warm.stdin.close()
        self._warm.wait()

    def failing(self, tests: Sequence[str]) -> set[str]:
        """Those of ``tests`` that fail here. Raises Broken where they cannot be run."""
        options = ["-q", "-rf", "--tb=no", "--color=no", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        arguments = [*options, "--timeout", str(PATIENCE), *tests]
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        print(json.dumps({"arguments": arguments, "seconds": PATIENCE * (len(tests) + 2)}), file=self._warm.stdin)
        self._warm.stdin.flush()
        done = json.loads(self._warm.stdout.readline())
        if done["code"] is None:
            return set(tests)
        if done["code"] not in (0, 1):
            raise Broken(f"its tests cannot be run:\n{done['output'][-4000:]}")
        lines = [line.removeprefix("FAILED ") for line in done["output"].splitlines() if line.startswith("FAILED ")]
        return {
            test for test in tests if any(line == test or line.startswith((f"{test} - ", f"{test}[")) for line in lines)
        }


def imported_from(home: Path) -> str:
    command = [sys.executable, "-c", "import maka; print(maka.__file__)"]
    env = {**os.environ, "PYTHONPATH": str(home.parent)}
    return subprocess.run(command, cwd=home.parent, env=env, capture_output=True, text=True, check=True).stdout.strip()


def verdict(mutation: Mutation, whole: Path, copy: Copy) -> tuple[bool, str]:
    """Is the rule watched, and a line that says so, or what is wrong. The copy is as ``whole`` before and after."""
    try:
        apply(mutation, copy.home)
        failed = copy.failing(mutation.tests)
    except Broken as error:
        return False, f"WRONG  {mutation.name}: {error}"
    finally:
        restore(mutation, whole, copy.home)
    if passed := [test for test in mutation.tests if test not in failed]:
        return False, f"PASSED {mutation.name}: {mutation.rule} | {', '.join(passed)} did not notice"
    names = ", ".join(test.rpartition("::")[2] for test in mutation.tests)
    return True, f"failed {mutation.name}: {mutation.rule} | {names}"


def refresh(chosen: Iterable[Mutation], home: Path) -> bool:
    """Writes patches again whose surroundings have changed. False where one does not fit any more, which is told."""
    good = True
    for mutation in chosen:
        try:
            apply(mutation, home)
        except Broken as error:
            print(f"WRONG  {mutation.name}: {error}")
            good = False
            continue
        pieces: list[str] = []
        for file in mutation.files:
            before, after = ((place / file).read_text().splitlines(keepends=True) for place in (ROOT, home))
            pieces += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
        restore(mutation, ROOT, home)
        path = HERE / f"{mutation.name}.patch"
        said = path.read_text().partition("--- a/")[0]
        path.write_text(said + "".join(pieces))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutation; all where none is named")
    parser.add_argument("--list", action="store_true", help="say which there are, and do nothing")
    parser.add_argument("--refresh", action="store_true", help="write patches again whose surroundings have changed")
    some = "only one in N, drawn anew by each commit, and those that the last ones had to do with"
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help=some)
    options = parser.parse_args()
    chosen = mutations(options.names)
    if options.one_in > 1:
        chosen = due(chosen, options.one_in)
    if options.list:
        for mutation in chosen:
            print(f"{mutation.name}: {mutation.rule}")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        whole = copy(Path(scratch) / "whole")
        if options.refresh:
            return 0 if refresh(chosen, whole) else 1
        if (place := Path(imported_from(whole))).parent.resolve() != whole.resolve():
            print(f"maka would come from {place} and not from the copy in {whole}")
            return 1
        tests = sorted({test for mutation in chosen for test in mutation.tests})
        try:
            with Copy(whole, compiled=False) as unbroken:
                failed = unbroken.failing(tests)
        except Broken as error:
            print(error)
            return 1
        if failed:
            print("these fail without any patch:", *sorted(failed), sep="\n  ")
            return 1
        return 0 if broken(chosen, whole, Path(scratch)) else 1


def broken(chosen: Sequence[Mutation], whole: Path, scratch: Path) -> bool:
    """Is each noticed? A line for each is printed."""
    copies: queue.Queue[Copy] = queue.Queue()

    def run(mutation: Mutation) -> tuple[bool, str]:
        copy = copies.get()
        try:
            return verdict(mutation, whole, copy)
        finally:
            copies.put(copy)

    good = True
    with ExitStack() as stack:
        for number in range(min(AT_ONCE, len(chosen))):
            home = Path(shutil.copytree(whole, scratch / str(number) / "maka"))
            copies.put(stack.enter_context(Copy(home)))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        for watched, line in pool.map(run, chosen):
            good = good and watched
            print(line, flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
