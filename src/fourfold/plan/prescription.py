"""The usual prescription: tensor or expert parallelism inside the node, a pipeline across nodes, data parallelism for the rest.

As Narayanan et al. 2021 (takeaways 1 to 3) and the guides of the common trainers give it: the split that talks most stays where
links are fast, as many stages as the memory needs and no more (recomputation only where none would do), at least as many
microbatches as stages where the batch has them, ZeRO-1 over what is left, one sequence a microbatch.
"""

from fourfold.config import UserError
from fourfold.plan.pricing import Priced, price_candidate
from fourfold.plan.request import Candidate, Request
from fourfold.plan.space import RECOMPUTE, splits_tensors


def prescribed(request: Request) -> Priced | None:
    """The first layout of the prescription that fits; None if none does."""
    node, model = request.cluster.node_devices, request.model
    tensor = max(
        d for d in range(1, min(node, request.devices) + 1) if request.devices % d == 0 and splits_tensors(model, d)
    )
    experts = 1
    if model.num_experts:
        experts = max(d for d in range(1, node + 1) if model.num_experts % d == 0 and request.devices % d == 0)
        tensor = 1
    ranks = request.devices // tensor
    divisions: list[tuple[bool, int, int]] = []
    for pp in range(1, min(request.devices, model.num_layers + 2) + 1):
        microbatches, rest = divmod(request.global_sequences * pp, ranks)
        if ranks % pp == 0 and rest == 0 and microbatches:
            divisions += [(microbatches < pp, order, pp) for order in range(len(RECOMPUTE))]
    for _, order, pp in sorted(divisions):
        found = _priced(request, pp, tensor, experts, RECOMPUTE[order])
        if found is not None and found.memory_bytes <= request.memory_bytes:
            return found
    return None


def _priced(request: Request, pp: int, tensor: int, experts: int, policy: str) -> Priced | None:
    stages = max(1, min(4, (request.model.num_layers + 2) // pp)) if pp > 1 else 1
    candidate = Candidate(
        pp=pp,
        schedule="interleaved_1f1b" if stages > 1 else "1f1b",
        virtual_stages=stages,
        dp_replicate=1,
        dp_shard=request.devices // tensor // pp,
        zero=1,
        cp=1,
        cp_method="ring",
        tp=tensor,
        ep=experts,
        etp=1,
        microbatch_sequences=1,
        recompute=policy,
    )
    try:
        found = price_candidate(request, candidate)
    except UserError:
        return None
    return found if isinstance(found, Priced) else None
