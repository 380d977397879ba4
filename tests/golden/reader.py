"""A reader of stores that shares no code with Holdfast: made from ``docs/reference/format.md`` alone, to prove it.

``python tests/golden/reader.py STORE [--namespace NAME]`` prints the runs of a SQLite or file store, their checkpoints
with ids that are computed anew, and what each run holds where it stands, with its journal and its inbox.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack
import zstandard
from blake3 import blake3

LARGEST = 2**31


class Broken(Exception):
    """The store is not what the format says."""


# Stores: heads, records in stored form, blobs, notes, letters


class Record(NamedTuple):
    checkpoint_id: str
    seq: int
    header: bytes
    changes: bytes
    values: bytes
    keyframe: tuple[bool, bytes, bytes] | None
    """Cut, changes, values."""
    tags: tuple[str, ...] = ()


class Keyed(NamedTuple):
    """A note or a letter, in its stored form."""

    key: str
    data: bytes


class Store(NamedTuple):
    heads: dict[str, dict[str, Any]]
    records: Callable[[str], list[Record]]
    blob: Callable[[str, bytes], bytes]
    """The blob of a family, in its stored form."""
    notes: Callable[[str], list[Keyed]]
    letters: Callable[[str], list[Keyed]]


def open_store(path: Path, namespace: str = "") -> Store:
    return _directory(path, namespace) if path.is_dir() else _database(path, namespace)


def _check_version(major: int, features: list[str]) -> None:
    if major != 1 or features:
        raise Broken(f"format {major} with {features} is not known here")


def _database(path: Path, namespace: str) -> Store:
    def select(query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(query, values).fetchall()

    if select("PRAGMA application_id") != [(0x486F6C64,)]:
        raise Broken(f"{path} is another program's database")
    meta = dict(select("SELECT key, value FROM meta"))
    ((major,),) = select("PRAGMA user_version")
    if int(meta["format_major"]) != major:
        raise Broken("the two places that say the version differ")
    _check_version(major, json.loads(meta["features"]))
    heads, rows = {}, {}
    columns = "id, run, workflow, family, checkpoint, reason"
    alike = ["seq", "token", "status", "created", "updated", "owner", "wake_at", "takeovers"]
    alike += ["retention", "waiting_for"]
    query = f"SELECT {columns}, {', '.join(alike)} FROM runs WHERE namespace = ? ORDER BY created, run"
    for number, run, workflow, family, checkpoint, reason, *others in select(query, namespace):
        rows[run] = number
        heads[run] = {
            "run_id": run,
            "workflow_name": workflow,
            "family": family,
            "checkpoint_id": checkpoint.hex(),
            "reason": reason.decode("utf-8", "surrogatepass"),
            **dict(zip(alike, others, strict=True)),
        }

    def records(run: str) -> list[Record]:
        query = (
            "SELECT c.id, c.seal, c.new_bytes, c.checkpoint, c.seq, c.header, c.changes, c.small_values, k.cut, "
            "k.changes, k.small_values "
            "FROM checkpoints c LEFT JOIN keyframes k ON k.checkpoint = c.id WHERE c.run = ? ORDER BY c.seq"
        )
        found = []
        for row, seal, new_bytes, checkpoint, seq, header, changes, values, *frame in select(
            query, rows[run]
        ):
            cut, key_changes, key_values = frame
            tags = [tag for (tag,) in select("SELECT tag FROM tags WHERE checkpoint = ? ORDER BY rowid", row)]
            parts = [checkpoint.hex().encode(), seq, new_bytes, tags, None if cut is None else bool(cut)]
            _check_seal(seal, ormsgpack.packb(parts), f"checkpoint {checkpoint.hex()}")
            keyframe = None if cut is None else (bool(cut), key_changes, key_values)
            given = tuple(tag.decode("utf-8", "surrogatepass") for tag in tags)
            found.append(Record(checkpoint.hex(), seq, header, changes, values, keyframe, given))
        return found

    def blob(family: str, digest: bytes) -> bytes:
        query = (
            "SELECT size, data FROM blobs JOIN families ON families.id = blobs.family "
            "WHERE namespace = ? AND families.family = ? AND find = ? AND digest = ?"
        )
        find = int.from_bytes(digest[:8], "big", signed=True)
        found = select(query, namespace, family, find, digest)
        if not found:
            raise Broken(f"blob {digest.hex()} is missing")
        size, data = found[0]
        if data is None:
            folder = path.with_name(f"{path.name}-blobs") / f"namespace-{file_name(namespace)}"
            data = (folder / file_name(family) / digest.hex()).read_bytes()
        if len(data) != size:
            raise Broken(f"blob {digest.hex()} has another size")
        return bytes(data)

    def keyed(table: str, run: str) -> list[Keyed]:
        if not select("SELECT 1 FROM sqlite_master WHERE name = ?", table):
            return []
        query = f"SELECT key, data FROM {table} WHERE run = ? AND data IS NOT NULL ORDER BY id"
        return [Keyed(key.decode("utf-8", "surrogatepass"), data) for key, data in select(query, rows[run])]

    return Store(heads, records, blob, partial(keyed, "notes"), partial(keyed, "letters"))


def _check_seal(seal: int, sealed: bytes, what: str) -> None:
    if int.from_bytes(blake3(sealed).digest()[:6], "big") != seal:
        raise Broken(f"{what} has a seal that is not right")


def _directory(path: Path, namespace: str) -> Store:
    said = json.loads((path / "store.json").read_bytes())
    _check_version(said["major"], said["features"])
    base = path / "namespaces" / file_name(namespace) if namespace else path
    runs = {}
    for file in (base / "runs").glob("*.jsonl"):
        lines = RunLines(namespace)
        lines.read(file)
        if lines.head is None:  # a run that was removed, or one that never began
            continue
        run = lines.head["run_id"]
        if file.stem != file_name(run):
            raise Broken(f"{file} holds run {run}")
        runs[run] = lines
    heads = {run: lines.head for run, lines in runs.items() if lines.head is not None}

    def records(run: str) -> list[Record]:
        return [record for _, record in sorted(runs[run].records.items())]

    def blob(family: str, digest: bytes) -> bytes:
        return (base / "blobs" / file_name(family) / digest.hex()).read_bytes()

    ordered = sorted(heads.items(), key=lambda item: (item[1]["created"], item[0]))
    return Store(
        dict(ordered),
        records,
        blob,
        lambda run: list(runs[run].notes.values()),
        lambda run: list(runs[run].letters.values()),
    )


_SAYS_NOTHING = {
    **dict.fromkeys(("owner", "reason", "retention", "waiting_for"), ""),
    **dict.fromkeys(("fingerprint", "by", "traceback", "origin"), ""),
    "wake_at": None,
    "takeovers": 0,
    "letters_known": 0,
    "restored": 0,
}
"""The fields of heads that lines leave out."""
_LINE = re.compile(rb'\{"sum":"([0-9a-f]{16})",("at":(\d+),.*\})\n', re.DOTALL)


def sum_of(file_id: str, summed: bytes) -> str:
    """The checksum of a line: of the id of its file, and of all that stands behind the checksum."""
    return blake3(file_id.encode() + summed).hexdigest()[:16]


class RunLines:
    """A run as the lines of its file say, one after the other."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._clear()

    def _clear(self) -> None:
        self.head: dict[str, Any] | None = None
        self.records: dict[int, Record] = {}
        self.notes: dict[str, Keyed] = {}
        self.letters: dict[str, Keyed] = {}

    def read(self, file: Path) -> None:
        """Take in all lines; a last one that was never complete is passed over."""
        file_id, offset = "", 0
        for line in file.read_bytes().splitlines(keepends=True):
            found = _LINE.fullmatch(line)
            if not found or int(found[3]) != offset or sum_of(file_id, found[2]) != found[1].decode():
                if line[-1:] != b"\n" or b"\0" in line:
                    break
                raise Broken(f"{file}: the line at {offset} has a checksum that is not right")
            said = json.loads(line)
            if not offset:
                if (said["kind"], said["namespace"]) != ("file", self._namespace):
                    raise Broken(f"{file} does not say what it is")
                file_id = said["file"]
            self._take(said)
            offset += len(line)
        if offset != file.stat().st_size and b"\n" in file.read_bytes()[offset:-1]:
            raise Broken(f"{file}: lines follow one that is not complete")

    def _take(self, said: dict[str, Any]) -> None:
        body = said["body"]
        if "head" in said:
            given = {key: _meant(value) for key, value in said["head"].items() if key[:1] != "#"}
            head = _SAYS_NOTHING | given
            if self.head is None or self.head["checkpoint_id"] != head["checkpoint_id"]:
                self.notes = {}
            self.head = head
        for shown in body.get("records", []):
            self.records[shown["seq"]] = _shown_record(shown)
        if {str(record["seq"]): record["checkpoint_id"] for record in body.get("records", [])} != said.get(
            "ids", {}
        ):
            raise Broken("the ids of a line are not those of its records")
        for shown in body.get("notes", []):
            note = _shown_keyed(shown)
            self.notes[note.key] = note
        for shown in body.get("letters", []):
            letter = _shown_keyed(shown)
            self.letters[letter.key] = letter
        for key in said.get("taken", []):
            self.letters.pop(_meant(key), None)
        for seq, tags in said.get("tags", {}).items():
            self._replace(int(seq), tags=tuple(map(_meant, tags)))
        for seq, frame in body.get("keyframes", {}).items():
            self._replace(int(seq), keyframe=_shown_keyframe(frame))
        for seq in said.get("removed", []):
            self.records.pop(seq, None)
        if said["kind"] == "gone":
            self._clear()
        elif "head" in said and len(self.letters) != said.get("inbox", 0):
            raise Broken("a line says that another number of letters waits")

    def _replace(self, seq: int, **parts: Any) -> None:
        if seq in self.records:
            self.records[seq] = self.records[seq]._replace(**parts)


