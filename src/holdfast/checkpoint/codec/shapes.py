"""Shapes: take instances of a class apart into plain data, and rebuild them without running its code."""

from __future__ import annotations

import dataclasses
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from enum import Enum, Flag
from typing import Any, ClassVar

from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.codec.evolution import Evolution
from holdfast.checkpoint.codec.refusals import Malformed, NotStorable, Unknown
from holdfast.checkpoint.codec.registry import excluded_fields, mark_of
from holdfast.engine.copies import read_slots, slots_of, solid_base

_NONE: dict[str, Any] = {}
_CONVERTED = "value"  # the only field of an instance that was converted
_UNKEPT = frozenset({"__orig_class__"})  # the type arguments with which a generic class was called


class Shape(ABC):
    """Stores instances of one class.

    ``take_apart`` gives the extension code and the plain data of an instance, ``rebuild`` an instance of such data, and
    ``parts`` its parts, with the paths that errors show.
    """

    __slots__ = ("cls", "name")
    kind: ClassVar[str] = ""

    def __init__(self, cls: type, name: str) -> None:
        self.cls: Any = cls
        self.name = name

    @abstractmethod
    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        """Return the extension code and plain data of an instance."""

    @abstractmethod
    def rebuild(self, code: int, data: list[Any]) -> Any:
        """Return an instance of what ``take_apart`` gave."""

    @abstractmethod
    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Return the parts of an instance with their paths."""

    def mismatch(self, code: int) -> Unknown:
        """Make the error for data of another kind of class."""
        stored = _KINDS.get(code, "something else")
        return Unknown(f"{self.name} was stored as {stored}, but is {self.kind} here; give it another name")


_KINDS = {
    wire.RECORD: "a record",
    wire.MODEL: "a pydantic model",
    wire.MEMBER: "an enum member",
    wire.FLAG: "a flag",
    wire.ERROR: "an exception",
}


class RecordShape(Shape):
    """Stores instances with named fields; derived classes know how an instance holds them."""

    __slots__ = ("evolution", "excluded", "fields", "held", "known", "version")
    kind = "a record"

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self.excluded = excluded_fields(cls)
        self.held: tuple[str, ...] = self.names()
        """The fields that an instance holds, of which ``fields`` are stored."""
        self.fields = tuple(field for field in self.held if field not in self.excluded)
        self.evolution = Evolution.of(name, cls, self.fields)
        self.known = self.evolution.fields
        self.version = self.evolution.mark.version

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the names of the fields that the class has."""

    @abstractmethod
    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields of an instance in the order of the class, and its other attributes."""

    @abstractmethod
    def make(self, fields: dict[str, Any], attributes: dict[str, Any]) -> Any:
        """Return an instance with these fields and attributes."""

    @abstractmethod
    def find_default(self, name: str) -> Callable[[], Any]:
        """Return a function that gives the default of a field; ``LookupError`` if it has none."""

    def default(self, name: str) -> Any:
        """Return the default of a field; ``LookupError`` if it has none."""
        return self.find_default(name)()

    def with_excluded(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the stored fields with the defaults of the excluded ones, in the order of the class."""
        if not self.excluded:
            return fields
        defaults = {name: self.default(name) for name in self.held if name in self.excluded}
        return {
            name: {**fields, **defaults}[name] for name in self.held if name in fields or name in defaults
        }

    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        fields, attributes = self.contents(value)
        if len(fields) < len(self.fields):
            return wire.RECORD, [self.name, self.version, fields, attributes, self.unset(fields)]
        if attributes:
            return wire.RECORD, [self.name, self.version, fields, attributes]
        return wire.RECORD, [self.name, self.version, fields]

    def unset(self, fields: Collection[str]) -> list[str]:
        """Return the fields of the class that an instance does not hold."""
        return [name for name in self.fields if name not in fields]

    def rebuild(self, code: int, data: list[Any]) -> Any:
        version, fields, attributes = self.checked(code, data)
        if version != self.version or fields.keys() != self.known:
            fields = self.evolution.renew(version, fields)
            fields = self.evolution.complete(version, fields, _unset_in(code, data), self.default)
        return self.make(self.with_excluded(fields), attributes)

    def checked(self, code: int, data: list[Any]) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Return version, fields and attributes in the data of a record or model."""
        if code != wire.RECORD and code != wire.MODEL:
            raise self.mismatch(code)
        version, fields = data[1], data[2]
        attributes = data[3] if len(data) > 3 else _NONE
        if type(version) is not int or type(fields) is not dict or type(attributes) is not dict:
            raise Malformed(f"the fields of {self.name} are no fields")
        return version, fields, attributes

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        for named in self.contents(value):
            yield from ((f".{name}", part) for name, part in named.items())


def _unset_in(code: int, data: list[Any]) -> list[str]:
    """Return the names of the fields that an instance did not hold when it was stored."""
    place = 4 if code == wire.RECORD else 7
    names: list[str] = data[place] if len(data) > place else []
    if type(names) is not list or not all(type(name) is str for name in names):
        raise Malformed(f"the unset fields of {data[0]} are no names")
    return names


class ObjectShape(RecordShape):
    """A dataclass or a plain class: attributes in ``__dict__`` and in slots, set without its constructor."""

    __slots__ = ("_defaults", "open", "slots")

    def __init__(self, cls: type, name: str) -> None:
        self.slots = slots_of(cls)
        self.open = cls.__dictoffset__ != 0
        super().__init__(cls, name)

    def names(self) -> tuple[str, ...]:
        self._defaults: dict[str, dataclasses.Field[Any]] = {}
        if dataclasses.is_dataclass(self.cls):
            self._defaults = {field.name: field for field in dataclasses.fields(self.cls)}
        return tuple(self._defaults)

    def find_default(self, name: str) -> Callable[[], Any]:
        field = self._defaults[name]
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory
        if field.default is dataclasses.MISSING:
            raise LookupError(name)
        return lambda: field.default

    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        held = value.__dict__ if self.open else {}
        if not self.slots and tuple(held) == self.fields:  # by far the most common
            return held, _NONE
        if self.slots:
            held = {**held, **read_slots(self.slots, value)}
        fields = {name: held[name] for name in self.fields if name in held}
        return fields, {
            name: part
            for name, part in held.items()
            if name not in fields and name not in _UNKEPT and name not in self.excluded
        }

    def make(self, fields: dict[str, Any], attributes: dict[str, Any]) -> Any:
        value = object.__new__(self.cls)
        held = {**fields, **attributes} if attributes else fields
        if self.open and not self.slots:
            object.__setattr__(value, "__dict__", held)
            return value
        for name, part in held.items():
            if name in self.slots:
                self.slots[name].__set__(value, part)
            elif self.open:
                value.__dict__[name] = part
            else:
                raise Unknown(
                    f"{self.name} has no place for the attribute {name!r}, which the data has; add it to its slots"
                )
        return value


class PlainShape(ObjectShape):
    """A ``@checkpointable`` class that declares no fields: the attributes of an instance are its fields."""

    __slots__ = ()

    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return super().contents(value)[1], {}

    def rebuild(self, code: int, data: list[Any]) -> Any:
        version, fields, attributes = self.checked(code, data)
        stored = {**self.evolution.upgrade(version, fields), **attributes}
        return self.make({name: part for name, part in stored.items() if name not in self.excluded}, {})

    def find_default(self, name: str) -> Callable[[], Any]:
        # Nothing is set: the attribute of the class is seen in its place.
        if name in self.slots or not hasattr(self.cls, name):
            raise LookupError(name)
        return lambda: getattr(self.cls, name)


class TupleShape(RecordShape):
    """A NamedTuple, of either kind."""

    __slots__ = ()

    def names(self) -> tuple[str, ...]:
        return tuple(self.cls._fields)

    def find_default(self, name: str) -> Callable[[], Any]:
        default = self.cls._field_defaults[name]
        return lambda: default

    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if len(value) != len(self.held):
            raise NotStorable(
                f"{self.cls.__name__} has {len(value)} items, but {len(self.held)} fields; "
                f"give it as many as it has fields"
            )
        fields = dict(zip(self.held, value, strict=True))
        for name in self.excluded:
            fields.pop(name, None)
        return fields, getattr(value, "__dict__", {})

    def rebuild(self, code: int, data: list[Any]) -> Any:
        return super().rebuild(
            code, data[: 4 if code == wire.RECORD else 7]
        )  # a tuple holds all of its fields

    def make(self, fields: dict[str, Any], attributes: dict[str, Any]) -> Any:
        value = tuple.__new__(self.cls, [fields[name] for name in self.held])
        if attributes:
            value.__dict__.update(attributes)
        return value


class StructShape(RecordShape):
    """A msgspec Struct: its constructor checks nothing, and changes of fields by ``__post_init__`` are undone."""

    __slots__ = ("_unchecked",)
    _unchecked: Any

    def names(self) -> tuple[str, ...]:
        return tuple(self.cls.__struct_fields__)

    def find_default(self, name: str) -> Callable[[], Any]:
        msgspec = sys.modules["msgspec"]
        field = next(field for field in msgspec.structs.fields(self.cls) if field.name == name)
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory  # type: ignore[no-any-return]
        if field.default is msgspec.NODEFAULT:
            raise LookupError(name)
        return lambda: field.default

    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        fields = {name: getattr(value, name) for name in self.fields if hasattr(value, name)}
        return fields, getattr(value, "__dict__", {})

    def make(self, fields: dict[str, Any], attributes: dict[str, Any]) -> Any:
        unset = [name for name in self.held if name not in fields]
        given = {**fields, **dict.fromkeys(unset)}
        if hasattr(self.cls, "__post_init__"):
            value = self._make_unchecked(given)
            force = sys.modules["msgspec"].structs.force_setattr
            for name, part in fields.items():
                force(value, name, part)
        else:
            value = self.cls(**given)
        for name in unset:
            delattr(value, name)
        if attributes:
            value.__dict__.update(attributes)
        return value

    def _make_unchecked(self, fields: dict[str, Any]) -> Any:
        """Make an instance even if ``__post_init__`` raises, which may refuse fields that were set later."""
        try:
            return self.cls(**fields)
        except Exception:
            pass
        # Only a derived class with another ``__post_init__`` can make an instance without calling it.
        if not hasattr(self, "_unchecked"):
            ignoring = {"__post_init__": lambda self: None, "__module__": __name__}
            self._unchecked = type(self.cls)(f"unchecked {self.cls.__qualname__}", (self.cls,), ignoring)
        value = self._unchecked(**fields)
        value.__class__ = self.cls
        return value


class ModelShape(RecordShape):
    """A pydantic model: fields, which of them were set, extra and private ones, without validation."""

    __slots__ = ("_is_root",)
    kind = "a pydantic model"

    def __init__(self, cls: type, name: str) -> None:
        # Such a model has neither extra nor private fields in the slots of its base.
        self._is_root: bool = getattr(cls, "__pydantic_root_model__", False)
        super().__init__(cls, name)

    def names(self) -> tuple[str, ...]:
        return tuple(self.cls.__pydantic_fields__)

    def find_default(self, name: str) -> Callable[[], Any]:
        field = self.cls.__pydantic_fields__[name]
        if field.is_required():
            raise LookupError(name)
        return lambda: field.get_default(call_default_factory=True, validated_data={})

    def contents(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        held = value.__dict__
        if tuple(held) == self.fields:
            return held, _NONE
        fields = {name: held[name] for name in self.fields if name in held}
        return fields, {
            name: part for name, part in held.items() if name not in fields and name not in self.excluded
        }

    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        fields, attributes = self.contents(value)
        given = sorted(value.__pydantic_fields_set__ - self.excluded)
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        data = [self.name, self.version, fields, attributes, given, extra, private]
        if len(fields) < len(self.fields):
            data.append(self.unset(fields))
        return wire.MODEL, data

    def rebuild(self, code: int, data: list[Any]) -> Any:
        version, stored, attributes = self.checked(code, data)
        given, extra, private = data[4:7] if code == wire.MODEL else (stored, None, None)
        if any(part is not None and type(part) is not dict for part in (extra, private)):
            raise Malformed(f"the extra fields of {self.name} are no fields")
        fields = stored
        if version != self.version or stored.keys() != self.known:
            renewed = self.evolution.renew(version, stored)
            if renewed is not stored:
                # What an upgrade brings was set by it; of the rest those count that are still there.
                given = {*(renewed.keys() - stored.keys()), *({*renewed, *(extra or ())} & {*given})}
            fields = self.evolution.complete(version, renewed, _unset_in(code, data), self.default)
        value = self.make(self.with_excluded(fields), attributes)
        object.__setattr__(value, "__pydantic_fields_set__", set(given))
        if not self._is_root:
            object.__setattr__(value, "__pydantic_extra__", extra)
            object.__setattr__(value, "__pydantic_private__", private)
        return value

    def make(self, fields: dict[str, Any], attributes: dict[str, Any]) -> Any:
        value = self.cls.__new__(self.cls)
        object.__setattr__(value, "__dict__", {**fields, **attributes})
        return value

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from super().parts(value)
        for named in (value.__pydantic_extra__, value.__pydantic_private__):
            yield from ((f".{name}", part) for name, part in (named or {}).items())


class EnumShape(Shape):
    """An Enum: stores members by name, and combined flags by value."""

    __slots__ = ()
    kind = "an enum"

    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        name = value._name_
        if self.cls._member_map_.get(name) is value:
            return wire.MEMBER, [self.name, name]
        if not issubclass(self.cls, Flag):
            cls = self.cls.__name__
            raise NotStorable(
                f"{cls}.{name} is no member that {cls} declares, so it could not be found again; "
                f"add it to the class"
            )
        return wire.FLAG, [self.name, value._value_]

    def rebuild(self, code: int, data: list[Any]) -> Any:
        if code == wire.MEMBER:
            member = self.cls._member_map_.get(data[1])
            if member is None:
                raise Unknown(
                    f"the enum {self.name} has no member {data[1]!r}, which the data has; "
                    f"add it, or make it an alias of another member"
                )
            return member
        if code != wire.FLAG or not issubclass(self.cls, Flag):
            raise self.mismatch(code)
        if type(data[1]) is not int:
            raise Malformed(f"the value of a flag of {self.name} is no int")
        found = self.cls._value2member_map_.get(data[1])
        try:  # not through the class, which might ask a method of the user
            return Flag.__dict__["_missing_"].__func__(self.cls, data[1]) if found is None else found
        except ValueError:
            raise Unknown(f"the flag {self.name} has no value {data[1]}, which the data has") from None

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from ()


class ConvertedShape(Shape):
    """A class whose instances two functions of the user turn into something else and back."""

    __slots__ = ("_decode", "_encode")
    kind = "a class with encode and decode"

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        mark = mark_of(cls)
        assert mark is not None
        self._encode: Any = mark.encode
        self._decode: Any = mark.decode

    def take_apart(self, value: Any) -> tuple[int, list[Any]]:
        return wire.RECORD, [self.name, 1, {_CONVERTED: self._converted(value)}]

    def _converted(self, value: Any) -> Any:
        cls = self.cls.__name__
        try:
            converted = self._encode(value)
        except Exception as error:  # whatever the user's function raises
            raise NotStorable(f"encode of {cls} failed: {error!r}; see checkpointable({cls}, ...)") from error
        if type(converted) is self.cls:
            raise NotStorable(
                f"encode of {cls} returns a {cls}; let it return something that can be stored, like a str or a dict"
            )
        return converted

    def rebuild(self, code: int, data: list[Any]) -> Any:
        if code != wire.RECORD:
            raise self.mismatch(code)
        if len(data) != 3 or type(data[2]) is not dict or data[2].keys() != {_CONVERTED}:
            raise Unknown(
                f"{self.name} was stored by its fields, but is {self.kind} here; give it another name"
            )
        try:
            value = self._decode(data[2][_CONVERTED])
        except Exception as error:  # whatever the user's function raises
            raise Unknown(f"decode of {self.name} failed: {error!r}") from error
        if not isinstance(value, self.cls):
            raise Unknown(
                f"decode of {self.name} returned a {type(value).__name__}; it must return a {self.cls.__name__}"
            )
        return value

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield " (encoded)", self._converted(value)


def complain_about_excluded(cls: type) -> str:
    """Say what is wrong with the excluded fields of a class; an empty text if nothing is."""
    kind = kind_of(cls)
    if kind is None or not issubclass(kind, RecordShape):
        return "exclude is for classes with fields, as dataclasses and pydantic models are, and this is none"
    shape = kind(cls, cls.__qualname__)
    for name in sorted(shape.excluded):
        if shape.held and name not in shape.held:
            return f"exclude names {name!r}, but the fields of the class are {', '.join(shape.held)}"
        try:
            shape.find_default(name)
        except LookupError:
            return f"exclude names {name!r}, which has no default to come back as; give the field a default"
    return ""


def shape_of(cls: type, name: str) -> Shape:
    """Return the shape of an allowed class; raise ``NotStorable`` if its instances cannot be stored."""
    kind = kind_of(cls)
    if kind is not None:
        if excluded_fields(cls) and (complaint := complain_about_excluded(cls)):
            raise NotStorable(f"{cls.__name__} is not checkpointable: {complaint}")
        return kind(cls, name)
    solid = solid_base(cls)
    if solid is not object:
        raise NotStorable(
            f"{cls.__name__} is derived from {solid.__name__}, so it is not checkpointable; "
            f"use a {solid.__name__}, or a dataclass that holds one"
        )
    raise NotStorable(
        f"{cls.__name__} is not checkpointable; make it a dataclass, or decorate it with @checkpointable"
    )


def kind_of(cls: type) -> type[Shape] | None:
    """Return the kind of shape for a class; None if its instances cannot be stored."""
    from holdfast.checkpoint.codec.exceptions import ErrorShape

    mark = mark_of(cls)
    if mark is not None and mark.encode is not None:
        return ConvertedShape
    if issubclass(cls, Enum):
        return EnumShape
    if issubclass(cls, BaseException):
        return ErrorShape
    if hasattr(cls, "_fields") and solid_base(cls) is tuple:
        return TupleShape
    if _is_of(cls, "pydantic", "BaseModel"):
        return ModelShape
    if _is_of(cls, "msgspec", "Struct"):
        return StructShape
    if solid_base(cls) is object:
        if dataclasses.is_dataclass(cls):
            return ObjectShape
        if any(mark is not None and mark.encode is None for mark in map(mark_of, cls.__mro__)):
            return PlainShape
    return None


def _is_of(cls: type, module: str, name: str) -> bool:
    """Return True if a class derives from one of a library; then the library is imported already."""
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and issubclass(cls, base)
