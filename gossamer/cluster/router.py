"""Ray Serve's request router, with prompts that begin alike sent to the same replica."""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from gossamer.cluster.config import Routing
from gossamer.cluster.prefixes import PrefixIndex, block_names, choose
from gossamer.server.events import EngineRequest

# A replica that is asked how much it has to do has 0.1 s to answer, then 0.2 and 0.4: one that has
# a long prompt on a busy host may need them, and another one would compute the prefix again.
PREFERRED = 3


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray's types are not looked at
    """Routing of prompts by `choose`; other calls go to the least busy replica."""

    def initialize_state(self, **routing: Any) -> None:
        self._routing = Routing(**routing)
        self._index = PrefixIndex(self._routing.blocks)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The preferred replica alone, several times, then the others."""
        if not candidate_replicas:
            return []
        if pending_request is not None:  # or Ray Serve would ask again and again without a pause
            pending_request.routing_context.should_backoff = True
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {
            name: self.replica_queue_len_cache.get(replica.replica_id) or 0
            for name, replica in by_name.items()
        }
        ids, routing = _prompt(pending_request), self._routing
        blocks = block_names(ids)
        matches = self._index.matches(blocks)
        name = choose(ids, matches, loads, slack=routing.slack, share=routing.share)
        self._index.add(blocks, name)  # now: others that begin so may come before it is sent
        preferred = by_name.pop(name)
        return [*[[preferred]] * PREFERRED, list(by_name.values())]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        self._index.add(block_names(_prompt(pending_request)), replica_id.unique_id)


def _prompt(pending: PendingRequest | None) -> tuple[int, ...]:
    """Of a call of EngineReplica.generate; () of any other."""
    arguments = () if pending is None else pending.args
    found = next((a for a in arguments if isinstance(a, EngineRequest)), None)
    return () if found is None else found.prompt_ids
