"""What a run's agent is made of: what a composition may hold, how it is read again, what makes another agent."""

import hashlib
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from maka.journal.codec import decode, encode
from maka.journal.events import Draft
from maka.runtime.composition import MAX_NAME, MAX_TOOLS, SEMANTICS, RunComposition, drift, hashed

ZERO, ONE = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
HASHES = [key for key in SEMANTICS if key != "context_window"]
GIVEN: dict[str, Any] = {"composer_id": "maka.loop", "composer_revision": "1", **dict.fromkeys(HASHES, ZERO)}


def made(**values: Any) -> RunComposition:
    return RunComposition(**{**GIVEN, **values})


# ---------------------------------------------------------------- what it may hold


@pytest.mark.parametrize(
    "values",
    [
        {"composer_id": "a"},
        {"composer_id": "maka-loop.v2-rc1.0"},
        {"composer_id": "a" * MAX_NAME},
        {"composer_revision": "x" * MAX_NAME},
        {"composer_revision": "Ünïcode and spaces"},
        {"source_revisions": {}},
        {"source_revisions": {str(number): "r" * MAX_NAME for number in range(64)}},
        {"tool_names": []},
        {"tool_names": [f"t{number}" for number in range(MAX_TOOLS)]},
        {"tool_names": {"x" * MAX_NAME, "Y"}},
        {"context_window": None},
        {"context_window": 1},
        {"context_window": 2**31},
    ],
)
def test_what_one_may_hold_is_the_same_when_it_is_read_again(values: dict[str, Any]) -> None:
    assert RunComposition.from_json(made(**values).to_json()) == made(**values)


BAD: list[tuple[str, Any]] = [
    *(
        ("composer_id", id_)
        for id_ in ("", "A", "1a", "a..b", "a.", ".a", "a_b", "a b", "a-", "a" * 129, "a\n", 3, None)
    ),
    *(("composer_revision", revision) for revision in ("", "x" * 129, 1, None)),
    *(
        ("source_revisions", sources)
        for sources in (
            {str(number): "r" for number in range(65)},
            {"": "r"},
            {"x" * 129: "r"},
            {"x": ""},
            {"x": "r" * 129},
            {"x": 3},
            {3: "x"},
            [("x", "r")],
            "x",
            None,
        )
    ),
    *(
        (key, value)
        for key in HASHES
        for value in (
            "",
            "0" * 64,
            f"sha256:{'0' * 63}",
            f"sha256:{'0' * 65}",
            f"sha256:{'A' * 64}",
            ZERO + "\n",
            None,
            3,
        )
    ),
    *(
        ("tool_names", names)
        for names in (
            [f"t{number}" for number in range(MAX_TOOLS + 1)],
            ["x" * (MAX_NAME + 1)],
            [""],
            ["a", "a"],
            ["a", 3],
            "ab",
            None,
            3,
        )
    ),
    *(("context_window", window) for window in (0, -1, True, 1.0, "1")),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=lambda each: str(each)[:30])
