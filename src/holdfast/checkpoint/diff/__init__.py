"""The difference between two checkpoints."""
