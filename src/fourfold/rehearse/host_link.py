"""The link to the host of a device that is not there: each direction is a stream, whose copies are in flight until joined."""

from collections.abc import Callable

import torch

from fourfold.rehearse.journal import Journal
from fourfold.rehearse.link import StartedCall
from fourfold.rehearse.streams import Streams
from fourfold.runtime.host_link import Copying, HostLink


def rehearsed_host_link(journal: Journal, streams: Streams, device: torch.device) -> HostLink:
    """Both directions. `DeviceKernels` checks each copy, and whether its memory is pinned."""
    return HostLink(device, _stream(journal, streams, "to host"), _stream(journal, streams, "from host"))


def _stream(journal: Journal, streams: Streams, name: str) -> Copying:
    def start(copies: Callable[[], None]) -> StartedCall:
        with streams.on(name) as clock:
            copies()
            return StartedCall(journal, streams, dict(clock), [])

    return start
