"""The messages that wait for running turns: leases over the fold. Implements RuntimeMessageAuthority. No I/O.

A message is taken when its user/message is in the journal, and not before: a lease is memory, and ends with its run.
"""

from collections.abc import Callable, Collection, Sequence

from ..backends.base import SteeringLease
from ..journals import OpenSession
from ..kernel.authority import RunIdentity


class QueuedMessages:
    """``opened`` gives a session that is open here, or None."""

    def __init__(self, opened: Callable[[str], OpenSession | None], new_id: Callable[[], str]) -> None:
        self._opened = opened
        self._new_id = new_id
        self._owners: dict[str, Leases] = {}

    def bind_run(self, identity: RunIdentity) -> "Leases":
        owner = self._owners[identity.session_id] = Leases(identity, self._opened, self._new_id, self._owners)
        return owner

    def leased(self, session_id: str) -> Collection[str]:
        """Messages that a run of the session has taken, and whose user/message is not in the journal."""
        owner = self._owners.get(session_id)
        return () if owner is None else owner.held()


class Leases:
    """Implements MessageOwner."""

    def __init__(
        self,
        identity: RunIdentity,
        opened: Callable[[str], OpenSession | None],
        new_id: Callable[[], str],
        owners: "dict[str, Leases]",
    ) -> None:
        self.session_id = identity.session_id
        self.turn_id = identity.turn_id
        self.run_id = identity.run_id
        self._opened = opened
        self._new_id = new_id
        self._owners = owners
        #: Lease id → message id.
        self._held: dict[str, str] = {}

    def held(self) -> Collection[str]:
        return self._held.values()

    def pull(self) -> Sequence[SteeringLease]:
        session = self._opened(self.session_id)
        if session is None:
            return []
        queue, held = session.journal.state.queue, set(self._held.values())
        leases = []
        for item in queue.steering((self.turn_id,)):
            if item.message_id in held:
                continue
            lease = SteeringLease(
                lease_id=self._new_id(),
                message_id=item.message_id,
                content=item.data["content"],
                quotes=item.data.get("quotes"),
                attachments=item.data.get("attachments"),
            )
            self._held[lease.lease_id] = item.message_id
            leases.append(lease)
        return leases

    def ack(self, lease_ids: Sequence[str]) -> None:
        for lease_id in lease_ids:
            self._held.pop(lease_id, None)

    def nack(self, lease_ids: Sequence[str]) -> None:
        # It waits as before: the fold has never let go of it.
        self.ack(lease_ids)

    def release(self) -> None:
        self._held.clear()
        if self._owners.get(self.session_id) is self:
            del self._owners[self.session_id]
