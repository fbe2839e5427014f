"""Arguments as a model wrote them."""

import hashlib
from typing import Any

import pytest

from maka.runtime.tools.arguments import BadArguments, digest, parse, validate


def test_the_digest_is_of_what_the_journal_holds() -> None:
    assert digest('{"a": 1}') == hashlib.sha256(b'{"a": 1}').hexdigest()
    assert digest("\ud800") == hashlib.sha256("\ufffd".encode()).hexdigest()


@pytest.mark.parametrize("raw", ["{", "[]", "1", "null", '"x"', '{"a":Infinity}', "[" * 50_000])
def test_what_is_no_object_is_refused(raw: str) -> None:
    with pytest.raises(BadArguments):
        parse(raw)


@pytest.mark.parametrize(("raw", "value"), [("", {}), (" \n", {}), ('{"a":[1]}', {"a": [1]})])
def test_objects(raw: str, value: dict[str, Any]) -> None:
    assert parse(raw) == value


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, "own schema"),
        ({"$ref": "https://example.invalid/schema.json"}, "own schema"),
        ({"type": object()}, "own schema"),
        ({"properties": {"a": {"properties": {"b": {"type": "string"}}}}}, "['a']['b']"),
        ({"required": ["c"]}, "'c'"),
    ],
)
def test_what_does_not_fit_is_said(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArguments) as caught:
        validate({"a": {"b": 7}}, schema)
    assert words in str(caught.value)


def test_what_fits() -> None:
    validate({"a": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})
