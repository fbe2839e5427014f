"""Plans that were proposed, approved and executed. No I/O."""

from typing import Any, Final

import attrs

from ..events import Event, JsonObject
from .problem import Handlers, Problem, Refusals


@attrs.define(slots=True)
class Plan:
    """A proposal: its newest revision, or the one that was approved. ``execution``: active, completed, …"""

    proposal_id: str
    revision: int
    title: str
    seq: int
    execution_id: str | None = None
    execution: str | None = None


@attrs.define(slots=True)
class Plans:
    """``plans`` in the order in which they were proposed; ``active``: the plan whose execution runs, one for a session.

    ``newest``: proposal_id → place of its newest entry in ``plans``; ``executions``: the same by execution_id.
    """

    plans: list[Plan] = attrs.field(factory=list, metadata={"of": Plan})
    active: int | None = None
    newest: dict[str, int] = attrs.field(factory=dict)
    executions: dict[str, int] = attrs.field(factory=dict)

    def running(self) -> Plan | None:
        """The plan whose execution is active."""
        return None if self.active is None else self.plans[self.active]


def _find(plans: Plans, data: JsonObject) -> int | None:
    """The place of the proposal, in this revision, that data names."""
    place = plans.newest.get(data["proposal_id"])
    return place if place is not None and plans.plans[place].revision == data["revision"] else None


def refuse_proposed(plans: Plans, data: JsonObject) -> str | None:
    place = plans.newest.get(data["proposal_id"])
    if place is not None and data["revision"] <= plans.plans[place].revision:
        return f"proposal {data['proposal_id']} has revision {plans.plans[place].revision} already"
    return None


def refuse_approved(plans: Plans, data: JsonObject) -> str | None:
    if (running := plans.running()) is not None:
        return f"execution {running.execution_id} is active, and a session has one at a time"
    if (place := _find(plans, data)) is None:
        return f"revision {data['revision']} of proposal {data['proposal_id']} is not its newest"
    if plans.plans[place].execution_id is not None:
        return f"revision {data['revision']} of proposal {data['proposal_id']} was approved before"
    return f"execution {data['execution_id']} exists already" if data["execution_id"] in plans.executions else None


def refuse_execution(plans: Plans, data: JsonObject) -> str | None:
    running = plans.running()
    if running is None or running.execution_id != data["execution_id"]:
        return f"execution {data['execution_id']} is not active"
    return None


REFUSALS: Final[Refusals] = {
    "plan/proposed": refuse_proposed,
    "plan/approved": refuse_approved,
    "plan/execution": refuse_execution,
}


def _header(plans: Plans, event: Event) -> Problem | None:
    plans.plans.clear()
    plans.newest.clear()
    plans.executions.clear()
    plans.active = None
    return None


def _proposed(plans: Plans, event: Event) -> Problem | None:
    data = event.data
    proposal_id = data["proposal_id"]
    plan = Plan(proposal_id, data["revision"], data["title"], event.seq)
    place = plans.newest.get(proposal_id)
    if place is not None and plans.plans[place].execution_id is None:
        plans.plans[place] = plan
    else:
        plans.newest[proposal_id] = len(plans.plans)
        plans.plans.append(plan)
    return None


def _approved(plans: Plans, event: Event) -> Problem | None:
    data = event.data
    place = _find(plans, data)
    if place is not None and plans.plans[place].execution_id is None:
        plans.plans[place].execution_id = data["execution_id"]
        plans.plans[place].execution = "active"
        plans.executions[data["execution_id"]] = place
        plans.active = place
    return None


def _execution(plans: Plans, event: Event) -> Problem | None:
    place = plans.executions.get(event.data["execution_id"])
    if place is not None and plans.plans[place].execution == "active":
        plans.plans[place].execution = event.data["status"]
        if plans.active == place:
            plans.active = None
    return None


HANDLERS: Final[Handlers] = {
    "session/header": _header,
    "plan/proposed": _proposed,
    "plan/approved": _approved,
    "plan/execution": _execution,
}


def rows(plans: Plans) -> list[dict[str, Any]]:
    """``[{proposal_id, revision, title, status, execution: {execution_id, status} | None}]``."""
    return [
        {
            "proposal_id": plan.proposal_id,
            "revision": plan.revision,
            "title": plan.title,
            "status": "proposed" if plan.execution_id is None else "approved",
            "execution": None
            if plan.execution_id is None
            else {"execution_id": plan.execution_id, "status": plan.execution},
        }
        for plan in plans.plans
    ]
