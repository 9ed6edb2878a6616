"""Offload on a device: copies to the host's memory and back, and the pinned memory that they end in."""
