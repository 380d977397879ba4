"""Turns values into bytes and back, by an allow-list of types."""

from holdfast.checkpoint.codec.codec import Codec

__all__ = ["Codec"]
