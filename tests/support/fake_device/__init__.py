"""Devices that are threads: streams, events and a queue of launches, on a clock that jumps; ranks that train there, with faults."""
