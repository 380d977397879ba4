"""The stores that come with Holdfast, and the storages that users open on them."""
