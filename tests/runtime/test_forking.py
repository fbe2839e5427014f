"""Where a fork begins, by the events of its parent alone."""

from typing import Any

import pytest

from maka.journal.events import Event
from maka.runtime.errors import ForkRefused
from maka.runtime.forking import fork_point


def events(*told: tuple[str, dict[str, Any]]) -> list[Event]:
    return [Event(seq, 0, type_, data, f"sum-{seq}") for seq, (type_, data) in enumerate(told)]


def header(**values: Any) -> tuple[str, dict[str, Any]]:
    return "session/header", {"session_id": "s", "name": "Origin", "model": "big", "cwd": "/w", **values}


def updated(**patch: Any) -> tuple[str, dict[str, Any]]:
    return "session/updated", {"patch": patch}


def begun(turn_id: str, type_: str = "turn/start") -> tuple[str, dict[str, Any]]:
    return type_, {"turn_id": turn_id}


def ended(turn_id: str) -> tuple[str, dict[str, Any]]:
    return "turn/end", {"turn_id": turn_id}


def point(*told: tuple[str, dict[str, Any]], turn_id: str | None = None, before: int | None = None) -> tuple[Any, Any]:
    where, values = fork_point("s", events(*told), turn_id=turn_id, before=before)
    assert where["sum"] == f"sum-{where['seq']}"
    return where["seq"], values


OPENS = pytest.mark.parametrize("opens", ["turn/start", "continuation/start"])


def test_it_is_the_end_of_the_turn_with_the_values_of_then() -> None:
    told = (header(), begun("a"), updated(model="small"), ended("a"), updated(model="other"), begun("b"), ended("b"))
    assert point(*told, turn_id="a") == (3, {"model": "small", "cwd": "/w"})
    assert point(*told, turn_id="b") == (6, {"model": "other", "cwd": "/w"})


def test_it_takes_over_no_name_and_no_flag() -> None:
    taken = {"labels": ["x"], "connection": "c", "permission_mode": "ask", "backend": "loop"}
    told = (header(), updated(name="New", flagged=True, archived=True, **taken), begun("a"), ended("a"))
    assert point(*told) == (3, {"model": "big", "cwd": "/w", **taken})


@OPENS
def test_the_newest_point_stands_before_what_is_open(opens: str) -> None:
    told = (header(), begun("a", opens), ended("a"), updated(model="small"), begun("b", opens), updated(model="late"))
    assert point(*told) == (3, {"model": "small", "cwd": "/w"})


@OPENS
def test_a_turn_that_ends_while_another_is_open_is_no_point(opens: str) -> None:
    told = (header(), begun("a", opens), begun("b", opens), ended("a"), ended("b"))
    assert point(*told)[0] == 4
    with pytest.raises(ForkRefused, match="session s has no closed turn a of its own; name one that has ended"):
        point(*told, turn_id="a")


def test_what_comes_behind_the_limit_counts_for_nothing() -> None:
    told = (header(), begun("a"), ended("a"), begun("b"), ended("b"), updated(model="small"))
    assert point(*told, before=4) == (2, {"model": "big", "cwd": "/w"})
    assert point(*told, before=5)[0] == 4
    with pytest.raises(ForkRefused, match="no closed turn b of its own"):
        point(*told, turn_id="b", before=4)


@pytest.mark.parametrize("told", [(), (begun("a"),), (updated(model="small"),)])
def test_before_a_turn_has_ended_there_is_none(told: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    with pytest.raises(ForkRefused, match="session s has no closed turn of its own to fork it at; let one end first"):
        point(header(), *told)
