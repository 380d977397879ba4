"""Events of runs: their classes, their JSON, and how they are read back from a store."""
