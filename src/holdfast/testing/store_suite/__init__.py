"""The parts of ``holdfast.testing.conformance``, without pytest: rules that every store keeps, as tests."""
