"""Plans that were proposed, approved and executed. No I/O."""

from typing import Any, Final

import attrs

from ..digests import digest_of
from ..events import Event, JsonObject
from .problem import Handlers, Problem, Refusals, text_of

#: Why an execution ended of whose end there is no record: a later one was approved.
LOST: Final = "end_not_on_record"


@attrs.define(slots=True)
class Plan:
    """A proposal: its newest revision, or the one that was approved.

    ``steps``: ``[{id, title, description}]``. ``execution``: active, completed, …, and ``reason`` why it ended so.
    """

    proposal_id: str
    revision: int
    title: str
    seq: int
    turn_id: str
    steps: list[Any]
    execution_id: str | None = None
    execution: str | None = None
    reason: str | None = None


@attrs.define(slots=True)
class Request:
    """What a caller's request did: it proposed this revision, or approved it, which began ``execution_id``.

    ``place``: where the proposal stands in ``Plans.plans``, perhaps in a newer revision by now. ``turn_id`` and
    ``digest`` are those of what was proposed, empty for an approval.
    """

    place: int
    revision: int
    turn_id: str = ""
    digest: str = ""
    execution_id: str | None = None


@attrs.define(slots=True)
class Plans:
    """``plans`` in the order in which they were proposed; ``active``: the plan whose execution runs, one for a session.

    ``newest``: proposal_id → place of its newest entry in ``plans``; ``executions``: the same by execution_id, in the
    order of their approval. ``requests``: what was done by request_id; the first with an id stands.
    """

    plans: list[Plan] = attrs.field(factory=list, metadata={"of": Plan})
    active: int | None = None
    newest: dict[str, int] = attrs.field(factory=dict)
    executions: dict[str, int] = attrs.field(factory=dict)
    requests: dict[str, Request] = attrs.field(factory=dict, metadata={"of": Request})

    def running(self) -> Plan | None:
        """The plan whose execution is active."""
        return None if self.active is None else self.plans[self.active]


def digest(title: str, steps: list[Any]) -> str:
    """What a request is told by: the 64 hex of the proposal's text."""
    return digest_of([title, steps])


def _find(plans: Plans, data: JsonObject) -> int | None:
    """The place of the proposal, in this revision, that data names."""
    place = plans.newest.get(data["proposal_id"])
    return place if place is not None and plans.plans[place].revision == data["revision"] else None


def refuse_proposed(plans: Plans, data: JsonObject) -> str | None:
    place = plans.newest.get(data["proposal_id"])
    if place is not None and data["revision"] <= plans.plans[place].revision:
        return f"proposal {data['proposal_id']} has revision {plans.plans[place].revision} already"
    return _refuse_request(plans, data)


def refuse_approved(plans: Plans, data: JsonObject) -> str | None:
    if (running := plans.running()) is not None:
        return f"execution {running.execution_id} is active, and a session has one at a time"
    if (place := _find(plans, data)) is None:
        return f"revision {data['revision']} of proposal {data['proposal_id']} is not its newest"
    if plans.plans[place].execution_id is not None:
        return f"revision {data['revision']} of proposal {data['proposal_id']} was approved before"
    if data["execution_id"] in plans.executions:
        return f"execution {data['execution_id']} exists already"
    return _refuse_request(plans, data)


def refuse_execution(plans: Plans, data: JsonObject) -> str | None:
    place = plans.executions.get(data["execution_id"])
    if place is None or plans.plans[place].execution != "active":
        return f"execution {data['execution_id']} is not active"
    return None


def _refuse_request(plans: Plans, data: JsonObject) -> str | None:
    known = data.get("request_id") in plans.requests
    return f"request {data['request_id']} was made before" if known else None


REFUSALS: Final[Refusals] = {
    "plan/proposed": refuse_proposed,
    "plan/approved": refuse_approved,
    "plan/execution": refuse_execution,
}


def _header(plans: Plans, event: Event) -> Problem | None:
    plans.plans.clear()
    plans.newest.clear()
    plans.executions.clear()
    plans.requests.clear()
    plans.active = None
    return None


def _proposed(plans: Plans, event: Event) -> Problem | None:
    data = event.data
    proposal_id = data["proposal_id"]
    plan = Plan(proposal_id, data["revision"], data["title"], event.seq, data["turn_id"], data["steps"])
    place = plans.newest.get(proposal_id)
    if place is not None and plans.plans[place].execution_id is None:
        plans.plans[place] = plan
    else:
        place = plans.newest[proposal_id] = len(plans.plans)
        plans.plans.append(plan)
    request_id = text_of(data.get("request_id"))
    if request_id is not None and request_id not in plans.requests:
        plans.requests[request_id] = Request(place, plan.revision, plan.turn_id, digest(plan.title, plan.steps))
    return None


def _approved(plans: Plans, event: Event) -> Problem | None:
    data = event.data
    place = _find(plans, data)
    if place is not None and plans.plans[place].execution_id is None:
        if (running := plans.running()) is not None:
            running.execution, running.reason = "interrupted", LOST
        plans.plans[place].execution_id = data["execution_id"]
        plans.plans[place].execution = "active"
        plans.executions[data["execution_id"]] = place
        plans.active = place
        request_id = text_of(data.get("request_id"))
        if request_id is not None and request_id not in plans.requests:
            plans.requests[request_id] = Request(place, data["revision"], execution_id=data["execution_id"])
    return None


def _execution(plans: Plans, event: Event) -> Problem | None:
    place = plans.executions.get(event.data["execution_id"])
    if place is not None and plans.plans[place].execution == "active":
        plans.plans[place].execution = event.data["status"]
        plans.plans[place].reason = text_of(event.data.get("reason"))
        if plans.active == place:
            plans.active = None
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "plan/proposed": _proposed,
    "plan/approved": _approved,
    "plan/execution": _execution,
}


def row(plan: Plan) -> dict[str, Any]:
    """``{proposal_id, revision, title, status, execution: {execution_id, status, reason?} | None, turn_id, steps}``.

    ``status`` is ``proposed`` or ``approved``; that of an execution ``active``, ``completed``, ``cancelled`` or
    ``interrupted``. ``turn_id`` is where it was proposed.
    """
    execution: dict[str, Any] | None = None
    if plan.execution_id is not None:
        execution = {"execution_id": plan.execution_id, "status": plan.execution}
        if plan.reason is not None:
            execution["reason"] = plan.reason
    return {
        "proposal_id": plan.proposal_id,
        "revision": plan.revision,
        "title": plan.title,
        "status": "proposed" if execution is None else "approved",
        "execution": execution,
        "turn_id": plan.turn_id,
        "steps": plan.steps,
    }


def rows(plans: Plans) -> list[dict[str, Any]]:
    """A ``row`` for each plan, in the order in which they were proposed."""
    return [row(plan) for plan in plans.plans]
