"""What an inspector sees is an observation, as a journal would keep it; whatever else it gives or raises is none."""

import asyncio
import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from maka.journal.codec import MAX_DEPTH, decode, encode
from maka.journal.events import Draft
from maka.runtime.continuation import safety
from maka.runtime.continuation.safety import (
    MAX_BYTES,
    SafetyObservation,
    Unobserved,
    observation_of,
    observe,
    workspace_identity,
)


def seen(**values: Any) -> dict[str, Any]:
    return {
        "workspace_identity": "w",
        "background_operations_settled": True,
        "available_tool_names": ["b", "a", "b"],
        **values,
    }


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_mapping_is_an_observation_and_so_is_one_itself() -> None:
    observation = observation_of(seen(cwd="/tmp", checkpoint={"ref": "k"}))
    assert observation == SafetyObservation(
        workspace_identity="w",
        background_operations_settled=True,
        available_tool_names=("a", "b"),
        checkpoint={"ref": "k"},
        cwd="/tmp",
    )
    assert observation_of(observation) == observation


#: Of the values that a header holds one level deeper than an event's own data.
DEEPEST = MAX_DEPTH - 2
NOT_KEPT: list[tuple[str, Any]] = [
    ("PosixPath", Path("/")),
    ("tuple", (1,)),
    ("set", {1}),
    ("bytes", b"w"),
    ("nan", math.nan),
    ("inf", [math.inf]),
    ("not text", {1: 2}),
    ("half of a surrogate pair", "w\ud800"),
    ("half of a surrogate pair", {"\udfff": 1}),
    ("64 bits", 2**63),
    ("64 bits", -(2**63) - 1),
    ("deeper", nested(DEEPEST + 1)),
    ("deeper", nested(5_000)),
    ("OrderedDict", OrderedDict(a=1)),
    ("object", {"deep": [{"in": object()}]}),
    ("bytes long", "x" * MAX_BYTES),
]


@pytest.mark.parametrize(("named", "value"), NOT_KEPT, ids=[name for name, _ in NOT_KEPT])
def test_what_no_header_keeps_is_no_observation(named: str, value: Any) -> None:
    for key, given_ in (("workspace_identity", value), ("checkpoint", {"ref": value})):
        with pytest.raises(Unobserved, match=named) as refused:
            observation_of(seen(**{key: given_}))
        assert key in str(refused.value)


@pytest.mark.parametrize("value", [None, 0, -0.0, 1.5, -(2**63), 2**63 - 1, "", "\U0001f600", nested(DEEPEST)])
def test_what_it_keeps_is_given_back(value: Any) -> None:
    assert json.dumps(observation_of(seen(workspace_identity=value)).workspace_identity) == json.dumps(value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers(), inner),
)


@given(_JSON)
def test_whatever_is_taken_stands_in_a_header_as_it_is(value: Any) -> None:
    try:
        identity = observation_of(seen(workspace_identity=value)).workspace_identity
    except Unobserved:
        return
    assert identity == value
    draft = Draft("run/created", {"run": {"run_id": "r", "workspace_identity": identity}})
    line, _ = encode(draft, 0, 0, "0" * 32)
    event = decode(line)
    assert event is not None
    assert event.data["run"]["workspace_identity"] == identity


def test_an_inspector_may_go_on_using_what_it_gave() -> None:
    identity = {"commit": "a"}
    observation = observation_of(seen(workspace_identity=identity))
    identity["commit"] = "b"
    assert observation.workspace_identity == {"commit": "a"}


# ---------------------------------------------------------------- cancelled


class Inspector:
    """``looks`` is awaited, and gives the observation."""

    def __init__(self, looks: Any) -> None:
        self.looks = looks

    def inspect_continuation_safety(self, session_id: str) -> Any:
        return self.looks()


async def cancels_itself() -> Any:
    raise asyncio.CancelledError


async def waits_for_what_is_cancelled() -> Any:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    return await future


def raises_at_once() -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("looks", [cancels_itself, waits_for_what_is_cancelled, raises_at_once])
def test_an_inspector_that_is_cancelled_and_nobody_asked_for_it_has_seen_nothing(looks: Any) -> None:
    with pytest.raises(Unobserved, match="cancelled"):
        asyncio.run(observe(Inspector(looks), "s"))


def test_who_looks_can_be_cancelled() -> None:
    async def main() -> None:
        looking = asyncio.Event()

        async def look() -> Any:
            looking.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(observe(Inspector(look), "s"))
        await looking.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_one_that_takes_too_long_has_seen_nothing_and_leaves_its_caller_uncancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(safety, "SECONDS", 0.01)

    async def main() -> None:
        with pytest.raises(Unobserved, match="longer"):
            await observe(Inspector(asyncio.Event().wait), "s")
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    asyncio.run(main())


def test_a_workspace_is_a_directory_and_the_one_that_is_there(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    first = workspace_identity(str(place))
    assert first is not None
    assert first == workspace_identity(str(place)) == workspace_identity(f"{tmp_path}/./work")
    (tmp_path / "link").symlink_to(place)
    assert workspace_identity(str(tmp_path / "link")) == first
    (place / "file").write_text("what is in it makes no other one of it")
    assert workspace_identity(str(place)) == first
    (place / "file").unlink()
    place.rmdir()
    assert workspace_identity(str(place)) is None
    place.write_text("a file in its place")
    assert workspace_identity(str(place)) is None
    place.unlink()
    place.mkdir()
    again = workspace_identity(str(place))
    assert again is not None
    # Its number may be that of the first; then only a file system that counts generations tells them apart.
    same = (again["device"], again["inode"]) == (first["device"], first["inode"])
    assert again != first or (same and "generation" not in again)


class Hostile:
    def __init__(self, how: str) -> None:
        self.how = how

    async def inspect_continuation_safety(self, session_id: str) -> Any:
        if self.how == "raises what is no Exception":
            raise GeneratorExit("x")
        if self.how == "cancels its own task":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return Liar(seen())


class Liar(OrderedDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError("a lie")


@pytest.mark.parametrize("how", ["raises what is no Exception", "cancels its own task", "lies"])
def test_whatever_an_inspector_does_is_no_business_of_whoever_asks(how: str) -> None:
    async def main() -> None:
        with pytest.raises(Unobserved):
            await observe(Hostile(how), "s")
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    asyncio.run(main())
