"""What the words of DeepSeek Harness stand for: types of events, ends of turns, errors of calls. No I/O."""

from collections.abc import Callable
from typing import Final

from ..events import EndKind, JsonObject, ResultState
from .dsh_stream import failure_of
from .values import mapping, text

#: How a turn ended.
END_KINDS: Final[dict[str, EndKind]] = {
    "completed": "completed",
    "aborted": "aborted",
    "blocked": "blocked",
    "error": "failed",
    "max-tokens": "max_tokens",
    "interrupted": "interrupted",
}
#: Who speaks, where the message does not say so.
SOURCES: Final = {"system/message": "system", "steering/message": "steering"}
#: By the error's code; every other failure is one of the tool.
STATES: Final[dict[str, ResultState]] = {
    "ABORTED_BEFORE_DISPATCH": "not_started",
    "TOOL_NOT_STARTED": "not_started",
    "TOOL_OUTCOME_UNKNOWN": "unknown",
    "ABORTED": "cancelled",
}
#: Types that stand for nothing in a conversation.
KNOWN: Final = frozenset(
    """
    agent/inbox/spliced agent-preset/selected approval/policy sandbox/mode permission/preset plan/mode compaction/start
    compaction/summary compaction/prune goal/change hook/invoked llm/retry-started mode/set request/context
    request/header-delta schedule/change session-log-deepseek/delivery-accepted session/end-seed
    session/title-llm-request subagent/descriptor subagent/model-selection-policy team/member team/task
    team/message/queued team/message/delivered todo/write tool-workflow/run-start tool-workflow/agent-start
    tool-workflow/agent-end tool-workflow/run-end web/deepseek-search-llm-request
    """.split()
)


def _of_hook(data: JsonObject) -> str | None:
    why = text(data.get("stderrSummary"))
    return None if why is None else f"{data.get('point')}, {data.get('decision')}: {why}"


def _of_retry(data: JsonObject) -> str | None:
    return failure_of(data.get("failure"))


def _of_asked(data: JsonObject) -> str | None:
    tool, reason = text(data.get("toolName")), text(data.get("reason"))
    return tool if reason is None else f"{tool}: {reason}"


def _of_command(data: JsonObject) -> str | None:
    name, args = text(data.get("name")), data.get("args")
    return None if name is None else f"/{name} {args.strip() if isinstance(args, str) else ''}".rstrip()


def _value_of(key: str) -> Callable[[JsonObject], str | None]:
    return lambda data: text(data.get(key))


#: Types that a person is told of, and what of them; where that says nothing they are kept.
NOTES: Final[dict[str, Callable[[JsonObject], str | None]]] = {
    "approval/asked": _of_asked,
    "approval/decided": _value_of("outcome"),
    "command/done": _value_of("text"),
    "command/run": _of_command,
    "compaction/end": _value_of("error"),
    "feedback/record": _value_of("text"),
    "hook/result": _of_hook,
    "llm/retry": _of_retry,
}


def route(type_: str, data: JsonObject) -> tuple[str | None, str | None]:
    """Model and provider that a line names."""
    if type_ == "request/header":
        data = mapping(mapping(data.get("header")).get("config"))
    elif type_ == "assistant/message":
        data = mapping(mapping(data.get("message")).get("source"))
    elif type_ != "request/context":
        return None, None
    return text(data.get("model")), text(data.get("provider"))
