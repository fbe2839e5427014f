"""Naming and loading an app: who names it, what is trusted, and one sentence for whatever is wrong."""

import gc
import os
import stat
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maka.runtime.app import App, AppSource, SafetyInspector, find_app, load_app
from maka.runtime.app.definition import app_of
from maka.runtime.backends.loop import loop_backend
from maka.runtime.errors import AppError
from maka.runtime.scripted import ScriptedModel
from maka.runtime.tools.command import Command
from maka.runtime.tools.write_file import WriteFile
from support.apps import WHOLE

Said = Callable[..., str]


def build(context: Any) -> Any:
    raise NotImplementedError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "root"
    place.mkdir(mode=0o700)
    return place


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module of its own for each test; nothing of it stays imported."""
    place = tmp_path / "cwd"
    place.mkdir()
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield place
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def module(cwd: Path, text: str, name: str = "fake.py") -> Path:
    path = cwd / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def configure(root: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = root / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


@pytest.fixture
def refused(root: Path, cwd: Path) -> Said:
    """The sentence with which loading is refused."""

    def load(name: str | None = "fake:app", **environ: str) -> str:
        with pytest.raises(AppError) as caught:
            load_app(name, root, environ, cwd)
        said = str(caught.value)
        assert "\n" not in said
        assert "delete" not in said
        assert len(said) < 1000
        return said

    return load


# ---------------------------------------------------------------- who names it


@pytest.mark.parametrize(
    ("option", "variable", "config", "expected"),
    [
        ("a:o", "b:v", "c:f", "--app"),
        (None, "b:v", "c:f", "MAKA_APP"),
        (None, "", "c:f", "config"),
        (None, None, "c:f", "config"),
        (None, None, None, None),
        ("", "b:v", "c:f", "--app"),
    ],
)
def test_the_first_of_three_places_names_it(
    root: Path, option: str | None, variable: str | None, config: str | None, expected: str | None
) -> None:
    environ = {} if variable is None else {"MAKA_APP": variable}
    if config is not None:
        configure(root, f'[maka]\napp = "{config}"\n')
    found = find_app(option, root, environ)
    sources = {
        "--app": AppSource(option or "", "--app"),
        "MAKA_APP": AppSource(variable or "", "MAKA_APP"),
        "config": AppSource(config or "", str(root / "config.toml")),
        None: None,
    }
    assert found == sources[expected]


def test_a_broken_configuration_is_not_looked_at_where_something_else_names_it(root: Path) -> None:
    configure(root, b"\xff\xff[[[", mode=0o666)
    assert find_app("a:b", root, {}) == AppSource("a:b", "--app")
    assert find_app(None, root, {"MAKA_APP": "a:b"}) == AppSource("a:b", "MAKA_APP")
    with pytest.raises(AppError):
        find_app(None, root, {})


@pytest.mark.parametrize("text", ["", "[other]\napp = 5\n", "[maka]\n", "[maka]\nname = 1\n", 'app = "not:here"\n'])
def test_a_configuration_may_say_nothing_of_it(root: Path, text: str) -> None:
    configure(root, text)
    assert find_app(None, root, {}) is None


@pytest.mark.parametrize("text", ['maka.app = "a:b"', 'maka = {app = "a:b"}', "# é\r\n[maka]\r\n\"app\" = 'a:b'\r\n"])
def test_a_configuration_may_be_spelled_as_toml_allows(root: Path, text: str) -> None:
    configure(root, text)
    assert find_app(None, root, {}) == AppSource("a:b", str(root / "config.toml"))


def test_nothing_is_named(refused: Said, root: Path) -> None:
    said = refused(None)
    assert said.startswith("no app is named")
    for place in ("--app", "MAKA_APP", "[maka]", str(root / "config.toml"), "`module:object`"):
        assert place in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('app = "a:b"\n', ", where `app` stands outside of `[maka]` in line 1"),
        ("[maka]\n\n[other]\n", ""),
        ('# app\n\napp = "a:b"\n[maka]\n', ", where `app` stands outside of `[maka]` in line 3"),
        ('[maka]\nap = "a:b"\n', ", where `[maka]` holds `ap` and no `app`"),
        ('[mak]\napp = "a:b"\n', ", which holds `mak` and no `[maka]`"),
        ("", ""),
    ],
)
def test_what_stands_in_the_place_of_an_app_is_told(refused: Said, root: Path, text: str, says: str) -> None:
    path = configure(root, text)
    assert refused(None).endswith(f"`app` below `[maka]` in {path}{says}")


def test_a_root_that_is_not_there_names_nothing(tmp_path: Path) -> None:
    assert find_app(None, tmp_path / "no" / "root", {}) is None


# ---------------------------------------------------------------- a configuration that cannot be taken


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[maka\napp = 1", "line 1"),
        ('\n\n[maka]\napp = "a:b', "line 4"),
        ("[maka]\napp = a:b\n", "line 2"),
        (b'# one\n[maka]\napp = "\xff"\n', "line 3"),
        (b"\xef\xbb\xbf[maka]\n", "line 1"),
        (b"\0", "line 1"),
        ("maka = 5\n", "line 1"),
        ("other = 1 # maka\nmaka = [1]\n", "line 2"),
        ("[[maka]]\napp = 'a:b'\n", "line 1"),
        ("x = 1\n[maka]\n# app\nname = 2\napp = 5\n", "line 5"),
        ("[maka]\napp = ['a:b']\n", "line 2"),
        ("[maka.app]\nx = 1\n", "line 1"),
        ("[maka]\napp = false\n", "line 2"),
        ("x = " + "[" * 30_000, "too big"),
        ("x = " + "9" * 5_000, "too big"),
        ("#" * 70_000, "longer than 65,536 bytes"),
    ],
)
def test_a_broken_configuration_names_path_and_line(refused: Said, root: Path, text: str | bytes, says: str) -> None:
    path = configure(root, text)
    said = refused(None)
    assert said.startswith(str(path))
    assert says in said


@given(st.binary(max_size=200) | st.text("[]maka.p=\"'\n#{}1:", max_size=60).map(str.encode))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_configuration_fails_otherwise(root: Path, raw: bytes) -> None:
    path = configure(root, raw)
    said = str(path)
    try:
        found = find_app(None, root, {})
    except AppError as error:
        said = str(error)
    else:
        assert found is None or isinstance(found.name, str)
    assert said.startswith(str(path))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_configuration_that_others_may_change_is_refused(refused: Said, root: Path, cwd: Path, mode: int) -> None:
    module(cwd, "raise AssertionError('this ran')")
    path = configure(root, '[maka]\napp = "fake:app"\n', mode)
    said = refused(None)
    assert said.startswith(f"{path} may be written to by others (mode {mode:04o})")
    assert f"`chmod go-w {path}`" in said
    path.chmod(mode & ~0o022)
    assert "this ran" in refused(None)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_so_is_one_that_others_may_replace(refused: Said, root: Path, mode: int) -> None:
    configure(root, '[maka]\napp = "fake:app"\n')
    root.chmod(mode)
    said = refused(None)
    assert said.startswith(f"{root} may be written to by others (mode {mode:04o})")
    assert f"`chmod go-w {root}`" in said


def test_a_link_is_judged_by_where_it_leads(refused: Said, root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    target = configure(elsewhere, '[maka]\napp = "a:b"\n')
    (root / "config.toml").symlink_to(target)
    assert find_app(None, root, {}) == AppSource("a:b", str(root / "config.toml"))
    elsewhere.chmod(0o777)
    assert refused(None).startswith(str(elsewhere))
    elsewhere.chmod(0o700)
    target.chmod(0o666)
    assert refused(None).startswith(str(root / "config.toml"))
    target.chmod(0o600)
    root.chmod(0o777)
    assert refused(None).startswith(f"{root} may")


def test_a_configuration_of_somebody_else_is_refused(
    refused: Said, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configure(root, '[maka]\napp = "a:b"\n')
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:
        assert find_app(None, root, {}) == AppSource("a:b", str(path)), "what the system's owner wrote is trusted"
        true_fstat = os.fstat

        def owned(fd: int) -> Any:
            fields = list(true_fstat(fd))
            fields[stat.ST_UID] += 7
            return os.stat_result(fields)

        monkeypatch.setattr(os, "fstat", owned)
    said = refused(None)
    assert said.startswith(f"{path} belongs to another user")
    assert "--app" in said


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_refused(refused: Said, root: Path, make: Callable[[Path], None]) -> None:
    make(root / "config.toml")
    said = refused(None)
    assert said.startswith(str(root / "config.toml"))
    assert "--app" in said


def test_one_that_cannot_be_opened_says_why(refused: Said, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = configure(root, '[maka]\napp = "a:b"\n')

    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    assert refused(None).startswith(f"{path} cannot be read: Permission denied; ")


def test_a_root_that_is_a_file(refused: Said, tmp_path: Path) -> None:
    (tmp_path / "root").rmdir()
    (tmp_path / "root").write_text("")
    assert "cannot be read: Not a directory" in refused(None)


# ---------------------------------------------------------------- loading


def test_an_app_is_loaded_from_the_current_directory(root: Path, cwd: Path) -> None:
    module(cwd, WHOLE)
    app, source = load_app("fake:app", root, {}, cwd)
    assert source == AppSource("fake:app", "--app")
    assert isinstance(app, App)
    assert app is sys.modules["fake"].app
    assert (list(app.backends), app.default_backend, app.model) == (["main", "other"], "main", "some-model")
    assert [tool.name for tool in app.tools] == ["command", "write_file"]
    assert sys.path[0] == str(cwd)
    load_app("fake:app", root, {}, cwd)
    assert sys.path.count(str(cwd)) == 1


def test_a_module_that_was_just_written_is_found(refused: Said, root: Path, cwd: Path) -> None:
    before = cwd.stat()
    assert "cannot be found" in refused("fake:app")
    module(cwd, WHOLE)
    os.utime(cwd, ns=(before.st_atime_ns, before.st_mtime_ns))
    load_app("fake:app", root, {}, cwd)


def test_the_current_directory_comes_first_and_a_safe_path_leaves_it_out(tmp_path: Path, root: Path, cwd: Path) -> None:
    module(cwd, WHOLE)
    program = (
        "import sys; from pathlib import Path; from maka.runtime.app import load_app\n"
        "print(load_app('fake:app', Path(sys.argv[1]), {}, Path.cwd())[1].name)"
    )
    for flags, code in (([], 0), (["-P"], 1)):
        ran = subprocess.run(
            [sys.executable, *flags, "-c", program, str(root)], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert ran.returncode == code, ran.stderr
        assert (ran.stdout == "fake:app\n") is (code == 0)


@pytest.mark.parametrize("place", ["option", "variable", "config"])
def test_each_place_is_named_in_what_goes_wrong(refused: Said, root: Path, place: str) -> None:
    configure(root, '[maka]\napp = "nowhere:app"\n')
    said = refused(
        "nowhere:app" if place == "option" else None, **({"MAKA_APP": "nowhere:app"} if place == "variable" else {})
    )
    origin = {"option": "--app", "variable": "MAKA_APP", "config": str(root / "config.toml")}[place]
    assert said.startswith(f"nowhere:app, named by {origin}, cannot be found (")


@pytest.mark.parametrize(
    "name", ["app:make", "app:made", "app:Holder.nested.app", "app:Made", "app:Late", "app:bare", "pack.inner:app"]
)
def test_what_may_be_named(root: Path, cwd: Path, name: str) -> None:
    text = WHOLE + textwrap.dedent(
        """
        class Holder:
            class nested:
                app = app

        class Made:
            "A class is called; its object has what an app needs, and no more."
            def __init__(self):
                self.backends = {"main": build}
                self.default_backend = "main"

        class Late:
            "One whose class has the names already."
            default_backend = "main"
            @property
            def backends(self):
                return {"main": build}

        made = Made()

        class bare:
            backends = {"main": build}
            default_backend = "main"
        """
    )
    module(cwd, text, "app.py")
    (cwd / "pack").mkdir()
    module(cwd, "", "pack/__init__.py")
    module(cwd, WHOLE, "pack/inner.py")
    app, _ = load_app(name, root, {}, cwd)
    assert app.default_backend == "main"
    assert "main" in app.backends


def test_what_an_object_lacks_is_filled_in() -> None:
    app = app_of(SimpleNamespace(backends={"b": build}, default_backend="b", tools=(t for t in [Command()]), more=1))
    assert app == App(backends={"b": build}, default_backend="b", tools=[Command()])
    assert (app.model, app.safety_inspector, app.permission_mode) == ("", None, "ask")
    assert app.tools == (Command(),)


@pytest.mark.parametrize(
    "name",
    ["", "fake", "fake.app", ":app", "fake:", "fake:a:b", "./fake.py:app", "fake py:app", "fake:app()", ".fake:app",
     "fake:app\n", "a..b:c", "\ud800:x", "x" * 100_000],
)  # fmt: skip
def test_what_is_no_name(refused: Said, name: str) -> None:
    assert "is not `module:object`" in refused(name)


@pytest.mark.parametrize("name", ["nowhere:app", "nowhere.at.all:app", "json.nowhere:app", "json.decoder.deeper:app"])
def test_a_module_that_is_not_there(refused: Said, cwd: Path, name: str) -> None:
    said = refused(name)
    assert "cannot be found (No module named" in said
    assert str(cwd) in said


def test_a_module_inside_a_package_that_is_not_there(refused: Said, cwd: Path) -> None:
    module(cwd, "", "pack/__init__.py")
    assert "cannot be found (No module named 'pack.inner')" in refused("pack.inner:app")


@pytest.mark.parametrize(
    ("text", "says", "line"),
    [
        ("import os\nimport nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'", 2),
        ("import fake_", "ModuleNotFoundError: No module named 'fake_'", 1),
        ("import fake.inner", "ModuleNotFoundError", 1),
        ("from json import nothing", "ImportError: cannot import name 'nothing'", 1),
        ("x = 1\n\ndef f(:\n", "SyntaxError", 3),
        ("x = '\\ud800'\nraise ValueError('it says\\nso ' + x)", "ValueError: it says so", 2),
        ("import json\n\njson.loads('{')", "JSONDecodeError", 3),
        ("import sys\nsys.exit(3)", "SystemExit: 3", 2),
        ("def f():\n    return f()\nf()", "RecursionError", 2),
        ("raise ValueError('x' * 100_000)", "ValueError: xxx", 1),
        ("raise Exception", "Exception (at", 1),
        ("class Odd(BaseException): pass\nraise ExceptionGroup('several', [ValueError()])", "ExceptionGroup", 2),
        ("from maka.runtime.app import App\nApp(backends={}, default_backend='')", "`backends` is empty", 2),
    ],
)
def test_what_goes_wrong_in_the_module_is_told_from_one_that_is_not_there(
    refused: Said, cwd: Path, text: str, says: str, line: int
) -> None:
    path = module(cwd, text)
    said = refused("fake:app")
    assert says in said
    assert f"(at {path}:{line})" in said
    assert "cannot be found" not in said
    assert "fake" not in sys.modules


def test_the_original_error_is_kept(cwd: Path, root: Path) -> None:
    module(cwd, "raise KeyError('k')")
    with pytest.raises(AppError) as caught:
        load_app("fake:app", root, {}, cwd)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_line_is_the_innermost_of_the_app_s_own_code(refused: Said, cwd: Path) -> None:
    helper = module(cwd, "import json\ndef f():\n    json.loads('{')\n", "helper.py")
    module(cwd, "import helper\nhelper.f()\n")
    assert f"(at {helper}:3)" in refused("fake:app")


def test_code_that_is_not_utf_8(refused: Said, cwd: Path) -> None:
    (cwd / "fake.py").write_bytes(b"x = '\xff'\n")
    assert "SyntaxError" in refused("fake:app")


# ---------------------------------------------------------------- what is no app


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("one = 1\n_two = 2\nimport os", "app", "the module fake has no `app`; it has `one`"),
        ("", "app", "the module fake has no `app`; it has no names at all"),
        ("one = 1", "one.two", "the module fake has no `one.two`; it has `one`"),
        ("\n".join(f"n{i} = 1" for i in range(40)), "app", "`n11` and 28 more"),
        ("app = 5", "app", "5 lacks `backends`, `default_backend`"),
        ("app = None", "app", "None lacks `backends`"),
        ("class A: backends = {}\napp = A()", "app", "an object of type A lacks `default_backend`"),
        ("def app(): return 5", "app", "5 lacks"),
        ("def app(): pass", "app", "None lacks"),
        ("def app(x): pass", "app", "it takes arguments"),
        ("app = dict.fromkeys", "app", "it takes arguments"),
        ("async def app(): pass", "app", "it is asynchronous"),
        ("def app():\n    raise ValueError('no')", "app", "ValueError: no (at "),
        ("import sys\ndef app(): sys.exit(1)", "app", "SystemExit: 1 (at "),
        ("def __getattr__(name): raise ValueError(name)", "app", "ValueError: "),
        ("class A:\n    @property\n    def backends(self): raise KeyError('x')\napp = A()", "app", "KeyError: 'x' (at"),
        ("def app():\n    from maka.runtime.app import App\n    return App(backends=1, default_backend='')", "app",
         "`backends` must be a mapping of names to functions that build a backend, not 1 (at "),
    ],
)  # fmt: skip
def test_what_is_no_app_says_what_it_lacks(refused: Said, cwd: Path, text: str, name: str, says: str) -> None:
    module(cwd, text)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said = refused(f"fake:{name}")
        gc.collect()
    assert not [warning for warning in warned if "never awaited" in str(warning.message)]
    assert said.startswith(f"fake:{name}, named by --app, ")
    assert says in said


class Twin:
    name = "command"
    description = ""
    parameters: dict[str, Any] = {}  # noqa: RUF012
    recovery = "read_only"
    parallel_safe = True

    async def execute(self, arguments: Any, context: Any) -> Any: ...


class Built:
    async def send(self, input: Any) -> Any: ...


def test_what_a_backend_may_be_built_by() -> None:
    for builds in (build, Built, lambda context: Built(), loop_backend(ScriptedModel(["hi"]))):
        App(backends={"b": builds}, default_backend="b")
    App(backends={"b": build}, default_backend="b", tools=[odd(timeout=None), odd(name="other", timeout=0.5)])


def odd(**changes: Any) -> Any:
    return type("Odd", (Twin,), changes)()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"backends": {}}, "`backends` is empty; give at least one function"),
        ({"backends": {"b": 5}}, "backend 'b' must be a function that builds a backend, not 5"),
        ({"backends": {5: build}}, "`backends` has the key 5; its keys must be texts"),
        ({"backends": {"b": ScriptedModel(["hi"])}},
         "backend 'b' is an object of type ScriptedModel, a model; wrap it: `loop_backend(model)`"),
        ({"backends": {"b": ScriptedModel}}, "backend 'b' is the class ScriptedModel, a model; wrap it"),
        ({"backends": {"b": Built()}}, "backend 'b' is an object of type Built, a backend already; give the class"),
        ({"backends": [build]}, "`backends` must be a mapping"),
        ({"default_backend": "c"}, "`default_backend` is 'c', which is none of its backends; there are: `b`"),
        ({"default_backend": 5}, "`default_backend` must be the name of a backend, not 5"),
        ({"model": None}, "`model` must be"),
        ({"tools": 5}, "`tools` must be a sequence of tools, not 5"),
        ({"tools": "command"}, "`tools` must be a sequence of tools, not 'command'"),
        ({"tools": {"command": Command()}}, "`tools` must be a sequence of tools"),
        ({"tools": [5]}, "tool 1, 5, lacks `name`, `description`"),
        ({"tools": [Command]}, "tool 1 is the class Command; put an instance"),
        ({"tools": [Command(), Twin()]}, "two of its tools are called 'command'"),
        ({"tools": [odd(name=5)]}, "tool 1 must have a text as its `name`, not 5"),
        ({"tools": [odd(recovery="maybe")]}, "`read_only`, `idempotent`, `reconcile`, `never`, not 'maybe'"),
        ({"tools": [odd(timeout="1")]}, "the `timeout` of tool 'command' must be a number of seconds above 0, or None"),
        ({"tools": [odd(timeout=0)]}, "above 0, or None, not 0"),
        ({"tools": [odd(timeout=True)]}, "or None, not True"),
        ({"tools": [odd(timeout=float("nan"))]}, "or None, not nan"),
        ({"tools": [odd(parameters=None)]}, "the `parameters` of tool 'command' must be a JSON Schema, as a dict"),
        ({"tools": [odd(parameters={"type": "objekt"})]}, "are no JSON Schema: ['type']: 'objekt' is"),
        ({"tools": [odd(parameters={"type": {1}})]}, "are no JSON Schema: it cannot be written as JSON (Obj"),
        ({"safety_inspector": 5}, "`safety_inspector` must be None or an object"),
        ({"permission_mode": "yolo"}, "`permission_mode` must be one of `ask`, `execute`, `bypass`, not 'yolo'"),
        ({"permission_mode": ""}, "`permission_mode` must be one of"),
        ({"permission_mode": []}, "`permission_mode` must be one of"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    whole = {"backends": {"b": build}, "default_backend": "b", **changes}
    with pytest.raises(AppError) as caught:
        App(**whole)
    assert says in str(caught.value)
    with pytest.raises(AppError) as caught:
        app_of(SimpleNamespace(**whole))
    assert says in str(caught.value)


def test_an_app_keeps_what_it_was_given_when_that_changes() -> None:
    backends, tools = {"b": build}, [WriteFile()]
    app = App(backends=backends, default_backend="b", tools=tools)
    backends.clear()
    tools.clear()
    assert (len(app.backends), len(app.tools)) == (1, 1)


def test_an_inspector_is_what_has_its_method() -> None:
    class Inspector:
        async def inspect_continuation_safety(self, session_id: str, /) -> dict[str, Any]:
            return {}

    inspector: SafetyInspector = Inspector()
    app = App(backends={"b": build}, default_backend="b", safety_inspector=inspector)
    assert app.safety_inspector is inspector
