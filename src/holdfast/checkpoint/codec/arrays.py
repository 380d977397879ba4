"""Numpy arrays and scalars as plain data; numpy is imported only for values and data that have it."""

from __future__ import annotations

import math
import sys
from typing import Any

from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.refused import Malformed, Refused, Unknown

_KINDS = frozenset("biufcmMSUV")


def is_numpy(cls: type) -> bool:
    """Whether values of a class are arrays or scalars of numpy, not of something derived from them."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (
        cls is numpy.ndarray or (issubclass(cls, numpy.generic) and cls.__module__ == "numpy")
    )


def taken(value: Any) -> tuple[int, list[Any]]:
    """An array or scalar as plain data."""
    numpy = sys.modules["numpy"]
    dtype = value.dtype
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise Refused(
            f"a numpy array of type {dtype} is not checkpointable; use a type of fixed size, or a list of its items"
        )
    try:
        described = numpy.lib.format.dtype_to_descr(dtype)
    except ValueError as error:
        raise Refused(
            f"a numpy array of type {dtype} is not checkpointable: {error}; reorder its fields"
        ) from error
    if type(value) is not numpy.ndarray:
        return wire.SCALAR, [described, value.tobytes()]
    order = "F" if value.flags.fnc else "C"
    return wire.ARRAY, [described, order, list(value.shape), value.tobytes(order)]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise Unknown(
            "the data has a numpy array, but numpy is not installed; install the package numpy"
        ) from error
    return numpy


def _dtype(described: Any) -> Any:
    if not isinstance(described, str | list):
        raise Malformed("the type of a numpy array is none")
    dtype = _numpy().lib.format.descr_to_dtype(described)
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise Malformed(f"a numpy array has the type {dtype}")
    return dtype


def array_of(data: Any) -> Any:
    """The array of such data; it owns its memory and can be changed."""
    described, order, shape, content = data
    dtype = _dtype(described)
    if order not in ("C", "F") or any(type(length) is not int or length < 0 for length in shape):
        raise Malformed("the shape of a numpy array is none")
    if type(content) is not bytes or math.prod(shape) * dtype.itemsize != len(content):
        raise Malformed("a numpy array has another size than its bytes")
    return _numpy().ndarray(tuple(shape), dtype, bytearray(content), order=order)


def scalar_of(data: Any) -> Any:
    """The scalar of such data."""
    described, content = data
    dtype = _dtype(described)
    if type(content) is not bytes or dtype.itemsize != len(content):
        raise Malformed("a numpy scalar has another size than its bytes")
    return _numpy().ndarray((), dtype, bytearray(content))[()]
