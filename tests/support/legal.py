"""Is a provider history legal? Says nothing about how it was made, and shares nothing with what makes it."""

from typing import Any


def assert_legal(messages: list[dict[str, Any]]) -> None:
    """The user begins; no two assistant messages in a row; calls are answered at once, all of them, in their order."""
    waiting: list[str] | None = None
    last: str | None = None
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        assert role in ("user", "assistant", "tool"), f"message {number} is of {role!r}"
        assert content, f"message {number} is empty"
        assert last is not None or role == "user", "the user does not begin"
        results = [block for block in content if block.get("kind") == "tool_result"]
        if waiting:
            assert role == "tool", f"message {number} stands between calls and their results"
            assert [block["call_id"] for block in results] == waiting, f"message {number} answers other calls"
            assert len(results) == len(content), f"message {number} holds more than results"
            for block in results:
                assert isinstance(block["is_error"], bool)
                assert isinstance(block["state"], str)
                assert isinstance(block["content"], list)
        else:
            assert role != "tool", f"message {number} answers no call"
            assert not results, f"message {number} holds a result of no call"
        assert (last, role) != ("assistant", "assistant"), f"message {number} is the assistant's again"
        for block in content:
            if block.get("kind") in ("text", "thinking"):
                assert isinstance(block.get("text"), str) or block.get("ref"), (
                    f"message {number} holds text that is none"
                )
            elif block.get("kind") == "tool_call":
                assert isinstance(block["name"], str)
                assert isinstance(block["arguments"], str)
        calls = [block["call_id"] for block in content if block.get("kind") == "tool_call"]
        assert not calls or role == "assistant", f"message {number} calls tools and is the {role}'s"
        waiting, last = calls, role
    assert not waiting, "the last calls are not answered"
