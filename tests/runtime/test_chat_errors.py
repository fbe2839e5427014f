"""What went wrong at a provider, as the loop is told of it."""

from email.utils import formatdate
from typing import Any

import pytest

from maka.runtime.model import ModelError
from maka.runtime.models.chat_errors import error_in_stream, error_of_status, refuses, retry_after

NOW = 1_790_000_000.0


def of(error: ModelError) -> tuple[str, bool]:
    return error.kind, error.retryable


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (302, "provider_invalid_response", False),
        (400, "provider_invalid_request", False),
        (401, "provider_auth", False),
        (402, "provider_rate_limit", False),
        (403, "provider_auth", False),
        (404, "provider_invalid_request", False),
        (408, "provider_server", True),
        (409, "provider_server", True),
        (418, "provider_invalid_request", False),
        (422, "provider_invalid_request", False),
        (429, "provider_rate_limit", True),
        (500, "provider_server", True),
        (502, "provider_server", True),
        (503, "provider_overloaded", True),
        (504, "provider_server", True),
        (529, "provider_overloaded", True),
    ],
)
def test_each_status(status: int, kind: str, retryable: bool) -> None:
    error = error_of_status(status, {"message": "that was it."}, {}, NOW)
    assert of(error) == (kind, retryable)
    assert str(error).startswith(f"the provider answered with HTTP {status}: that was it; ")


@pytest.mark.parametrize(
    "body",
    [
        {"code": "context_length_exceeded", "message": "no"},
        {"code": 400, "type": "exceed_context_size_error"},
        {"message": "This model's maximum context length is 8192 tokens."},
        {"message": "prompt is too long: 9000 tokens > 8000 maximum"},
        "the request exceeds the available context size",
    ],
    ids=repr,
)
def test_a_request_that_is_too_long(body: Any) -> None:
    assert of(error_of_status(400, body, {}, NOW)) == ("context_overflow", False)


@pytest.mark.parametrize("body", [{"code": "insufficient_quota"}, {"type": "insufficient_quota", "code": None}])
def test_an_account_without_money_is_not_asked_again(body: Any) -> None:
    error = error_of_status(429, body, {"retry-after": "3"}, NOW)
    assert of(error) == ("provider_rate_limit", False)
    assert error.retry_after is None
    assert "billing" in str(error)


@pytest.mark.parametrize("body", [None, "", {}, [], {"message": None}, {"message": {"a": 1}}, 3], ids=repr)
def test_a_body_may_be_anything(body: Any) -> None:
    assert of(error_of_status(500, body, {}, NOW)) == ("provider_server", True)
    assert of(error_in_stream(body)) == ("provider_server", True)
    assert not refuses(body, "stream_options")


def test_a_page_of_text_is_shortened_to_one_line() -> None:
    text = str(error_of_status(502, "<html>\n" + "x" * 10_000, {}, NOW))
    assert len(text) < 700
    assert "\n" not in text


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "20"}, 20.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
    ],
    ids=repr,
)
def test_when_to_ask_again(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds
    assert error_of_status(429, None, headers, NOW).retry_after == seconds


@pytest.mark.parametrize(
    ("body", "kind", "retryable"),
    [
        ({"code": 502, "message": "x"}, "provider_server", True),
        ({"code": "429"}, "provider_rate_limit", True),
        ({"code": 401}, "provider_auth", False),
        ({"type": "overloaded_error"}, "provider_overloaded", True),
        ({"type": "invalid_request_error"}, "provider_invalid_request", False),
        ({"type": "server_error"}, "provider_server", True),
        ({"code": "rate_limit_exceeded"}, "provider_rate_limit", True),
        ({"code": "insufficient_quota"}, "provider_rate_limit", False),
        ({"message": "the context length was exceeded"}, "context_overflow", False),
        ({"code": 99999}, "provider_server", True),
        ("out of memory", "provider_server", True),
    ],
    ids=repr,
)
def test_errors_inside_a_stream(body: Any, kind: str, retryable: bool) -> None:
    assert of(error_in_stream(body)) == (kind, retryable)


def test_what_an_error_speaks_of() -> None:
    assert refuses({"message": "Unknown field stream_options."}, "stream_options")
    assert refuses({"message": "no", "param": "stream_options.include_usage"}, "stream_options")
    assert not refuses({"message": "Unknown field tools."}, "stream_options")
