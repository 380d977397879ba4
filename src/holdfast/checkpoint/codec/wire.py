"""The wire format of values: MessagePack with extension types.

What MessagePack has is written as MessagePack has it::

    nil, false, true     None, False, True
    int                  int from -2**63 to 2**64 - 1, in the shortest form
    float 64             float, with the bits of a NaN as they are
    str                  str without lone surrogates, UTF-8
    bin                  bytes
    array                list
    map                  dict whose keys are all such strs, in its order

Everything else is an extension. *Packed* payloads are one value in this same format, here shown in brackets;
text payloads are UTF-8. ``name`` is the wire name of a class: its qualified name without the module, or the name
that ``@checkpointable`` gave it. ``version`` is an int, 1 unless ``@checkpointable`` gave another.

===  ==================  =====================================================================================
 1   int                 two's complement, big-endian, as few bytes as hold it; ints that MessagePack has not
 2   complex             real part, imaginary part: two big-endian float 64
 3   str                 UTF-8 in which lone surrogates are encoded like other code points ("surrogatepass")
 4   bytearray           its bytes
 5   tuple               packed [item, ...]
 6   set                 packed [item, ...], ordered by the bytes of the encoded items
 7   frozenset           as set
 8   dict                packed [[key, ...], [value, ...]]; dicts with any key that a map cannot have
 9   range               packed [start, stop, step]
10   Ellipsis            empty
16   Decimal             text as Python writes it: "-1.50", "1E+5", "NaN", "sNaN7", "-Infinity"
17   Fraction            packed [numerator, denominator], in lowest terms, denominator above 0
18   UUID                16 bytes, big-endian
19   date                text, ISO 8601: "2026-03-01"
20   datetime            text, ISO 8601: naive, or an offset in whole seconds: "2026-03-01T12:00:00.000001+00:00"
21   datetime            packed [naive ISO 8601 text, fold, zone]; zone is nil, 25 or 26; what 20 cannot say
22   time                text, ISO 8601, as 20
23   time                packed, as 21
24   timedelta           packed [days, seconds, microseconds], the latter two not negative
25   timezone            packed [offset as timedelta, name or nil]: a fixed offset
26   ZoneInfo            text: the key in the time zone database, "Europe/Berlin"
27   path                packed [kind, text]; kind is "Path" (of the system that reads it), "PurePosixPath" or
                         "PureWindowsPath"
32   OrderedDict         packed [[key, ...], [value, ...]]
33   defaultdict         packed [name of the factory or nil, [key, ...], [value, ...]]
34   Counter             packed [[key, ...], [value, ...]]
35   deque               packed [maxlen or nil, [item, ...]]
48   record              packed [name, version, {field: value}], [name, version, {field: value},
                         {attribute: value}] or [name, version, {field: value}, {attribute: value}, [field that is
                         not set, ...]]: dataclass, NamedTuple, msgspec Struct or ``@checkpointable`` class;
                         attributes are what an instance holds beside the fields of its class, and a field is not
                         set if the class has it and the instance does not; what ``encode`` gave for an instance is
                         its only field, "value"
49   model               packed [name, version, {field: value}, {attribute: value}, [name of a field that was set],
                         extra fields or nil, private attributes or nil]: pydantic model; [field that is not set,
                         ...] comes behind that if there are any
50   enum member         packed [name, name of the member]
51   flag                packed [name, value as int]: a flag whose value no member has
52   exception           packed [name, [argument, ...], {attribute: value}]: a builtin one or one of Holdfast;
                         without traceback and cause; notes are the attribute "__notes__", and what a group was
                         made with the attributes "message" and "exceptions" where the arguments are others
53   exception           packed [name, version, [argument, ...], {attribute: value}]: any other one
64   numpy array         packed [type, order, [length, ...], bytes]: type as in .npy files ("<f8", or a list of
                         tuples for structured types), or a character of C for one of two that are the same size
                         ("<q"); order "C" or "F" of the elements in the bytes; true comes behind if it is
                         read-only
65   numpy scalar        packed [type, bytes]
===  ==================  =====================================================================================

Other codes are reserved: 11 to 15 for builtins, 28 to 31 for the standard library, 36 to 47 for collections, 54 to
63 for classes, 66 to 79 for arrays, the rest for what comes. A reader refuses codes that it does not know.

Type annotations are plain data in this format, see ``holdfast.checkpoint.codec.type_forms``.

The same value has the same bytes in every process. Extensions inside extensions go at most
``MAX_EXTENSIONS`` deep, and ``MAX_NESTING`` arrays, maps and extensions lie around any value at most.
"""

from __future__ import annotations

import ormsgpack

BIG_INT = 1
COMPLEX = 2
SURROGATES = 3
BYTEARRAY = 4
TUPLE = 5
SET = 6
FROZENSET = 7
DICT = 8
RANGE = 9
ELLIPSIS = 10
DECIMAL = 16
FRACTION = 17
UUID = 18
DATE = 19
DATETIME = 20
DATETIME_IN_ZONE = 21
TIME = 22
TIME_IN_ZONE = 23
TIMEDELTA = 24
TIMEZONE = 25
ZONE_INFO = 26
PATH = 27
ORDERED_DICT = 32
DEFAULT_DICT = 33
COUNTER = 34
DEQUE = 35
RECORD = 48
MODEL = 49
MEMBER = 50
FLAG = 51
STANDARD_ERROR = 52
ERROR = 53
ARRAY = 64
SCALAR = 65

# The extensions whose payload is not packed.
FLAT = frozenset(
    {BIG_INT, COMPLEX, SURROGATES, BYTEARRAY, ELLIPSIS, DECIMAL, UUID, DATE, DATETIME, TIME, ZONE_INFO}
)

MAX_EXTENSIONS = 100
"""Each nested extension costs a reader a few frames of its stack."""
MAX_NESTING = 4096
"""Each array or map around a value costs a reader some 600 bytes of its stack."""

MAX_ALIKE = 256
"""At most so many keys of a dict, or items of a set, may have one hash: each is compared with all others."""

# Nothing that has a type of its own may pass as something else.
NATIVE = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
