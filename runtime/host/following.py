"""A session followed over lost connections and restarts of its host. No I/O of its own."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from .watching import Frame, SubscriptionClosed

if TYPE_CHECKING:
    from .client import Client

#: Ends of a subscription that a new one mends.
_MENDED: Final = frozenset({"connection_closed", "host_draining", "sequence_gap", "slow_consumer"})


async def follow(client: "Client", session_id: str, since: int | None) -> AsyncGenerator[Frame, None]:
    """See ``Client.follow``."""
    while True:
        watch = await client.subscribe(session_id, since)
        heard = False
        if since is None:
            since = int(watch.snapshot["position"])
        try:
            yield Frame(0, "opened", snapshot=watch.snapshot)
            async for frame in watch:
                heard = True
                if frame.event is not None:
                    if frame.event["seq"] <= since:
                        continue
                    since = frame.event["seq"]
                yield frame
        except SubscriptionClosed as ended:
            mended = client.reconnects and ended.reason in _MENDED
            # Where nothing could be read the next subscription will be no better.
            if not mended or (ended.reason in {"sequence_gap", "slow_consumer"} and not heard):
                raise
            if ended.reason == "host_draining":
                await client.ended(watch.host_epoch)
        finally:
            await watch.close()
