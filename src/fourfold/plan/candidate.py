"""A layout as the search enumerates it: what one rank computes of a microbatch, and the ranks around it."""

from dataclasses import dataclass, fields

from fourfold.config.layout_section import LayoutKeys


@dataclass(frozen=True)
class BlockShape:
    """The keys of a layout that say which share of a microbatch a rank has, and what it recomputes: the search prices blocks by
    them."""

    tp: int
    cp: int
    cp_method: str
    ep: int
    etp: int
    microbatch_sequences: int
    recompute: str

    @property
    def ulysses(self) -> int:
        """The degree over which heads are exchanged."""
        _, mixed, degree = self.cp_method.partition("ring+ulysses:")
        return int(degree) if mixed else self.cp if self.cp_method == "ulysses" else 1


def policy_and_offload(way: str) -> tuple[str, bool]:
    """The recompute policy of a block's way with its activations, and whether what it keeps is offloaded."""
    policy, away, _ = way.partition("offload")
    return policy.rstrip("+") or "none", bool(away)


def way_of(policy: str, away: bool) -> str:
    """The way of a block with this recompute policy that offloads, `away`, what it keeps: the inverse of `policy_and_offload`."""
    if not away:
        return policy
    return "offload" if policy == "none" else f"{policy}+offload"


@dataclass(frozen=True, kw_only=True)
class Candidate(LayoutKeys):
    """A layout, by every key of a run file's `[layout]`; those of `constraints.SHARED` have their defaults."""

    virtual_stages: int
    dp_shard: int
    recompute: str
    activations: tuple[str, ...] = ()
    """Each block's way with its activations: none, selective, full, offload, selective+offload. Empty: all as `recompute` says."""

    @property
    def shape(self) -> BlockShape:
        """The rank's share of a microbatch alone."""
        return BlockShape(**{field.name: getattr(self, field.name) for field in fields(BlockShape)})

    @property
    def dp(self) -> int:
        """Data-parallel ranks: replicas times the ranks of each."""
        return self.dp_replicate * self.dp_shard

    def words(self) -> str:
        """`tp 8 x pp 16 (interleaved_1f1b, VPP 8) x dp 128, ZeRO-1, microbatch 1, recompute none`."""
        parts = [f"tp {self.tp}"] if self.tp > 1 else []
        parts += [f"cp {self.cp} ({self.cp_method})"] if self.cp > 1 else []
        stages = f", VPP {self.virtual_stages}" if self.virtual_stages > 1 else ""
        parts += [f"pp {self.pp} ({self.schedule}{stages})"] if self.pp > 1 else []
        replicated = f" ({self.dp_replicate} x {self.dp_shard})" if self.dp_replicate > 1 and self.zero else ""
        parts += [f"dp {self.dp}{replicated}"] if self.dp > 1 else []
        experts = [f"ep {self.ep}"] if self.ep > 1 else []
        experts += [f"etp {self.etp}"] if self.etp > 1 else []
        experts += ["experts overlapped"] if self.overlap_experts else []
        degrees = " x ".join(parts) or "one device"
        ways = {"none": "kept", "selective": "selective", "full": "recomputed", "offload": "offloaded"}
        ways["selective+offload"] = "selective and offloaded"
        found = [f"{self.activations.count(way)} {name}" for way, name in ways.items() if way in self.activations]
        activations = f"blocks: {', '.join(found)}" if found else f"recompute {self.recompute}"
        policies = [f"ZeRO-{self.zero}", f"microbatch {self.microbatch_sequences}", activations]
        policies += ["optimizer states on the host"] if self.offload_optimizer else []
        policies += [f"{self.outermost} outermost"] if self.outermost != "pp" else []
        return ", ".join([degrees, *experts, *policies])
