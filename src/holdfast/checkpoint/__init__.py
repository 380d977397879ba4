"""How a snapshot becomes bytes."""
