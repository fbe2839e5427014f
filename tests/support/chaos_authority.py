"""Authorities that answer late, refuse, fail and hang, drawn from a seed; they know what may be asked of them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from maka.journal.events import JsonObject
from maka.runtime.backends.base import SteeringLease
from maka.runtime.errors import InteractionRefused
from maka.runtime.kernel.authority import ClosureReason, InteractionRequest, RunIdentity
from maka.runtime.tools.base import text_block

from .chaos_backend import ChaosError, Watch

_ANSWERS: Final[dict[str, JsonObject]] = {
    "question": {"kind": "question_answer", "answers": ["yes"]},
    "permission": {"kind": "permission_answer", "decision": "allow"},
    "sandbox_boundary": {"kind": "sandbox_boundary_decision", "decision": "deny"},
}


class ChaosAuthority:
    """Implements RuntimeInteractionAuthority, with nothing in a journal."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.owners: list[ChaosOwner] = []

    def bind_run(self, identity: RunIdentity) -> "ChaosOwner":
        if self._watch.may("bind fails", 0.2):
            raise ChaosError("bind")
        run_id = identity.run_id
        if self._watch.may("bind fails", 0.1):
            identity = RunIdentity(identity.session_id, identity.turn_id, "another")
        self.owners.append(ChaosOwner(self._watch, identity, run_id))
        return self.owners[-1]


class ChaosOwner:
    """Implements InteractionOwner. ``of``: the run that it is asked for."""

    def __init__(self, watch: Watch, identity: RunIdentity, of: str) -> None:
        self.session_id = identity.session_id
        self.turn_id = identity.turn_id
        self.run_id = identity.run_id
        self.closes = 0
        self.closed = False
        self.releases = 0
        self._watch = watch
        self._of = of

    async def accept_user_question_request(self, request: InteractionRequest) -> None:
        watch = self._watch
        if self.closes:
            watch.wrong(f"{self.turn_id} asked after its interactions were closed")
        if watch.may("request refused", 0.4):
            raise InteractionRefused("drawn", code="capacity_exceeded")
        if watch.may("request refused", 0.1):
            raise ChaosError("accept")
        await asyncio.sleep(watch.random.choice([0, 0, 0.2]))
        if watch.random.random() < 0.7:
            after = watch.random.uniform(0, 3)
            asyncio.get_running_loop().call_later(after, request.settle, dict(_ANSWERS[request.kind]))

    accept_permission_request = accept_user_question_request
    accept_sandbox_boundary_request = accept_user_question_request

    async def close(self, reason: ClosureReason) -> None:
        watch = self._watch
        self.closes += 1
        if self.closes > 1:
            watch.wrong(f"the interactions of {self.turn_id} were closed twice")
        if watch.may("close is slow", 0.4):
            await asyncio.sleep(watch.random.uniform(0, 1.5))
        if watch.may("close fails", 0.3):
            raise watch.failing(self._of, "close")
        if watch.may("close hangs", 0.2):
            await asyncio.get_running_loop().create_future()
        self.closed = True

    def release(self) -> None:
        self.releases += 1
        if not self.closed or self.releases > 1:
            self._watch.wrong(f"the interactions of {self.turn_id} were released twice, or without a close")
        if self._watch.may("release fails", 0.3):
            raise self._watch.failing(self._of, "release")


class ChaosMessages:
    """Implements RuntimeMessageAuthority."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.owners: list[ChaosMessageOwner] = []

    def bind_run(self, identity: RunIdentity) -> "ChaosMessageOwner":
        if self._watch.may("messages fail", 0.1):
            raise ChaosError("bind messages")
        self.owners.append(ChaosMessageOwner(self._watch, identity))
        return self.owners[-1]


class ChaosMessageOwner:
    """Implements MessageOwner."""

    def __init__(self, watch: Watch, identity: RunIdentity) -> None:
        self.session_id = identity.session_id
        self.turn_id = identity.turn_id
        self.run_id = identity.run_id
        self.releases = 0
        self._watch = watch
        self._leased: set[str] = set()

    def pull(self) -> Sequence[SteeringLease]:
        if self._watch.random.random() < 0.5:
            return ()
        lease = f"{self.run_id}-lease-{len(self._leased)}"
        self._leased.add(lease)
        return (SteeringLease(lease, lease, [text_block("rather this")]),)

    def ack(self, lease_ids: Sequence[str]) -> None:
        self._watch.happened["acknowledged"] += len(lease_ids)

    def nack(self, lease_ids: Sequence[str]) -> None:
        pass

    def release(self) -> None:
        self.releases += 1
        if self.releases > 1:
            self._watch.wrong(f"the messages of {self.turn_id} were released twice")
        if self._watch.may("messages fail", 0.3):
            raise self._watch.failing(self.run_id, "release messages")
