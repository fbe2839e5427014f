"""What a person typed for an id stands for one id, or for none, and is said to be unclear where it fits several."""

from typing import Any

import pytest

from maka.cli import naming

RUNS = [{"run_id": "7e0a11"}, {"run_id": "7e0a22"}, {"run_id": "r1"}]
TURNS: list[dict[str, Any]] = [
    {"turn_id": "t000001", "turn": 1, "run_ids": ["r1", "7e0a11"], "calls": [{"call_id": "call-1"}]},
    {"turn_id": "t000002", "turn": 2, "run_ids": [], "calls": [{"call_id": "call-10"}, {"call_id": "1742"}]},
]
UNKNOWN: list[dict[str, Any]] = [
    {"call_id": "call-10", "operation_id": "1742ab", "call_seq": 17},
    {"call_id": "c0", "operation_id": "beef01", "call_seq": 1800},
    {"call_id": "c0", "operation_id": None, "call_seq": 1900},
]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("r1", "r1"), ("7e0a11", "7e0a11"), ("7e0a1", "7e0a11"), ("7e0a1…", "7e0a11"), ("25", "25"), ("zzzz", "zzzz")],
)
def test_a_run_is_meant_by_its_id_or_a_beginning_of_four(typed: str, meant: str) -> None:
    assert naming.run(typed, RUNS, TURNS) == meant


def test_what_fits_several_is_unclear() -> None:
    with pytest.raises(naming.Unclear, match="`--run 7e0a` fits several: 7e0a11, 7e0a22; give more"):
        naming.run("7e0a", RUNS, TURNS)
    claims = [{"claim_id": f"claim-{letter}"} for letter in "abcdefghijkl"]
    with pytest.raises(naming.Unclear, match=r"claim-a, .*, claim-j and 2 more;"):
        naming.claim("claim", claims)
    assert naming.claim("claim-b", claims) == "claim-b"


@pytest.mark.parametrize("typed", ["7", "7e0", "7e0…"])
def test_a_beginning_that_is_too_short_is_said_to_be(typed: str) -> None:
    with pytest.raises(naming.Unclear, match=f"`--run {typed}` is too short: .* at least 4 characters .* of 7e0a11"):
        naming.run(typed, RUNS, TURNS)


def test_a_handoff_is_meant_by_its_id_or_a_beginning() -> None:
    handoffs = [{"handoff_id": "hand-1"}, {"handoff_id": "hand-2"}, {"handoff_id": "over\x1b[2J" + "x" * 300}]
    assert naming.handoff("hand-1", handoffs) == "hand-1"
    assert naming.handoff("over", handoffs) == handoffs[2]["handoff_id"]
    assert naming.handoff("h9", handoffs) == "h9"
    with pytest.raises(naming.Unclear, match="`--handoff hand` fits several: hand-1, hand-2; give more"):
        naming.handoff("hand", handoffs)


def test_a_turns_id_is_answered_with_its_run() -> None:
    for typed in ("t000001", "t00000"):
        with pytest.raises(naming.Unclear, match="t000001 is turn 1, and no run; its run is `--run 7e0a11`"):
            naming.run(typed, RUNS, TURNS)
    assert naming.run("t000002", RUNS, TURNS) == "t000002", "it has none"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("call-1", "call-1"),  # another one's whole name, whose outcome is known
        ("call", "call-10"),
        ("1742", "1742"),
        ("1742a", "1742ab"),
        ("1800", "1800"),
        ("c0", "c0"),
        ("beef", "beef01"),
        ("c9", "c9"),
    ],
)
def test_a_call_is_meant_by_its_name_or_its_operation(typed: str, meant: str) -> None:
    assert naming.call(typed, UNKNOWN, TURNS) == meant
