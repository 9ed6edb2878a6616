"""The document of attention's traffic: the standard algorithm, and flash attention tile by tile."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from fourfold.config import UserError
from fourfold.cost.attention_traffic import FlashLoop, Order, Tiles, Traffic, least_bytes, standard_passes, tiles_of
from fourfold.hardware import load_cluster

Count = Annotated[int, Field(ge=1, le=4096)]
ATTENTION_KEYS = {
    "sequences": Count,
    "tokens": Annotated[int, Field(ge=16, le=1 << 20)],
    "heads": Count,
    "head_dim": Annotated[int, Field(ge=8, le=512)],
    "fast_bytes": Annotated[float, Field(ge=16_384, le=1e9)],
    "causal": bool,
    "order": Literal["2022", "2023"],
}
USUAL_FAST_BYTES = 131_072
"""Fast memory of a device whose file does not state one: 128 KiB."""
MOST_FRAMES, MOST_STEPS, MOST_TILES = 2048, 2048, 65536
ELEMENT_BYTES = 2
PAPERS = {
    "standard": "Dao et al. 2022, algorithm 0",
    "2022": "FlashAttention: Dao et al. 2022, algorithm 1",
    "2023": "FlashAttention-2: Dao 2023, algorithm 1",
}


def attention_document(cluster: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes of every algorithm for all heads, and the chosen one's tiles for one head. Raises `UserError`."""
    device = load_cluster(cluster).device
    stated = own.get("fast_bytes", device.unit_memory_bytes)
    fast = stated or USUAL_FAST_BYTES
    tiles = tiles_of(own["tokens"], own["head_dim"], fast, own["causal"], ELEMENT_BYTES)
    if tiles.query_tiles > MOST_TILES:
        raise UserError(
            f"{tiles.tokens:,} tokens in tiles of {tiles.query_rows}: allowed: {MOST_TILES:,} tiles a side; what works: more fast "
            "memory, smaller heads, or 131,072 tokens"
        )
    loop, number = FlashLoop(tiles, own["order"]), own["sequences"] * own["heads"]
    seen = [len(tiles.key_range(tile)) for tile in range(tiles.query_tiles)]
    return {
        "device": device.key,
        **{key: own[key] for key in ("order", "causal", "sequences", "tokens", "heads", "head_dim")},
        "element_bytes": ELEMENT_BYTES,
        "fast_bytes": float(fast),
        "is_fast_stated": stated is not None,
        "memory_bytes_per_second": device.memory_bytes_per_second,
        "query_rows": tiles.query_rows,
        "key_rows": tiles.key_rows,
        "query_tiles": tiles.query_tiles,
        "key_tiles": tiles.key_tiles,
        "computed_tiles": sum(seen),
        "key_tiles_seen": seen if len(seen) <= MOST_STEPS else [],
        "frames": _frames(loop, number),
        "algorithms": _algorithms(tiles, number, device.memory_bytes_per_second),
        "least_bytes": number * least_bytes(tiles),
    }


def _frames(loop: FlashLoop, heads: int) -> list[tuple[int, int, int, int, int]]:
    """Some of the loop's tiles at equal distances, the last among them; all where they are few."""
    total = loop.ends[-1]
    shown = min(total, MOST_FRAMES)
    found = []
    for frame in range(1, shown + 1):
        done = frame * total // shown
        turn = bisect_left(loop.ends, done)
        number = done - (loop.ends[turn - 1] if turn else 0)
        moved = loop.after(turn, number)
        found.append((*loop.place(turn, number), done, heads * moved.loaded, heads * moved.stored))
    return found


def _algorithms(tiles: Tiles, number: int, rate: float) -> list[dict[str, Any]]:
    full = 4 * tiles.tokens**2 * tiles.head_dim
    areas = (
        min(tiles.query_rows, tiles.tokens - tile * tiles.query_rows)
        * min(tiles.tokens, len(tiles.key_range(tile)) * tiles.key_rows)
        for tile in range(tiles.query_tiles)
    )
    tiled = 4 * tiles.head_dim * sum(areas)
    orders: tuple[Order, ...] = ("2022", "2023")
    every: dict[str, dict[str, Traffic]] = {"standard": standard_passes(tiles)}
    standard = sum(each.bytes for each in every["standard"].values())
    for order in orders:
        every[order] = {"one kernel": FlashLoop(tiles, order).total}
    found = []
    for name, passes in every.items():
        moved, flops = number * sum(each.bytes for each in passes.values()), full if name == "standard" else tiled
        rows = [(each, number * one.loaded, number * one.stored) for each, one in passes.items()]
        found.append(
            {
                "name": name,
                "paper": PAPERS[name],
                "passes": [dict(zip(("name", "loaded_bytes", "stored_bytes"), row, strict=True)) for row in rows],
                "bytes": moved,
                "seconds": moved / rate,
                "flops": number * flops,
                "intensity": number * flops / moved,
                "standard_ratio": number * standard / moved,
            }
        )
    return found
