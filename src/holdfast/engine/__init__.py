"""WHAT a superstep does: pure functions over snapshots. No asyncio, no clock, no I/O."""
