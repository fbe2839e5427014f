"""What a provider says went wrong → ``ModelError``: its kind, whether and when it is worth another try. No I/O."""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import attrs

from ..model import ModelError

#: Characters of what a provider says that are passed on: it may have answered with a whole page.
_SAID: Final = 500


@attrs.frozen
class _Kind:
    kind: str
    retryable: bool
    advice: str


_AUTH: Final = _Kind("provider_auth", False, "check the API key, and what it may do")
_RATE: Final = _Kind("provider_rate_limit", True, "wait, or ask for a higher limit")
_QUOTA: Final = _Kind("provider_rate_limit", False, "the account has nothing left to spend; look at its billing")
_OVERFLOW: Final = _Kind("context_overflow", False, "go on in a new session, or use a model with a larger context")
_REQUEST: Final = _Kind("provider_invalid_request", False, "check the model's name, the parameters and the base URL")
_SERVER: Final = _Kind("provider_server", True, "try again later")
_OVERLOADED: Final = _Kind("provider_overloaded", True, "try again later")
_RESPONSE: Final = _Kind("provider_invalid_response", False, "check the base URL")

#: HTTP status → kind; of those that are not here, 4xx is a wrong request and 5xx a server that failed.
_OF_STATUS: Final = {
    401: _AUTH,
    402: _QUOTA,
    403: _AUTH,
    408: _SERVER,
    409: _SERVER,
    429: _RATE,
    503: _OVERLOADED,
    529: _OVERLOADED,
}
#: The word that an error object has as its ``code`` or ``type`` → kind. It says more than the status.
_OF_WORD: Final = {
    "authentication_error": _AUTH,
    "billing_hard_limit_reached": _QUOTA,
    "billing_not_active": _QUOTA,
    "context_length_exceeded": _OVERFLOW,
    "engine_overloaded": _OVERLOADED,
    "exceed_context_size_error": _OVERFLOW,
    "insufficient_quota": _QUOTA,
    "invalid_api_key": _AUTH,
    "invalid_request_error": _REQUEST,
    "overloaded": _OVERLOADED,
    "overloaded_error": _OVERLOADED,
    "permission_error": _AUTH,
    "rate_limit_error": _RATE,
    "rate_limit_exceeded": _RATE,
}
#: Words that make a status more precise; the others of the table above are believed only where there is no status.
_PRECISE: Final = (_QUOTA, _OVERFLOW)
_STATUS: Final = re.compile("[1-5][0-9]{2}")
#: How servers without a word for it say that a request is too long.
_TOO_LONG: Final = re.compile(
    r"context[ _](length|window|size)|maximum context|prompt is too long|too many (input )?tokens", re.IGNORECASE
)


def error_of_status(status: int, body: object, headers: Mapping[str, str], now: float) -> ModelError:
    """The error of a response of HTTP ``status``. ``body`` is its error object or its text; ``now`` is Unix seconds."""
    kind = _of_status(status, body)
    said = _said(body)
    text = f"the provider answered with HTTP {status}{f': {said}' if said else ''}; {kind.advice}"
    return _error(kind, text, retry_after(headers, now) if kind.retryable else None)


def error_in_stream(body: object) -> ModelError:
    """The error of an error object that came where a chunk was to come."""
    code = str(_value(body, "code"))
    number = int(code) if _STATUS.fullmatch(code) else None
    words = (_OF_WORD[word] for word in _words(body) if word in _OF_WORD)
    unnamed = _OVERFLOW if _TOO_LONG.search(_message(body)) else _SERVER
    kind = next(words, unnamed) if number is None else _of_status(number, body)
    said = _said(body)
    return _error(kind, f"the provider broke off its response{f': {said}' if said else ''}; {kind.advice}")


def refuses(body: object, *words: str) -> bool:
    """Does an error speak of one of these words?"""
    param = body.get("param") if isinstance(body, dict) else None
    return any(word in f"{_message(body)} {param}" for word in words)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a provider asks to wait, named as milliseconds, as seconds or as a date; never below 0."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    named = headers.get("retry-after")
    if (seconds := _number(named)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(named or "").timestamp() - now)
    except (ValueError, OverflowError):
        return None


# ---------------------------------------------------------------- from status and body


def _of_status(status: int, body: object) -> _Kind:
    for word in _words(body):
        if (kind := _OF_WORD.get(word)) in _PRECISE and kind is not None:
            return kind
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    if status >= 500:
        return _SERVER
    if status < 400:
        return _RESPONSE
    return _OVERFLOW if _TOO_LONG.search(_message(body)) else _REQUEST


def _error(kind: _Kind, text: str, wait: float | None = None) -> ModelError:
    return ModelError(text, kind=kind.kind, retryable=kind.retryable, retry_after=wait)


def _words(body: object) -> list[str]:
    return [word for key in ("code", "type") if isinstance(word := _value(body, key), str)]


def _said(body: object) -> str:
    """A provider's own words on one line, shortened."""
    said = " ".join(_message(body).split()).rstrip(".;")
    return said if len(said) <= _SAID else f"{said[:_SAID]}…"


def _message(body: object) -> str:
    if isinstance(body, str):
        return body
    message = next((value for key in ("message", "detail") if (value := _value(body, key))), "")
    return message if isinstance(message, str) else str(message)


def _value(body: object, key: str) -> Any:
    return body.get(key) if isinstance(body, dict) else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None
