"""Numpy arrays and scalars as plain data; numpy is imported only for values and data that have it."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, Unknown

_KINDS = frozenset("biufcmMSUV")
_MOST_DIMENSIONS = 64
_MOST_EMPTY = 1 << 20  # items that take no bytes: of these a few bytes could claim any number


def is_numpy(cls: type) -> bool:
    """Return True if values of a class are arrays or scalars of numpy, not of something derived from them."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and (
        cls is numpy.ndarray or (issubclass(cls, numpy.generic) and cls.__module__ == "numpy")
    )


def take_apart(value: Any) -> tuple[int, list[Any]]:
    """Take an array or scalar apart into plain data."""
    numpy = sys.modules["numpy"]
    described = _described(value.dtype)
    # Not by their own tobytes, which leaves NULs at the end out.
    if isinstance(value, str):
        return wire.SCALAR, [f"<U{len(value)}", str.encode(value, "utf-32-le", "surrogatepass")]
    if isinstance(value, bytes):
        return wire.SCALAR, [f"|S{len(value)}", bytes(value)]
    content = value
    if value.dtype.names is not None:  # whose fields may have gaps between them, with whatever memory held
        content = numpy.zeros(value.shape, value.dtype, "F" if value.flags.fnc else "C")
        content[...] = value
    if type(value) is not numpy.ndarray:
        return wire.SCALAR, [described, content.tobytes()]
    if not value.dtype.itemsize and value.size > _MOST_EMPTY:
        raise NotStorable(
            f"a numpy array of type {value.dtype} with {value.size:,} items is not checkpointable; "
            f"use a type of fixed size above 0, or its shape"
        )
    order = "F" if value.flags.fnc else "C"
    data = [described, order, list(value.shape), content.tobytes(order)]
    return wire.ARRAY, data if value.flags.writeable else [*data, True]


def _described(dtype: Any) -> Any:
    """Describe a type as ``.npy`` files do; raise ``NotStorable`` for one that would come back as another."""
    form = sys.modules["numpy"].lib.format
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise NotStorable(
            f"a numpy array of type {dtype} is not checkpointable; use a type of fixed size, or a list of its items"
        )
    if _has_metadata(dtype):
        raise NotStorable(
            f"a numpy array of type {dtype} with metadata is not checkpointable; keep the metadata beside it"
        )
    try:
        described = form.dtype_to_descr(dtype)
    except ValueError as error:
        raise NotStorable(
            f"a numpy array of type {dtype} is not checkpointable: {error}; reorder its fields"
        ) from error
    found = form.descr_to_dtype(described)
    if dtype.names is None and found.type is not dtype.type:
        described = dtype.str[0] + dtype.char  # C has two types of one size: long and long long
        found = form.descr_to_dtype(described)
    if found != dtype or found.type is not dtype.type:
        raise NotStorable(
            f"a numpy array of type {dtype} would come back as another type, so it is not checkpointable; "
            f"use .astype(...) with a type of numpy itself"
        )
    return described


def _has_metadata(dtype: Any) -> bool:
    if dtype.subdtype is not None:
        return dtype.metadata is not None or _has_metadata(dtype.base)
    return dtype.metadata is not None or any(_has_metadata(part[0]) for part in (dtype.fields or {}).values())


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise Unknown(
            "the data has a numpy array, but numpy is not installed; install the package numpy"
        ) from error
    return numpy


_SIMPLE_TYPE = re.compile(r"[<>|=]?[A-Za-z?]\d{0,9}(\[\d{0,9}[A-Za-z]{1,8}(/\d{1,9})?\])?")


def _check_described(described: Any) -> None:
    """Raise ``Malformed`` for types that no array has: numpy would read expressions in their names."""
    if isinstance(described, list):
        for field in described:
            _check_field(*field)
    elif not isinstance(described, str) or not _SIMPLE_TYPE.fullmatch(described):
        raise Malformed("the type of a numpy array is none")


def _check_field(name: Any, described: Any, shape: Any = ()) -> None:
    names = name if isinstance(name, tuple) else (name,)
    lengths = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(one, str) for one in names) or not all(type(one) is int for one in lengths):
        raise Malformed("a field of the type of a numpy array is none")
    _check_described(described)


def _dtype(described: Any) -> Any:
    if not isinstance(described, str | list):
        raise Malformed("the type of a numpy array is none")
    _check_described(described)
    dtype = _numpy().lib.format.descr_to_dtype(described)
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise Malformed(f"a numpy array has the type {dtype}")
    return dtype


def array_of(data: Any) -> Any:
    """Build an array of plain data; it owns its memory."""
    described, order, shape, content, *locked = data
    dtype = _dtype(described)
    if (
        order not in ("C", "F")
        or len(shape) > _MOST_DIMENSIONS
        or any(type(length) is not int or length < 0 for length in shape)
    ):
        raise Malformed("the shape of a numpy array is none")
    items = math.prod(shape)
    if type(content) is not bytes or items * dtype.itemsize != len(content):
        raise Malformed("a numpy array has another size than its bytes")
    if not dtype.itemsize and items > _MOST_EMPTY:
        raise Malformed(f"a numpy array claims {items:,} items without content")
    numpy = _numpy()
    if not content:  # with a buffer all the same: numpy would make items without size bigger
        made = numpy.ndarray(tuple(shape), dtype, bytearray(), order=order)
    elif dtype.names is None:
        made = numpy.ndarray(tuple(shape), dtype, content, order=order).copy(order)
    else:  # as bytes: a copy of such items would leave out what lies between their fields
        made = numpy.ndarray(tuple(shape), dtype, order=order)
        made.reshape(-1, order=order).view("u1")[:] = numpy.frombuffer(content, "u1")
    if locked and locked[0] is True:
        made.flags.writeable = False
    return made


def scalar_of(data: Any) -> Any:
    """Build a scalar of plain data."""
    described, content = data
    dtype = _dtype(described)
    if type(content) is not bytes or dtype.itemsize != len(content):
        raise Malformed("a numpy scalar has another size than its bytes")
    if dtype.kind == "S":
        return _numpy().bytes_(content)
    if dtype.kind == "U":
        text = content.decode("utf-32-be" if dtype.str[0] == ">" else "utf-32-le", "surrogatepass")
        return _numpy().str_(text)
    return _numpy().ndarray((), dtype, bytearray(content))[()]
