"""The stores that come with Holdfast, and the storages that users open on them.

A new one implements ``Store`` of ``holdfast.checkpoint.store``, passes ``holdfast.testing.StoreConformance``, and gets
a scheme in ``storage_url``.
"""
