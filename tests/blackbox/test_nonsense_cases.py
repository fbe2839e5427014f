"""Whatever the lines say and whatever is done to their bytes: no traceback, legal history, repairs that converge."""

import random
from pathlib import Path

import pytest

from support.answers import codes, inspect, maka, refused, settled, untouched
from support.builder import Builder
from support.nonsense import Nonsense
from support.realistic import realistic

COMMANDS = ("inspect", "verify", "show", "tail")


def judged(path: Path) -> str:
    """Run everything on it, and see that it ends healthy where it can be repaired at all."""
    verdict: str = inspect(path, "--events")["verdict"]
    for command in COMMANDS:
        maka("journal", command, path)
    if verdict == "healthy":
        untouched(path)
    elif verdict in ("interrupted", "torn"):
        settled(path)
    elif verdict == "damaged":
        refused(path, "damaged")
        settled(path, "--salvage")
    else:
        refused(path, verdict, "--salvage")
    return verdict


@pytest.mark.parametrize("wild", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_relations_by_chance(tmp_path: Path, seed: int, wild: float) -> None:
    judged(Nonsense(seed, 5 + 4 * seed, wild).write(tmp_path))


def edited(raw: bytes, seed: int) -> bytes:
    random_ = random.Random(seed)
    out = bytearray(raw)
    for _ in range(random_.choice([1, 1, 2, 5])):
        at = random_.randrange(len(out) or 1)
        length = random_.choice([1, 1, 3, 42, 200, 1000])
        match random_.randrange(7):
            case 0:
                out[at : at + 1] = bytes([(out[at] if out else 0) ^ (1 << random_.randrange(8))])
            case 1:
                del out[at : at + length]
            case 2:
                out[at:at] = bytes(length)
            case 3:
                out[at:at] = out[max(0, at - 5 * length) : at]
            case 4:
                del out[at:]
            case 5:
                out[at:at] = b"\n"
            case _:
                out[at:at] = random_.randbytes(length)
    return bytes(out)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_by_chance(tmp_path: Path, seed: int) -> None:
    raw = realistic().raw() if seed % 2 else Nonsense(seed, 25).raw()
    other = Builder("other").start().step().write(tmp_path)
    before = other.read_bytes()
    judged(Builder().write(tmp_path, edited(raw, seed)))
    assert other.read_bytes() == before


def test_the_realistic_one_is_healthy(tmp_path: Path) -> None:
    doc = untouched(realistic().write(tmp_path))
    assert "open_turn" not in codes(doc)


CLAIMED = {
    "purpose": "resume",
    "turn": 1,
    "boundary": {"segments": []},
    "boundary_digest": "0" * 32,
    "replay_digest": "0" * 64,
    "replay_through_seq": 0,
    "source": {},
    "claimed_at": 1,
}


def _claim(journal: Builder, claim_id: str, run_id: str, turn_id: str) -> None:
    target = journal.run(run_id, turn_id)
    journal.add("continuation/claim", {"claim_id": claim_id, **CLAIMED, "target_run": target})


def _admit(journal: Builder, run_id: str, turn_id: str) -> None:
    execution = {"kind": "linked_child_initial"}
    data = {"turn_id": turn_id, "run_id": run_id, "message_id": "m", "previous_root_turn_id": None}
    journal.add("turn/admitted", {**data, "execution": execution, "input": {"content": []}, "input_digest": ""})


def test_two_claims_on_one_target_are_closed_once(tmp_path: Path) -> None:
    journal = Builder()
    _claim(journal, "k1", "rT", "tT")
    _claim(journal, "k2", "rT", "tT")
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["run/created", "continuation/start", "turn/end", "run/settled"]


@pytest.mark.parametrize("admitted_first", [True, False])
def test_a_claim_and_an_admission_of_one_turn(tmp_path: Path, admitted_first: bool) -> None:
    journal = Builder()
    if admitted_first:
        _admit(journal, "rT", "tT")
    _claim(journal, "k1", "rT", "tT")
    if not admitted_first:
        _admit(journal, "rT", "tT")
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["run/created", "continuation/start", "turn/end", "run/settled"]


def test_a_claim_whose_turn_was_admitted_with_another_run(tmp_path: Path) -> None:
    journal = Builder()
    _admit(journal, "rA", "tT")
    _claim(journal, "k1", "rT", "tT")
    repaired = settled(journal.write(tmp_path))
    assert repaired.types == ["turn/start", "user/message", "turn/end"]


def test_a_message_is_not_restored_into_a_turn_that_a_start_has_taken(tmp_path: Path) -> None:
    journal = Builder()
    _admit(journal, "rT", "tT")
    run = journal.run("rT", "tT")
    journal.add("turn/start", {"turn_id": "tT", "run_id": "rT", "invocation_id": "i", "turn": 1, "run": run})
    start = {"protocol": "continuation_start_v2", "start_kind": "runtime_admission", "purpose": "resume"}
    start |= {"claim_id": "k", "run_id": "rT", "turn_id": "tT", "boundary_digest": "", "replay_digest": ""}
    journal.add("continuation/start", {**start, "source": {}})
    path = journal.write(tmp_path)
    assert "message_missing" in codes(inspect(path))
    settled(path, "--salvage")
