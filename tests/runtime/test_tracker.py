"""The tracker of live bytes: storages that change their size between two operations."""

import torch

from fourfold.runtime.tracker import MemoryTracker


def test_what_is_freed_makes_room_for_what_is_allocated_next() -> None:
    """Looked at together, whichever of the two was made first."""
    first, second = torch.zeros(1000), torch.zeros(1000)
    first.untyped_storage().resize_(0)
    tracker = MemoryTracker()
    tracker.watch(first, resizable=True)
    tracker.watch(second, resizable=True)
    assert tracker.peak_bytes == 4000
    second.untyped_storage().resize_(0)
    first.untyped_storage().resize_(4000)
    tracker.refresh()
    assert (tracker.live_bytes, tracker.peak_bytes) == (4000, 4000)
    second.untyped_storage().resize_(8000)
    tracker.refresh()
    assert (tracker.live_bytes, tracker.peak_bytes) == (12000, 12000)