def test_what_none_can_hold_is_refused_and_named(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        made(**{key: value})


def test_what_is_not_sorted_is_sorted_when_it_is_made() -> None:
    one = made(tool_names=["b", "a", "B"], source_revisions={"z": "1", "a": "2"})
    assert one.tool_names == ("B", "a", "b")
    assert one.to_json()["source_revisions"] == [{"id": "a", "revision": "2"}, {"id": "z", "revision": "1"}]
    assert one == made(tool_names=("a", "b", "B"), source_revisions={"a": "2", "z": "1"})


def test_it_is_laid_down_as_the_format_says() -> None:
    assert list(made().to_json()) == [
        *("schema", "composer_id", "composer_revision", "source_revisions", "base_system_prompt_hash"),
        *("tool_catalog_hash", "tool_availability_hash", "base_provider_options_hash", "tool_names", "context_window"),
    ]
    assert made().to_json()["schema"] == 1


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 2},
        {"schema": None},
        {"tool_names": ["b", "a"]},
        {"tool_names": ["a", "a"]},
        {"tool_names": {"a": 1}},
        {"tool_names": None},
        {"source_revisions": [{"id": "b", "revision": "1"}, {"id": "a", "revision": "1"}]},
        {"source_revisions": [{"id": "a", "revision": "1"}, {"id": "a", "revision": "1"}]},
        {"source_revisions": [{"id": "a", "revision": "1"}, {"id": "a", "revision": "2"}]},
        {"source_revisions": [{"id": 1, "revision": "1"}]},
        {"source_revisions": [{"id": "a"}]},
        {"source_revisions": ["a"]},
        {"source_revisions": {"a": "1"}},
    ],
)
def test_what_nobody_laid_down_like_that_is_not_read(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RunComposition.from_json({**made(tool_names=["a", "b"]).to_json(), **changed})


@pytest.mark.parametrize(("key", "value"), [row for row in BAD if row[0] not in ("source_revisions", "tool_names")])
def test_what_none_can_hold_is_not_read(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        RunComposition.from_json({**made().to_json(), key: value})


@pytest.mark.parametrize("data", [None, [], "x", 3, {}, {"schema": 1}])
def test_what_is_no_composition_is_not_read(data: Any) -> None:
    with pytest.raises(ValueError):
        RunComposition.from_json(data)


@pytest.mark.parametrize("key", [key for key in made().to_json() if key != "context_window"])
def test_each_key_has_to_be_there(key: str) -> None:
    data = made().to_json()
    del data[key]
    with pytest.raises(ValueError):
        RunComposition.from_json(data)


def test_keys_of_later_versions_are_passed_over() -> None:
    assert RunComposition.from_json({**made().to_json(), "mood": "good"}) == made()


_texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_hashes = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)
_compositions = st.builds(
    RunComposition,
    composer_id=st.from_regex(r"[a-z][a-z0-9]{0,5}([.-][a-z0-9]{1,5}){0,3}", fullmatch=True),
    composer_revision=_texts,
    source_revisions=st.dictionaries(_texts, _texts, max_size=5),
    **dict.fromkeys(HASHES, _hashes),
    tool_names=st.lists(_texts, max_size=6, unique=True),
    context_window=st.none() | st.integers(1, 2**63 - 1),
)


@given(_compositions)
def test_whatever_one_holds_is_the_same_behind_a_journal(one: RunComposition) -> None:
    line, _ = encode(Draft("run/composition", {"run_id": "r", "composition": one.to_json()}), 0, 0, "0" * 32)
    event = decode(line)
    assert event is not None
    assert RunComposition.from_json(event.data["composition"]) == one
    assert drift(one, RunComposition.from_json(event.data["composition"])) == []


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(_json, st.dictionaries(st.sampled_from(sorted(made().to_json())), _json, max_size=4))
def test_what_is_read_is_a_composition_or_a_value_error(anything: Any, changed: dict[str, Any]) -> None:
    for data in (anything, {**made(tool_names=["a"]).to_json(), **changed}):
        try:
            one = RunComposition.from_json(data)
        except ValueError:
            continue
        assert one.to_json() == {key: data.get(key) for key in one.to_json()}


# ---------------------------------------------------------------- hashes, drift


def test_a_hash_is_that_of_compact_json_with_sorted_keys() -> None:
    assert (
        hashed({"b": [1, None], "a": "é"}) == "sha256:" + hashlib.sha256('{"a":"é","b":[1,null]}'.encode()).hexdigest()
    )
    assert hashed({"b": 1, "a": 2}) == hashed({"a": 2, "b": 1})
    assert hashed([1, 2]) != hashed([2, 1])


@pytest.mark.parametrize(("key", "name"), SEMANTICS.items())
def test_each_of_these_makes_another_agent(key: str, name: str) -> None:
    other = made(**{key: 8192 if key == "context_window" else ONE})
    assert drift(made(), other) == drift(other, made()) == [name]


def test_all_that_has_changed_is_told() -> None:
    other = made(**dict.fromkeys(HASHES, ONE), context_window=1)
    assert drift(made(), other) == ["prompt", "tool catalog", "tool availability", "provider options", "context window"]


@given(_compositions, _compositions)
def test_where_it_came_from_makes_no_other_agent(one: RunComposition, other: RunComposition) -> None:
    kept: dict[str, Any] = {key: getattr(one, key) for key in SEMANTICS}
    assert drift(one, attrs.evolve(other, **kept)) == []
