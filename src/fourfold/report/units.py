"""Numbers as a person reads them (1 GB = 1e9 bytes, 1 k = 1000), and columns of them."""

import itertools
from collections.abc import Sequence
from math import log

_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_COUNTS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_WORDS = (
    ("to_host offload", "copies to the host"),
    ("from_host fetch", "copies from the host"),
    ("to_host", "to host"),
    ("from_host", "from host"),
    ("cp_ring", "cp"),
    ("cp_ulysses", "cp Ulysses"),
)
"""Names in programs, and words on screens."""
_BARS = "▁▂▃▄▅▆▇█"


def format_bytes(count: float) -> str:
    """`4860000000` -> `4.86 GB`."""
    for unit, size in _BYTES:
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_count(count: float) -> str:
    """`30100000` -> `30.1 M`."""
    for unit, size in _COUNTS:
        if count >= size:
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f}"


def format_figure(value: float) -> str:
    """Four digits without a power of ten: `13437.2` -> `13,440`, `821.34` -> `821.3`, `0.5` -> `0.5`."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


def spelled_out(text: str) -> str:
    """The name of a group, a stream or a kind of time as a person says it: `exposed tp+cp_ring communication` -> `exposed tp+cp
    communication`. The ranks that split a sequence are one axis of the layout, however they go about it."""
    for name, words in _WORDS:
        text = text.replace(name, words)
    return text


def format_dollars(amount: float) -> str:
    """`628765` -> `$628,765`; cents below a hundred."""
    return f"${amount:,.{0 if amount >= 100 else 2}f}"


def format_flops(count: float) -> str:
    """`3.2e12` -> `3.20 TFLOP`."""
    scaled = format_count(count)
    return f"{scaled}FLOP" if " " in scaled else f"{scaled} FLOP"


def format_seconds(seconds: float) -> str:
    """`75` -> `1:15`, `4000` -> `1:06:40`; below ten seconds with a decimal."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def format_nats(nats: float, bytes_per_token: float | None) -> str:
    """`3.2` of a token -> `3.2000 nats per token = 1.154 bits per byte`, where a token's mean bytes are known."""
    bits = f" = {nats / log(2) / bytes_per_token:.3f} bits per byte" if bytes_per_token else ""
    return f"{nats:.4f} nats per token{bits}"


def three_digits(value: float) -> str:
    """`7.6234` -> `7.62`, `19.01` -> `19.0`, `212.4` -> `212`."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def sparkline(values: list[float], width: int) -> str:
    """The values in `width` characters, the highest at the top; each character is the mean of its share."""
    finite = [v for v in values if v == v and abs(v) != float("inf")]
    if not finite or width < 1:
        return ""
    width = min(width, len(finite))
    edges = [len(finite) * i // width for i in range(width + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Columns in line: those in `left` begin together, the others end together."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            f"{cell:<{w}}" if i in left else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def seconds_text(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`, `75` -> `75.0 s`."""
    if seconds >= 0.9995:
        return f"{three_digits(seconds)} s"
    if seconds >= 0.9995e-3:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds * 1e6)} us" if seconds else "0 us"


def flops_figure(count: float) -> str:
    """`4.767e17` -> `476.7 PFLOP`, with four digits."""
    prefix, size = next((each for each in (("P", 1e15), ("T", 1e12), ("G", 1e9)) if count >= each[1]), ("M", 1e6))
    return f"{format_figure(count / size)} {prefix}FLOP"


def per_cent(share: float) -> str:
    """`0.1234` -> `12.3 %`."""
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # 0 without a sign


def share_text(fraction: float) -> str:
    """`0.1234` -> `12.3 %`, never below 0."""
    return f"{max(0.0, fraction):.1%}".replace("%", " %")


def duration(seconds: float) -> str:
    """`100` -> `1.7 minutes`, `200000` -> `2.3 days`."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{three_digits(seconds)} s"


def plain_number(value: float) -> str:
    """`3.0` -> `3`."""
    return f"{value:.4g}"


def flops_rate(value: float) -> str:
    """`9.89e14` -> `989 TFLOP/s`."""
    return f"{value / 1e12:.4g} TFLOP/s" if value >= 1e12 else f"{value / 1e9:.4g} GFLOP/s"