def _shown_keyed(shown: dict[str, Any]) -> Keyed:
    key = _meant(shown["key"])
    if "packed" in shown or "packed_base64" in shown:
        return Keyed(key, _shown_packed(shown, "packed"))
    return Keyed(key, _shown_part(shown, "data"))


def _shown_record(shown: dict[str, Any]) -> Record:
    frame = shown.get("keyframe")
    return Record(
        shown["checkpoint_id"],
        shown["seq"],
        _shown_packed(shown, "header"),
        _shown_part(shown, "changes"),
        _shown_part(shown, "values"),
        None if frame is None else _shown_keyframe(frame),
    )


def _shown_keyframe(shown: dict[str, Any]) -> tuple[bool, bytes, bytes]:
    return shown["cut"], _shown_part(shown, "changes"), _shown_part(shown, "values")


def _shown_packed(shown: dict[str, Any], name: str) -> bytes:
    return packed_from(shown[name]) if name in shown else base64.b64decode(shown[f"{name}_base64"])


def _shown_part(shown: dict[str, Any], name: str) -> bytes:
    if name in shown:
        return b"\x00" + packed_from(shown[name])
    if f"{name}_blob" in shown:
        return b"\x02" + bytes.fromhex(shown[f"{name}_blob"])
    return base64.b64decode(shown.get(f"{name}_base64", ""))


