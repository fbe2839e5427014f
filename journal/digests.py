"""What contents are told apart by: equal ones have one digest, in whatever order their keys stand. No I/O."""

from hashlib import sha256
from typing import Any

import orjson


def digest_of(value: Any) -> str:
    """The 64 hex of the SHA-256 of a value's compact JSON with sorted keys. Raises TypeError for what is no JSON."""
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
