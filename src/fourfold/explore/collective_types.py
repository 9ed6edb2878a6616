"""Types of a collective that is looked at step by step. Units are in the names; a cell is a chunk's place in a rank's buffer."""

from fourfold.results.record import record

Cell = tuple[int, int] | None
"""A chunk, and of how many ranks it has the values; None: empty."""


@record
class MessageDocument:
    """`source` sends `chunks` to `target`. `how`: add, copy or move. `level`: the interconnect level that it goes through."""

    source: int
    target: int
    chunks: list[int]
    how: str
    bytes: float
    level: int
    seconds: float


@record
class CollectiveStep:
    """Messages that are sent at once. The step ends with the slowest. `cells`: the cells of every rank after it."""

    phase: str
    begins_seconds: float
    seconds: float
    messages: list[MessageDocument]
    cells: list[list[Cell]]


@record
class PhaseDocument:
    """Steps that do one thing together, from step `first` on."""

    phase: str
    first: int
    num_steps: int
    seconds: float


@record
class CrossedLevel:
    """A level of the cluster. `bytes_per_second`, `latency_seconds`: of one device, one direction, as the maker states them."""

    name: str
    kind: str
    devices: int
    bytes_per_second: float
    latency_seconds: float
    sent_bytes: float


@record
class AlgorithmDocument:
    """An algorithm in total. `sent_bytes`, `received_bytes`: of the rank with most; `network_bytes`: leave a node, all ranks
    together. `sweep_seconds`: on buffers of `sweep_bytes`."""

    algorithm: str
    num_steps: int
    sent_bytes: float
    received_bytes: float
    network_bytes: float
    seconds: float
    sweep_seconds: list[float]


@record
class CollectiveDocument:
    """A collective on a cluster's links. `places`: the device of each rank; `block`: ranks that a hierarchical algorithm takes
    together. `seconds`: of the steps, one after the other; `priced_seconds`: what a simulated training step pays for it, with
    rings beside each other and the better of ring and tree."""

    kind: str
    algorithm: str
    cluster: str
    ranks: int
    block: int
    places: list[int]
    nodes: list[list[int]]
    buffer_bytes: float
    chunk_bytes: float
    levels: list[CrossedLevel]
    first: list[list[Cell]]
    steps: list[CollectiveStep]
    phases: list[PhaseDocument]
    seconds: float
    priced_seconds: float
    algorithms: list[AlgorithmDocument]
    sweep_bytes: list[float]
    sweep_priced_seconds: list[float]
