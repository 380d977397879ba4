"""Type annotations: reading them, matching values against them, and dispatching messages by them."""
