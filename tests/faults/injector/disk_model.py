"""What a disk may hold after a power cut, computed from the calls that a process made.

Only what was synced is sure: the bytes of a file by a sync of the file, its names by a sync of their folders. Of the
rest everything, nothing, or any part may be there. After a sync that failed, what it should have written counts as
written although it is not: so it is with Linux, where a second sync says that all is well.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.faults.injector.interposer import CallKind, SystemCall

_SECTOR = 512
"""What a disk writes whole or not at all."""

_LATEST = 0.6
"""How often a sector that was written several times is as it was last."""


class Luck:
    """Which of the things that are not sure survive a power cut; the names of a file that was renamed go together."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self._share = self._chance.random()
        self._kept: dict[int, bool] = {}

    def keeps(self, change: int) -> bool:
        """Whether a change of names survives."""
        return self._kept.setdefault(change, self._chance.random() < self._share)

    def choose(self, sectors: dict[int, list[bytes]]) -> dict[int, bytes]:
        """Some of the sectors that were written, each as it was at some time; mostly as it was last."""
        share = self._chance.random()
        return {
            number: contents[-1] if self._chance.random() < _LATEST else self._chance.choice(contents)
            for number, contents in sectors.items()
            if self._chance.random() < share
        }

    def size(self, sizes: list[int]) -> int:
        """One of the sizes that a file had."""
        return self._chance.choice(sizes)


