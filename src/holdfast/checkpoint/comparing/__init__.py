"""Two checkpoints, compared by content: values as trees that need no classes."""
