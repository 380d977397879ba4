"""The superstep: pure functions over snapshots. No asyncio, no clock, no I/O."""
