"""The events of a run, and how they reach those who watch."""
