"""Values to bytes and back, by an allow-list of types."""

from holdfast.checkpoint.codec.values import Codec

__all__ = ["Codec"]
