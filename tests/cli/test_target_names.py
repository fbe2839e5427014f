"""Targets that name nothing, or nothing that can be read: one sentence each."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.mark.parametrize("name", ["n" * 300, "n" * 5000, "", "nöne"])
def test_a_name_without_a_session_is_refused_with_the_root(maka_: Run, tmp_path: Path, name: str) -> None:
    said = maka_("journal", "inspect", name, "--root", tmp_path)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("maka: there is no ")
    assert len(said.err) < 700
    assert name == "" or f"under {tmp_path}" in said.err


def test_a_refusal_says_path_and_remedy_once(maka_: Run, tmp_path: Path) -> None:
    place = tmp_path / "pipe.jsonl"
    os.mkfifo(place)
    said = maka_("journal", "show", place)
    assert said.code == 4
    assert said.err.count(str(place)) == 1
    assert said.err.count(";") == 1
