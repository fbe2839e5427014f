"""The text that a model wrote as arguments → checked arguments, or a sentence that says what is wrong. No I/O."""

import json
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ...journal.codec import encodable
from ...journal.events import JsonObject

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: At most this much of a validator's message is shown to the model.
_SHOWN = 500


class BadArguments(Exception):
    """The arguments are not JSON, no object, or do not fit the schema. The message is for the model."""


def digest(raw: str) -> str:
    """The 64 hex of SHA-256 of the text as it stands in the journal."""
    return sha256(encodable(raw).encode()).hexdigest()


def parse(raw: str) -> dict[str, Any]:
    """The object that ``raw`` holds; blank text is an empty one. Raises BadArguments."""
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"the arguments are not valid JSON: {str(error)[:_SHOWN]}") from None
    if not isinstance(value, dict):
        raise BadArguments(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def validate(arguments: dict[str, Any], schema: JsonObject) -> None:
    """Raises BadArguments for what does not fit ``schema``, or where that is no schema."""
    from jsonschema.exceptions import SchemaError, best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(_validator(json.dumps(schema)).iter_errors(arguments))
    except (SchemaError, Unresolvable, TypeError, ValueError) as broken:
        fault = schema_fault(schema) or " ".join(str(broken).split())[:_SHOWN]
        raise BadArguments(f"the tool's own schema cannot be used: {fault}") from None
    except RecursionError:
        raise BadArguments("the arguments nest too deep") from None
    if error is not None:
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        raise BadArguments(f"arguments{where}: {error.message[:_SHOWN]}")


def schema_fault(schema: JsonObject) -> str | None:
    """What is wrong with a tool's own schema, in a line; None if it is one."""
    from jsonschema.exceptions import SchemaError

    try:
        _validator(json.dumps(schema))
    except SchemaError as broken:
        where = "".join(f"[{part!r}]" for part in broken.absolute_path)
        return f"{where}{': ' if where else ''}{' '.join(broken.message.split())[:_SHOWN]}"
    except (TypeError, ValueError, RecursionError) as broken:
        return f"it cannot be written as JSON ({' '.join(str(broken).split())[:_SHOWN]})"
    return None


@lru_cache(maxsize=256)
def _validator(schema: str) -> "Validator":
    from jsonschema import Draft202012Validator
    from referencing import Registry

    parsed = json.loads(schema)
    Draft202012Validator.check_schema(parsed)
    # An empty registry: a schema never makes this process fetch something.
    return Draft202012Validator(parsed, registry=Registry())
