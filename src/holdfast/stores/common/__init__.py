"""Parts that several stores need; no store is imported here."""