def packed_from(shown: Any) -> bytes:
    """The MessagePack that JSON stands for."""
    return ormsgpack.packb(_meant(shown), option=ormsgpack.OPT_NON_STR_KEYS)


def _meant(shown: Any) -> Any:
    if isinstance(shown, list):
        return [_meant(item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    match list(shown.items()):
        case [("$pack", inner)]:
            return packed_from(inner)
        case [("$utf8", text)]:
            return text.encode()
        case [("$hex", digits)]:
            return bytes.fromhex(digits)
        case [("$bin", text)]:
            return base64.b64decode(text)
        case [("$ext", [code, inner])]:
            return ormsgpack.Ext(code, _meant(inner))
        case [("$text", text)]:
            return base64.b64decode(text).decode("utf-8", "surrogatepass")
        case [("$float", text)]:
            return struct.unpack(">d", bytes.fromhex(text))[0] if len(text) == 16 else float(text)
        case [("$map", pairs)]:
            return {_meant(key): _meant(value) for key, value in pairs}
    return {key: _meant(value) for key, value in shown.items()}


_PLAIN = re.compile(r"[a-z0-9_-]([a-z0-9._-]{0,98}[a-z0-9_-])?")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def file_name(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _DEVICE.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{re.sub('[^a-z0-9_-]', '_', text.lower())[:60]}~{digest}"


# Stored forms and ids


def plain_here(stored: bytes) -> bytes:
    """The plain data of what cannot lie elsewhere: blobs, notes, letters."""
    if not stored:
        return b""
    if stored[0] == 0:
        return stored[1:]
    if stored[0] != 1:
        raise Broken(f"form {stored[0]} is not known here")
    if not 0 <= zstandard.frame_content_size(stored[1:]) <= LARGEST:
        raise Broken("a frame is too big, or does not say how big it is")
    return zstandard.ZstdDecompressor().decompress(stored[1:])


class Parts:
    """Turns stored forms of one run into plain data."""

    def __init__(self, store: Store, family: str) -> None:
        self._store = store
        self._family = family

    def plain(self, stored: bytes) -> bytes:
        return self.blob(stored[1:]) if stored[:1] == b"\x02" else plain_here(stored)

    def blob(self, digest: bytes) -> bytes:
        data = plain_here(self._store.blob(self._family, digest))
        if blake3(data).digest() != digest:
            raise Broken(f"blob {digest.hex()} has other content than its name says")
        return data


def id_of(header: bytes, changes: bytes, values: bytes) -> str:
    body = blake3(len(changes).to_bytes(8, "little") + changes + values).digest()
    return _lowest_bit(blake3(header + body).hexdigest(), 0)


def _lowest_bit(checkpoint_id: str, bit: int) -> str:
    return checkpoint_id[:-1] + f"{int(checkpoint_id[-1], 16) & 14 | bit:x}"


# Values


def decoded(data: bytes) -> Any:
    """A value as JSON could have it: what JSON has not is an object with one key that begins with ``$``."""
    return _tagged(ormsgpack.unpackb(data, ext_hook=_extension))


class _Extension(NamedTuple):
    code: int
    payload: bytes


def _extension(code: int, payload: bytes) -> _Extension:
    return _Extension(code, bytes(payload))


def _tagged(value: Any) -> Any:
    if isinstance(value, _Extension):
        return _EXTENSIONS[value.code](value.payload)
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, float):
        return {"$float": struct.pack(">d", value).hex(), "about": repr(value)}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    return value


def _packed(name: str) -> Callable[[bytes], Any]:
    return lambda payload: {f"${name}": decoded(payload)}


def _text(name: str) -> Callable[[bytes], Any]:
    return lambda payload: {f"${name}": payload.decode()}


_EXTENSIONS: Mapping[int, Callable[[bytes], Any]] = {
    1: lambda payload: {"$int": str(int.from_bytes(payload, "big", signed=True))},
    2: lambda payload: {"$complex": [repr(part) for part in struct.unpack(">dd", payload)]},
    3: lambda payload: {"$surrogates": payload.hex()},
    4: lambda payload: {"$bytearray": payload.hex()},
    5: _packed("tuple"),
    6: _packed("set"),
    7: _packed("frozenset"),
    8: _packed("dict"),
    9: _packed("range"),
    10: lambda payload: {"$ellipsis": payload.hex()},
    16: _text("decimal"),
    17: _packed("fraction"),
    18: lambda payload: {"$uuid": payload.hex()},
    19: _text("date"),
    20: _text("datetime"),
    21: _packed("datetime in zone"),
    22: _text("time"),
    23: _packed("time in zone"),
    24: _packed("timedelta"),
    25: _packed("timezone"),
    26: _text("zone"),
    27: _packed("path"),
    32: _packed("ordered dict"),
    33: _packed("defaultdict"),
    34: _packed("counter"),
    35: _packed("deque"),
    48: _packed("record"),
    49: _packed("model"),
    50: _packed("member"),
    51: _packed("flag"),
    52: _packed("standard error"),
    53: _packed("error"),
    64: _packed("array"),
    65: _packed("scalar"),
}


def codes_in(data: bytes) -> set[int]:
    """The extension codes that stand in a value, at any depth; none where the bytes are no value."""
    found: set[int] = set()
    flat = {1, 2, 3, 4, 10, 16, 18, 19, 20, 22, 26}

    def extension(code: int, payload: bytes) -> None:
        found.add(code)
        if code not in flat:
            ormsgpack.unpackb(payload, ext_hook=extension)

    ormsgpack.unpackb(data, ext_hook=extension)
    return found


# Changes and replay


class Value(NamedTuple):
    """An entry of a table: its label, and its encoded content or its parts."""

    label: str
    data: bytes | None = None
    parts: tuple[tuple[bool, Value], ...] = ()

    def decoded(self) -> Any:
        if self.data is not None:
            return decoded(self.data)
        pieces = [(is_item, value.decoded()) for is_item, value in self.parts]
        if self.label == "list":
            return [item for is_item, piece in pieces for item in ([piece] if is_item else piece)]
        if self.label == "str":
            return "".join(_surrogates(piece) for _, piece in pieces)
        if self.label == "bytes":
            return {"$bytes": "".join(piece["$bytes"] for _, piece in pieces)}
        raise Broken(f"a {self.label} cannot have parts")

    def encoded(self) -> Iterator[bytes]:
        """The encoded content of all its parts."""
        if self.data is not None:
            yield self.data
        for _, part in self.parts:
            yield from part.encoded()

    def grown(self, parts: tuple[tuple[bool, Value], ...]) -> Value:
        before = ((False, self),) if self.data is not None else self.parts
        return Value(self.label, None, (*before, *parts))


def _surrogates(piece: Any) -> str:
    return (
        piece
        if isinstance(piece, str)
        else bytes.fromhex(piece["$surrogates"]).decode("utf-8", "surrogatepass")
    )


class Request(NamedTuple):
    request_id: str
    executor: str
    data: Value
    form: bytes
    asked_by: int
    """The seq of the checkpoint that asked; 0 where it is not said."""


class Delivery(NamedTuple):
    target: str
    source: str | None
    value: Value
    request: Request | None = None


@dataclass
class Held:
    """All that a run holds at a checkpoint."""

    deliveries: list[Delivery] = field(default_factory=list)
    state: dict[tuple[str | None, str, str], dict[str, Value]] = field(default_factory=dict)
    buffers: dict[tuple[str, str], dict[str, list[Value]]] = field(default_factory=dict)
    outputs: list[tuple[str, Value]] = field(default_factory=list)
    requests: dict[str, Request] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)
    instances: dict[str, int] = field(default_factory=dict)
    since_input: int = 0
    fingerprint: str = ""
    graph: Value | None = None
    input: Value | None = None
    rounds: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    happened: list[Any] = field(default_factory=list)

    def fold_record(self, changes: bytes, values: bytes, parts: Parts, header: dict[str, Any]) -> None:
        """Fold what a record says, which unlike a keyframe leaves some of it to its header."""
        self.since_input += (header["phase"], header["cause"]) == ("end", "superstep")
        self.fold(changes, values, parts, header["seq"])
        if header["cause"] == "input":
            self.input = self.deliveries[0].value
        if header["cause"] in ("restore", "fork"):
            asked = self.requests.items()
            self.requests = {key: request._replace(asked_by=header["seq"]) for key, request in asked}

    def fold(self, changes: bytes, values: bytes, parts: Parts, seq: int = 0) -> None:
        document = ormsgpack.unpackb(changes) if changes else {}
        table = _table(document.get("values", []), ormsgpack.unpackb(values) if values else [], parts)
        if "renames" in document:
            names, fan_ins = document["renames"]
            self._rename(names, {(path, old): new for path, old, new in fan_ins})
        self.since_input = document.get("since_input", self.since_input)
        if "fingerprint" in document:
            self.fingerprint = document["fingerprint"].hex()
        if "graph" in document:
            self.graph = table[document["graph"]]
        if "input" in document:
            self.input = table[document["input"]]
        self.happened = [
            [who, table[what].decoded()] if what is not None else [who, *warning]
            for who, what, *warning in document.get("happened", [])
        ]
        for request in document.get("requests", []):
            asked = _request(request, table)
            self.requests[asked.request_id] = asked._replace(asked_by=asked.asked_by or seq)
        for request_id in document.get("asked_again", []):
            self.requests[request_id] = self.requests[request_id]._replace(asked_by=seq)
        if "deliveries" in document:
            self.deliveries = [
                Delivery(target, source, table[number], _request(asked[0], table) if asked else None)
                for target, source, number, *asked in document["deliveries"]
            ]
        for request_id, number in document.get("answers", []):
            asked = self.requests.pop(request_id)
            self.answered.append(request_id)
            self.deliveries.append(Delivery(asked.executor, None, table[number], asked))
        self.answered += document.get("answered", [])
        self.outputs += [(executor, table[number]) for executor, number in document.get("outputs", [])]
        for path, fan_in, extended in document.get("buffers", []):
            buffer = self.buffers.pop((path, fan_in), {})
            if extended is not None:
                self.buffers[path, fan_in] = buffer
                for source, numbers in extended:
                    buffer.setdefault(source, []).extend(table[number] for number in numbers)
        for scope, writes in document.get("writes", []):
            keys = self.state.setdefault(_scope(scope), {})
            for key, kind, *rest in writes:
                _write(keys, key, kind, rest, table)
            if not keys:
                del self.state[_scope(scope)]
        for scope in document.get("dropped", []):
            self.state.pop(_scope(scope), None)
        for executor, count in document.get("instances", []):
            self.instances.pop(executor, None)
            if count:
                self.instances[executor] = count
        for path, fan_in, sources in document.get("rounds", []):
            self.rounds.pop((path, fan_in), None)
            if sources is not None:
                self.rounds[path, fan_in] = sources

    def _rename(self, names: dict[str, str], fan_ins: dict[tuple[str, str], str]) -> None:
        def name(old: str) -> str:
            return names.get(old, old)

        def source_in(path: str, source: str) -> str:
            return name(path + source).removeprefix(name(path))

        def asking(request: Request) -> Request:
            return request._replace(executor=name(request.executor))

        self.deliveries = [
            Delivery(name(to), source if source is None else name(source), value, asked and asking(asked))
            for to, source, value, asked in self.deliveries
        ]
        self.requests = {key: asking(request) for key, request in self.requests.items()}
        self.outputs = [(name(executor), value) for executor, value in self.outputs]
        self.instances = {name(executor): count for executor, count in self.instances.items()}
        self.state = {
            (owner if owner is None else name(owner), scope, name(path)): keys
            for (owner, scope, path), keys in self.state.items()
        }
        self.buffers = {
            (name(path), fan_ins.get((path, fan_in), fan_in)): {
                source_in(path, source): held for source, held in buffer.items()
            }
            for (path, fan_in), buffer in self.buffers.items()
        }
        self.rounds = {
            (name(path), fan_ins.get((path, fan_in), fan_in)): [source_in(path, source) for source in sources]
            for (path, fan_in), sources in self.rounds.items()
        }

    def values(self) -> Iterator[Value]:
        yield from (delivery.value for delivery in self.deliveries)
        yield from (value for keys in self.state.values() for value in keys.values())
        yield from (value for buffer in self.buffers.values() for held in buffer.values() for value in held)
        yield from (value for _, value in self.outputs)
        yield from (request.data for request in self.requests.values())

    def shown(self) -> dict[str, Any]:
        """All of it, as JSON could have it."""
        return {
            "deliveries": [
                [to, source, value.decoded(), [asked.request_id, asked.executor] if asked else None]
                for to, source, value, asked in self.deliveries
            ],
            "state": {
                f"{path}{owner or '*'}:{name}": {key: value.decoded() for key, value in sorted(keys.items())}
                for (owner, name, path), keys in sorted(self.state.items(), key=repr)
            },
            "buffers": {
                path + fan_in: {
                    source: [value.decoded() for value in held] for source, held in buffer.items()
                }
                for (path, fan_in), buffer in sorted(self.buffers.items())
            },
            "outputs": [[executor, value.decoded()] for executor, value in self.outputs],
            "requests": {
                asked.request_id: [
                    asked.executor,
                    asked.data.decoded(),
                    decoded(asked.form),
                    asked.asked_by,
                ]
                for asked in self.requests.values()
            },
            "answered": sorted(self.answered),
            "instances": self.instances,
            "since_input": self.since_input,
            "fingerprint": self.fingerprint,
            "graph": self.graph and self.graph.decoded(),
            "input": self.input and self.input.decoded(),
            "rounds": {path + fan_in: sources for (path, fan_in), sources in sorted(self.rounds.items())},
            "happened": self.happened,
        }


def _table(entries: list[Any], content: list[bytes], parts: Parts) -> list[Value]:
    table: list[Value] = []
    rest = iter(content)
    for label, _, *where in entries:
        match where:
            case []:
                table.append(Value(label, next(rest)))
            case [digest]:
                table.append(Value(label, parts.blob(digest)))
            case [None, pieces]:
                table.append(
                    Value(label, None, tuple((bool(item), table[number]) for item, number in pieces))
                )
    return table


def _request(document: list[Any], table: list[Value]) -> Request:
    request_id, executor, number, form, *asked_by = document
    return Request(request_id, executor, table[number], form, asked_by[0] if asked_by else 0)


def _scope(document: list[Any]) -> tuple[str | None, str, str]:
    owner, name, *path = document
    return owner, name, path[0] if path else ""


def _write(keys: dict[str, Value], key: str, kind: int, rest: list[Any], table: list[Value]) -> None:
    if kind == 0:
        keys[key] = table[rest[0]]
    elif kind == 1:
        label, pieces = rest
        before = keys.get(key) or Value(label)
        keys[key] = before.grown(tuple((bool(item), table[number]) for item, number in pieces))
    elif kind == 2:
        keys.pop(key, None)
    else:
        raise Broken(f"a write of kind {kind} is not known here")


# Journals and inboxes


def _unbundled(note: Keyed, parts: Parts) -> list[Keyed]:
    """The notes that a note stands for: itself, or those of a bundle."""
    kind, *rest = json.loads(note.key)
    if kind != "bundle":
        return [note]
    plain = parts.plain(note.data)
    if rest != [blake3(plain).hexdigest()[:16]]:
        raise Broken(f"the bundle {note.key} holds something else")
    return [Keyed(key, data) for key, data in ormsgpack.unpackb(plain)]


def shown_note(note: Keyed, parts: Parts) -> dict[str, Any]:
    """What a note says, as JSON could have it."""
    document = ormsgpack.unpackb(plain_here(note.data))
    table = _table(document["values"], document["content"], parts)
    if "once" in document:
        _check_key(note, ["once", document["once"], document["name"]])
        result = table[document["result"]].decoded()
        return {"once": document["once"], "name": document["name"], "result": result}
    _check_key(note, ["turn", document["turn"]])
    asked = [_request(request, table) for request in document["requests"]]
    return {
        "turn": document["turn"],
        "attempt": document["attempt"],
        "messages": [[table[number].decoded(), target] for number, target in document["messages"]],
        "changes": [
            [scope, key, *_shown_change(kind, rest, table)] for scope, key, kind, *rest in document["changes"]
        ],
        "outputs": [[executor, table[number].decoded()] for executor, number in document["outputs"]],
        "requests": [
            [request.request_id, request.executor, request.data.decoded(), decoded(request.form)]
            for request in asked
        ],
        "events": [
            [who, table[what].decoded()] if what is not None else [who, *warning]
            for who, what, *warning in document["events"]
        ],
    }


def _shown_change(kind: int, rest: list[Any], table: list[Value]) -> list[Any]:
    match kind, rest:
        case (0, [number]):
            return ["put", table[number].decoded()]
        case (1, [numbers]):
            return ["append", [table[number].decoded() for number in numbers]]
        case (2, []):
            return ["drop"]
        case (3, [numbers, rule]):
            return ["update", [table[number].decoded() for number in numbers], rule]
        case (4, [number]):
            return ["put anyway", table[number].decoded()]
    raise Broken(f"a change of kind {kind} is not known here")


def shown_letter(letter: Keyed) -> dict[str, Any]:
    """What a letter says, as JSON could have it."""
    document = ormsgpack.unpackb(plain_here(letter.data))
    if "cancel" in document:
        if json.loads(letter.key)[0] != "cancel":
            raise Broken(f"the letter {letter.key} says something else than its key")
        return {"cancel": document["cancel"]}
    _check_key(letter, ["answer", document["asked_by"], document["request"]])
    return {**document, "value": decoded(document["value"])}


def _check_key(keyed: Keyed, meant: list[Any]) -> None:
    if json.loads(keyed.key) != meant:
        raise Broken(f"{keyed.key} stands for {meant}")


# Runs


class Run:
    """The checkpoints of one run; each id is computed anew."""

    def __init__(self, store: Store, head: dict[str, Any], relatives: dict[str, Run]) -> None:
        self.head = head
        self._store = store
        self.relatives = relatives
        """The runs of the store by the ids of their checkpoints."""
        self._parts = Parts(store, head["family"])
        self.headers: dict[str, dict[str, Any]] = {}
        self.records: dict[str, Record] = {}
        for record in store.records(head["run_id"]):
            plain = self._parts.plain(record.changes), self._parts.plain(record.values)
            if id_of(record.header, *plain) != record.checkpoint_id:
                raise Broken(f"checkpoint {record.checkpoint_id} is not what its id says")
            self._show(record, ormsgpack.unpackb(record.header))
        if head["checkpoint_id"] not in self.records:
            raise Broken(f"run {head['run_id']} stands on a checkpoint that is not there")

    def _show(self, record: Record, header: dict[str, Any]) -> None:
        """Take in the checkpoints of a record: itself, and the start that follows it at once."""
        of_start = [tag.removeprefix("start:") for tag in record.tags if tag.startswith("start:")]
        marks = [tag for tag in record.tags if tag in ("removed:end", "removed:start")]
        others = [tag for tag in record.tags if not tag.startswith("start:") and tag not in marks]
        of_end = [tag.removeprefix("end:") for tag in others]
        shown = "removed:end" not in marks or bool(of_end)
        if shown:
            self._add(record._replace(tags=tuple(of_end)), header)
        if header["start"] and ("removed:start" not in marks or of_start):
            start = {
                **header,
                "seq": record.seq + 1,
                "superstep": header["superstep"] + 1,
                "phase": "start",
                "cause": "superstep",
                "parent": bytes.fromhex(record.checkpoint_id),
            }
            name, tags = _lowest_bit(record.checkpoint_id, 1), tuple(of_start)
            frame = None if shown else record.keyframe
            self._add(Record(name, record.seq + 1, record.header, b"", b"", frame, tags), start)

    def _add(self, record: Record, header: dict[str, Any]) -> None:
        self.records[record.checkpoint_id] = record
        self.headers[record.checkpoint_id] = header
        self.relatives[record.checkpoint_id] = self

    def held(self, checkpoint_id: str) -> Held:
        """What the run holds at a checkpoint."""
        line: list[str] = []
        wanted: str | None = checkpoint_id
        least = self.headers[checkpoint_id]["from"]
        while wanted is not None:
            line.append(wanted)
            if self.headers[wanted]["seq"] < least:
                raise Broken(f"checkpoint {checkpoint_id} needs more than it says")
            parent = self.headers[wanted]["parent"]
            wanted = None if self.records[wanted].keyframe is not None or parent is None else parent.hex()
        held = Held()
        first = line.pop()
        frame = self.records[first].keyframe
        if frame is not None:
            held.fold(*self._keyframe(first, frame), self._parts)
            if (
                self.headers[first]["phase"] == "start"
            ):  # then it is that of its end, where something happened
                held.happened = []
        else:
            self._fold(held, first)
        for following in reversed(line):
            self._fold(held, following)
        return held

    def replayed(self, checkpoint_id: str) -> Held:
        """The same without any keyframe, from the first record on; that of a fork is in another run.

        What follows from a record that was removed begins with a keyframe that is cut.
        """
        parent = self.headers[checkpoint_id]["parent"]
        if parent is not None and parent.hex() not in self.relatives:
            frame = self.records[checkpoint_id].keyframe
            if frame is None or not (frame[0] or self.headers[checkpoint_id]["cause"] in ("fork", "restore")):
                raise Broken(f"the parent of checkpoint {checkpoint_id} is missing")
            return self.held(checkpoint_id)
        held = Held() if parent is None else self.relatives[parent.hex()].replayed(parent.hex())
        self._fold(held, checkpoint_id)
        return held

    def journal(self) -> list[dict[str, Any]]:
        """What the superstep under way did already."""
        noted = self._store.notes(self.head["run_id"])
        return [shown_note(note, self._parts) for one in noted for note in _unbundled(one, self._parts)]

    def inbox(self) -> list[dict[str, Any]]:
        """What others left and nobody took yet."""
        return [shown_letter(letter) for letter in self._store.letters(self.head["run_id"])]

    def _fold(self, held: Held, checkpoint_id: str) -> None:
        record = self.records[checkpoint_id]
        plain = self._parts.plain(record.changes), self._parts.plain(record.values)
        held.fold_record(*plain, self._parts, self.headers[checkpoint_id])

    def _keyframe(self, checkpoint_id: str, frame: tuple[bool, bytes, bytes]) -> tuple[bytes, bytes]:
        _, stored, stored_values = frame
        values = self._parts.plain(stored_values)
        seal, seal_of_values, changes = ormsgpack.unpackb(self._parts.plain(stored))
        name = bytes.fromhex(_lowest_bit(checkpoint_id, 0))
        if blake3(name + changes).digest() != seal or blake3(name + values).digest() != seal_of_values:
            raise Broken(f"the keyframe of checkpoint {checkpoint_id} is not what was written")
        return changes, values

    def listed(self) -> list[dict[str, Any]]:
        """Its checkpoints in a few words, oldest first."""
        return [
            {
                "checkpoint_id": checkpoint_id,
                **{
                    key: header[key]
                    for key in ("seq", "superstep", "phase", "cause", "status", "messages", "requests")
                },
                "parent": header["parent"].hex() if header["parent"] else None,
                "keyframe": self.records[checkpoint_id].keyframe is not None,
                "cut": (self.records[checkpoint_id].keyframe or (False,))[0],
                "tags": list(self.records[checkpoint_id].tags),
            }
            for checkpoint_id, header in self.headers.items()
        ]


def read(path: Path, namespace: str = "") -> list[Run]:
    """The runs of a store; raises ``Broken``."""
    store = open_store(path, namespace)
    relatives: dict[str, Run] = {}
    return [Run(store, head, relatives) for head in store.heads.values()]


def main() -> None:
    arguments = argparse.ArgumentParser(description="Print what a store holds.")
    arguments.add_argument("store", type=Path)
    arguments.add_argument("--namespace", default="")
    options = arguments.parse_args()
    for run in read(options.store, options.namespace):
        head = run.head
        print(f"run {head['run_id']} of {head['workflow_name']}: {head['status']} {head['reason']}".rstrip())
        for listed in run.listed():
            frame = (" keyframe" if listed["keyframe"] else "") + "".join(
                f" #{tag!a}" for tag in listed["tags"]
            )
            print(
                f"  {listed['seq']:4} {listed['checkpoint_id'][:12]} {listed['phase']:5} {listed['superstep']:3} "
                f"{listed['cause']:9} {listed['status']}{frame}"
            )
        print(json.dumps(run.held(head["checkpoint_id"]).shown(), indent=2, ensure_ascii=True))
        for what, kept in (("journal", run.journal()), ("inbox", run.inbox())):
            if kept:
                print(f"{what}: {json.dumps(kept, indent=2, ensure_ascii=True)}")


if __name__ == "__main__":
    main()
