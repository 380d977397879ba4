"""The parts of ``holdfast.testing.conformance``: what a store promises, sentence by sentence. Without pytest."""
