"""`maka host` where no host answers, or one ends late: what is known is said, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maka.cli import hosting
from maka.runtime.host.absence import Absence
from maka.runtime.host.ownership import owner
from support.spoken import Hosted

Run = Callable[..., Any]


@pytest.mark.parametrize(("command", "more"), [("status", {}), ("stop", {"stopped": False})])
def test_a_host_of_another_user_is_not_none(
    maka_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr("maka.runtime.host.absence.look", lambda _: Absence("hidden", 4711, "it is another's"))
    ran = maka_("host", command)
    assert (ran.code, ran.out, ran.err) == (1, "", "maka: it is another's\n")
    doc = maka_("host", command, "--json").json
    assert doc == {"root": str(tmp_path / "root"), "state": "hidden", "pid": 4711, **more}


def test_a_process_that_outlives_its_host_is_told(maka_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "_LAST", 0.05)
    for lives, said in (([True] * 1000, "still lives"), ([True, False], "")):
        left = iter(lives)
        monkeypatch.setattr(hosting, "lives", lambda _, left=left: next(left))
        with Hosted(tmp_path / "root"):
            ran = maka_("host", "stop")
        assert ran.code == 0
        assert "has ended" in ran.out
        assert said in ran.err
        assert bool(said) == bool(ran.err)


def test_a_root_that_is_just_being_given_back_is_waited_for(
    maka_: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder takes its name out of the lock file a moment before."""
    seen: list[dict[str, Any]] = []

    def held(root: Path) -> dict[str, Any] | None:
        seen.append({"pid": None})
        return seen[-1] if len(seen) < 4 else owner(root)

    monkeypatch.setattr(hosting, "owner", held)
    with Hosted(tmp_path / "root"):
        assert maka_("host", "stop").code == 0
    assert len(seen) >= 4
