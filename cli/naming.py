"""What a person typed for an id → the id: the whole of it, or a beginning that only one has. No I/O."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

#: Characters of a beginning: with fewer it is a chance which id it fits.
LEAST: Final = 4
#: Ids named in a sentence.
_NAMED: Final = 10

Doc = Mapping[str, Any]


class Unclear(Exception):
    """What was typed fits several ids, or is the id of something else. The message says which there are."""


def run(typed: str, runs: Sequence[Doc], turns: Sequence[Doc]) -> str:
    """The run that was meant, of the rows of a session. Raises Unclear, for a turn's id too."""
    ids = [row["run_id"] for row in runs]
    if not _fitting(typed, ids):
        for turn in turns:
            if turn["run_ids"] and _fitting(typed, [turn["turn_id"]]):
                newest = turn["run_ids"][-1]
                raise Unclear(f"{turn['turn_id']} is turn {turn['turn']}, and no run; its run is `--run {newest}`")
    return _whole("--run", typed, ids)


def claim(typed: str, claims: Sequence[Doc]) -> str:
    """The claim that was meant. Raises Unclear."""
    return _whole("--claim", typed, [row["claim_id"] for row in claims])


def handoff(typed: str, handoffs: Sequence[Doc]) -> str:
    """The handoff that was meant. Raises Unclear."""
    return _whole("--handoff", typed, [row["handoff_id"] for row in handoffs])


def call(typed: str, unknown: Sequence[Doc], turns: Sequence[Doc]) -> str:
    """The call that was meant, of those whose outcome is unknown. Raises Unclear.

    What is the whole name of a call stays what it is, even where several have it or its outcome is known.
    """
    names = {call["call_id"] for turn in turns for call in turn["calls"]} | {str(call["call_seq"]) for call in unknown}
    if typed in names:
        return typed
    ids = [call[key] for call in unknown for key in ("call_id", "operation_id") if call[key] is not None]
    return _whole("--call", typed, ids)


def _whole(option: str, typed: str, ids: Sequence[str]) -> str:
    """What was typed where nothing fits: somebody else knows why there is none."""
    fitting = _fitting(typed, ids)
    beginning = typed.removesuffix("…")
    if not fitting and beginning and (longer := [each for each in ids if each.startswith(beginning)]):
        raise Unclear(
            f"`{option} {typed}` is too short: of an id at least {LEAST} characters are given, as of {longer[0]}"
        )
    if len(fitting) > 1:
        there = ", ".join(fitting[:_NAMED]) + (f" and {len(fitting) - _NAMED} more" if len(fitting) > _NAMED else "")
        raise Unclear(f"`{option} {typed}` fits several: {there}; give more of the one that is meant")
    return fitting[0] if fitting else typed


def _fitting(typed: str, ids: Iterable[str]) -> list[str]:
    """The ids that it may stand for; itself alone where it is one of them."""
    # Ids are shown shortened, with an ellipsis behind their beginning.
    beginning = typed.removesuffix("…")
    known = dict.fromkeys(ids)
    if typed in known:
        return [typed]
    return [each for each in known if len(beginning) >= LEAST and each.startswith(beginning)]
