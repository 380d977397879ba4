"""Where bytes live."""
