"""Stores under keys: a layer between checkpoints and the port that seals all that it gives to a store.

``keyring`` has the keys that users hold, ``key_box`` the keys of one store, wrapped by these; ``cipher`` seals bytes,
``sealed_items`` the items of the port, and ``sealed_store`` is the store that wraps a store. ``anchor`` remembers the
newest head of each run elsewhere, and ``sealed_file`` encrypts exports.
"""
