"""The way from records back to manifests, listings and snapshots."""
