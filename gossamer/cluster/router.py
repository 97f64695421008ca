"""Ray Serve's request router, with prompts that begin alike sent to the same replica."""

from collections import Counter
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
        self._routed: dict[str, tuple[str, int]] = {}  # by request: its replica, its sequences
        self._loads: Counter[str] = Counter()  # sequences of this router, by replica

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
        # Other routers' prompts are in what the replica itself said last, for ten seconds.
        loads = {
            name: max(self._loads[name], self.replica_queue_len_cache.get(r.replica_id) or 0)
            for name, r in by_name.items()
        }
        request, routing = _request(pending_request), self._routing
        ids = () if request is None else request.prompt_ids
        blocks = block_names(ids, None if request is None else request.lora)
        matches = self._index.matches(blocks)
        name = choose(ids, matches, loads, slack=routing.slack, share=routing.share)
        # Now: others that begin so may come before it is sent.
        self._index.add(blocks, name, among=loads)
        preferred = by_name.pop(name)
        return [*[[preferred]] * PREFERRED, list(by_name.values())]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        request = _request(pending_request)
        if request is not None:
            routed = (replica_id.unique_id, request.params.n)
            self._routed[pending_request.metadata.internal_request_id] = routed
            self._loads[routed[0]] += routed[1]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        name, count = self._routed.pop(internal_request_id, ("", 0))
        self._loads[name] -= count
        if self._loads[name] <= 0:
            del self._loads[name]


def _request(pending: PendingRequest | None) -> EngineRequest | None:
    """Of a call of EngineReplica.generate; None of any other."""
    arguments = () if pending is None else pending.args
    return next((a for a in arguments if isinstance(a, EngineRequest)), None)
