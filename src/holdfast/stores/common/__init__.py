"""Parts that several stores use; no store is imported here."""