@dataclass
class FileNode:
    """A file: as processes see it, as it is on the disk, and what the disk could hold instead."""

    seen: bytearray = field(default_factory=bytearray)
    disk: bytes = b""
    sectors: dict[int, list[bytes]] = field(default_factory=dict)
    """Those that were written since a sync, each with all that it held since."""
    sizes: list[int] = field(default_factory=list)
    """How long it was since a sync."""

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes that are not synced yet."""
        end = offset + len(data)
        first = min(offset, len(self.seen))
        self.seen.extend(bytes(max(0, end - len(self.seen))))
        self.seen[offset:end] = data
        self._touch(first, end)

    def resize(self, size: int) -> None:
        """Cut it, or fill it up with zeros."""
        before = len(self.seen)
        del self.seen[size:]
        self.seen.extend(bytes(max(0, size - before)))
        self._touch(min(before, size), max(size, min(before, size) + 1))

    def _touch(self, first: int, end: int) -> None:
        for number in range(first // _SECTOR, -(-end // _SECTOR)):
            self.sectors.setdefault(number, []).append(self._sector(number))
        self.sizes.append(len(self.seen))

    @property
    def is_dirty(self) -> bool:
        """Whether a sync would write something."""
        return bool(self.sizes)

    def sync(self, failed: bool) -> None:
        """Let the disk hold what processes see; if that fails, it is not tried again."""
        if not failed and self.is_dirty:
            self.disk = self._with({number: self._sector(number) for number in self.sectors}, len(self.seen))
        self.sectors.clear()
        self.sizes.clear()

    def after_cut(self, luck: Luck | None) -> bytes:
        """What is left: what was synced, or that with some of what was not."""
        if luck is None or not self.is_dirty:
            return self.disk
        return self._with(luck.choose(self.sectors), luck.size([len(self.disk), *self.sizes]))

    def _sector(self, number: int) -> bytes:
        return bytes(self.seen[number * _SECTOR : (number + 1) * _SECTOR])

    def _with(self, sectors: dict[int, bytes], size: int) -> bytes:
        content = bytearray(self.disk)
        for number, data in sectors.items():
            place = number * _SECTOR
            content.extend(bytes(max(0, place + len(data) - len(content))))
            content[place : place + len(data)] = data
        del content[size:]
        content.extend(bytes(max(0, size - len(content))))
        return bytes(content)


@dataclass
class LinkNode:
    """A symbolic link."""

    target: str


@dataclass
class FolderNode:
    """A folder: the names that processes see, those on the disk, and the changes that were not synced."""

    seen: "dict[str, DiskNode]" = field(default_factory=dict)
    disk: "dict[str, DiskNode]" = field(default_factory=dict)
    changes: "list[tuple[int, str, DiskNode | None]]" = field(default_factory=list)

    def set(self, change: int, name: str, node: "DiskNode | None") -> None:
        """Give a name to something, or free it."""
        if node is None:
            self.seen.pop(name, None)
        else:
            self.seen[name] = node
        self.changes.append((change, name, node))

    @property
    def is_dirty(self) -> bool:
        """Whether a sync would write something."""
        return bool(self.changes)

    def sync(self, failed: bool) -> None:
        """Let the disk hold the names that processes see; after a failure only if another one changes."""
        if not failed and self.is_dirty:
            self.disk = dict(self.seen)
        self.changes.clear()

    def after_cut(self, luck: Luck | None) -> "dict[str, DiskNode]":
        """The names that are left: those that were synced, or these with some of the changes since."""
        names = dict(self.disk)
        if luck is not None:
            for change, name, node in self.changes:
                if not luck.keeps(change):
                    continue
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
        return names


DiskNode: TypeAlias = FileNode | LinkNode | FolderNode


class DiskModel:
    """The disk beneath a folder that was empty and durable when recording began."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = FolderNode()
        self._by_inode: dict[int, DiskNode] = {root.stat().st_ino: self._top}
        self._changes = 0

    def follow(self, call: SystemCall) -> None:
        """Take in the next call."""
        node = self._by_inode.get(call.inode)
        self._changes += 1
        match call.kind:
            case CallKind.WRITE if call.data and isinstance(
                node, FileNode
            ):  # also one that failed wrote these
                node.write(call.offset, call.data)
            case CallKind.SYNC if isinstance(node, (FileNode, FolderNode)):
                node.sync(call.failed)
            case _ if call.failed:
                pass
            case CallKind.RESIZE if isinstance(node, FileNode):
                node.resize(call.offset)
            case CallKind.CREATE:
                self._add(call, FileNode())
            case CallKind.MKDIR:
                self._add(call, FolderNode())
            case CallKind.SYMLINK:
                self._add(call, LinkNode(call.other))
            case CallKind.LINK:
                self._put(call.other, self._at(call.path))
            case CallKind.RENAME:
                node = self._at(call.path)
                self._put(call.path, None)
                self._put(call.other, node)
            case CallKind.UNLINK | CallKind.RMDIR:
                self._put(call.path, None)

    def would_change(self, call: SystemCall) -> bool:
        """Whether what is sure to survive a power cut is something else after this call."""
        node = self._by_inode.get(call.inode)
        return (
            call.kind is CallKind.SYNC
            and not call.failed
            and node is not None
            and getattr(node, "is_dirty", False)
        )

    def _add(self, call: SystemCall, node: DiskNode) -> None:
        self._by_inode[call.inode] = node
        self._put(call.path, node)

    def _put(self, path: str, node: DiskNode | None) -> None:
        folder = self._at(os.path.dirname(path))
        if isinstance(folder, FolderNode):
            folder.set(self._changes, os.path.basename(path), node)

    def _at(self, path: str) -> DiskNode | None:
        node: DiskNode | None = self._top
        for name in Path(path).relative_to(self._root).parts:
            node = node.seen.get(name) if isinstance(node, FolderNode) else None
        return node

    def cut_power(self, target: Path, luck: Luck | None = None) -> None:
        """Make a folder with what is left of the disk: only what is sure, or with a part of the rest by luck."""
        _write_folder(self._top, target, luck, {})

    def differences(self) -> list[str]:
        """Where what processes see is not what this model thinks: then a call went by unseen."""
        return sorted(_differences(self._top, self._root))


def _write_folder(folder: FolderNode, target: Path, luck: Luck | None, written: dict[int, Path]) -> None:
    target.mkdir(0o700)
    for name, node in folder.after_cut(luck).items():
        path = target / name
        if isinstance(node, FolderNode):
            _write_folder(node, path, luck, written)
        elif isinstance(node, LinkNode):
            path.symlink_to(node.target)
        elif id(node) in written:
            path.hardlink_to(written[id(node)])
        else:
            path.write_bytes(node.after_cut(luck))
            path.chmod(0o600)
            written[id(node)] = path


def _differences(folder: FolderNode, path: Path) -> set[str]:
    there = {name for name in os.listdir(path) if not name.endswith("-shm")}
    found = {f"{path / name}: only one of the two has it" for name in there ^ folder.seen.keys()}
    for name in there & folder.seen.keys():
        node, inner = folder.seen[name], path / name
        if isinstance(node, FolderNode):
            found |= _differences(node, inner)
        elif isinstance(node, FileNode) and inner.read_bytes() != node.seen:
            found.add(f"{inner}: another content")
    return found
