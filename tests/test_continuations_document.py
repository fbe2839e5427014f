"""What the document on continuations says in tables is what the runtime and the command do."""

import inspect
import re

import attrs

from maka.cli import exits
from maka.runtime.continuation import codes, safety
from maka.runtime.errors import SettleRefused
from maka.runtime.sessions import SessionManager
from support import documents
from support.documents import CONTINUATIONS


def first_cells(*columns: str) -> list[str]:
    return [row[0].strip("`") for row in documents.table(CONTINUATIONS, *columns)]


def of_section(heading: str) -> str:
    return CONTINUATIONS.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def codes_of(heading: str) -> list[str]:
    return [row[0].strip("`") for row in documents.table(of_section(heading), *_COLUMNS[heading])]


_COLUMNS = {
    "Why a plan parks": ("reason", "what it means", "what to do"),
    "When a plan is out of date": ("code", "what it means", "what to do"),
}


def test_each_reason_is_there_in_the_order_of_the_checks() -> None:
    assert codes_of("Why a plan parks") == list(codes.REASONS)


def test_each_way_of_going_stale_is_there_in_the_order_of_the_checks() -> None:
    assert codes_of("When a plan is out of date") == list(codes.STALE)


def test_each_remark_is_named() -> None:
    assert {code for code in codes.REMARKS if f"`{code}`" not in CONTINUATIONS} == set()


def test_the_crash_table_names_reasons_that_there_are() -> None:
    told = [row[2] for row in documents.table(CONTINUATIONS, *_CRASH)]
    named = {code for cell in told for code in re.findall(r"`(\w+)`", cell)}
    assert named == {code for code in codes.REASONS if code.startswith("continuation_") and "identity" not in code}


_CRASH = ("killed behind", "on the disk", "a plan says", "recovery writes", "and then")


def test_the_exit_codes_are_those_of_the_command() -> None:
    told = [int(row[0]) for row in documents.table(CONTINUATIONS, "exit code", "`resume`", "`settle`")]
    assert told == [
        exits.DONE, exits.PENDING, exits.USAGE, exits.LOCKED, exits.REFUSED, exits.LIMITED, exits.INTERRUPTED,
        exits.TERMINATED,
    ]  # fmt: skip


def test_the_arguments_of_a_plan_are_the_method_s() -> None:
    method = inspect.signature(SessionManager.plan_safe_boundary_continuation).parameters
    rows = documents.table(CONTINUATIONS, "argument of `plan_safe_boundary_continuation`", "default", "what it is")
    told = {row[0].strip("`"): row[1].strip("`") for row in rows}
    defaults = {name: str(given.default).replace("resume", '"resume"') for name, given in method.items()}
    assert told == {name: default for name, default in defaults.items() if name not in ("self", "session_id")}


def test_an_observation_has_these_attributes() -> None:
    told = first_cells("of a `SafetyObservation`", "is")
    assert told == [field.name for field in attrs.fields(safety.SafetyObservation)]
    assert f"{safety.SECONDS:g} seconds" in of_section("The workspace")


def test_each_code_of_a_refusal_to_settle_is_told() -> None:
    known = set(re.findall(r"``(\w+)``", str(SettleRefused.__doc__))) - {"code"}
    assert "claim_unknown" in known
    assert {code for code in known if f"`{code}`" not in of_section("The ways out")} == set()


def test_nobody_is_told_to_throw_anything_away() -> None:
    assert not re.findall(r"\b(?:rm|unlink|delete|remove|erase|truncate|discard)\w*\b", CONTINUATIONS.lower())
