"""Which file holds a checkpoint: a symbolic link for each id; and how far each run came.

They are hints: written before their commits, never synced, and believed only after a look at the file. Where one is
missing, after a power cut or on a file system without symbolic links, all files are looked through.

There is one for each checkpoint, so they must take little room. They lie in few folders, each of which takes a block;
and none leads further than an inode can say: where the name of a run is long, a link to its folder is on the way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.file import document
from holdfast.stores.file.parts import quoted
from holdfast.stores.file.place import Place, is_commit_name

# ext4 gives a link of more bytes a block of its own.
_LONGEST = 59


class Hints:
    """A folder of links to commit files."""

    def __init__(self, folder: Path, temp: Path) -> None:
        self._folder = folder
        self._temp = temp

    def add(self, checkpoint_id: CheckpointId, file: Path) -> None:
        """Let a checkpoint be found in this file."""
        link = self._link(checkpoint_id)
        try:
            _set_link(self._way_to(file), link)
        except OSError:  # it is only a hint
            pass

    def _way_to(self, file: Path) -> str:
        """What a link says that leads to a commit file."""
        folder = f"../../{file.parent.parent.name}/{file.parent.name}"
        way = f"{folder}/{file.name}"
        if len(way) <= _LONGEST:
            return way
        short = self._short(file.parent)
        _set_link(folder, short)
        return f"../{short.parent.name}/{short.name}/{file.name}"

    def _short(self, folder: Path) -> Path:
        """The link to the folder of a run with a long name."""
        return self._folder / "runs" / blake2b(folder.name.encode(), digest_size=8).hexdigest()

    def reached(self, folder: Path, place: Place) -> None:
        """Remember that a run came as far as this commit, which is durable: if it is lost, that can be noticed."""
        link = self._newest(folder)
        other = self._temp / f"{secrets.token_hex(8)}.tmp"
        try:
            os.symlink(place.text, other)
            try:
                os.replace(other, link)
            except FileNotFoundError:
                _make_folder_of(link)
                os.replace(other, link)
        except OSError:  # it is only a hint
            with suppress(OSError):
                os.unlink(other)

    def how_far(self, folder: Path) -> Place | None:
        """A commit that a run had at some time, perhaps an old one."""
        target = _target(self._newest(folder))
        try:
            return None if target is None else Place.of_text(target)
        except ValueError:
            return None

    def runs(self) -> list[str]:
        """The names of the folders of runs that were there at some time."""
        try:
            return [
                name
                for name in os.listdir(self._folder / "newest")
                if make_file_name(name) == name or "~" in name
            ]
        except OSError:
            return []

    def forget(self, folder: Path) -> None:
        """A run is gone, or is known to have lost what it had."""
        try:
            self._newest(folder).unlink()
        except OSError:  # it is only a hint
            pass

    def forget_run(self, folder: Path) -> None:
        """A run is gone, and so are the links to its checkpoints."""
        self.forget(folder)
        try:
            self._short(folder).unlink()
        except OSError:  # most have none
            pass

    def _newest(self, folder: Path) -> Path:
        return self._folder / "newest" / folder.name

    def remove(self, checkpoint_ids: Iterable[CheckpointId]) -> None:
        """Forget where checkpoints were that are removed."""
        for checkpoint_id in checkpoint_ids:
            try:
                self._link(checkpoint_id).unlink()
            except OSError:  # it is only a hint
                pass

    def find(
        self, checkpoint_id: CheckpointId, files: Iterable[Path], there: Callable[[RunId, int], bool]
    ) -> tuple[RunId, int] | None:
        """The run and seq of a checkpoint; ``files`` are all commit files, looked through where no hint helps.

        ``there`` tells whether it was not removed.
        """
        link = self._link(checkpoint_id)
        target = self._leads_to(link)
        hinted = None if target is None else _look(checkpoint_id, target)
        if hinted is not None and there(*hinted):
            return hinted
        damage: CheckpointCorrupt | None = None
        for file in files:
            try:
                found = _look(checkpoint_id, file)
            except CheckpointCorrupt as error:  # it may be in another one all the same
                damage = damage or error
                continue
            if found is not None and there(*found):
                self.add(checkpoint_id, file)
                return found
        if damage is not None:
            raise damage
        return None

    def _leads_to(self, link: Path) -> Path | None:
        """The commit file that a hint speaks of; None where it says something else, which is not followed."""
        way = (_target(link) or "").split("/")
        if way[:2] == ["..", self._short(link).parent.name] and len(way) == 4:
            way = [*(_target(self._folder / "runs" / way[2]) or "").split("/"), way[3]]
        if len(way) != 5 or way[:2] != ["..", ".."] or ".." in way[2:] or not is_commit_name(way[4]):
            return None
        return self._folder.parent.joinpath(*way[2:])

    def _link(self, checkpoint_id: CheckpointId) -> Path:
        name = make_file_name(checkpoint_id)
        return self._folder / name[0] / name


def _set_link(target: str, link: Path) -> None:
    try:
        _make_link(target, link)
    except FileExistsError:
        if _target(link) != target:
            link.unlink()
            _make_link(target, link)


def _make_link(target: str, link: Path) -> None:
    try:
        os.symlink(target, link)
    except FileNotFoundError:
        _make_folder_of(link)
        os.symlink(target, link)


def _make_folder_of(link: Path) -> None:
    for folder in (link.parent.parent, link.parent):
        folder.mkdir(0o700, exist_ok=True)


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _look(checkpoint_id: CheckpointId, file: Path) -> tuple[RunId, int] | None:
    try:
        content = document.content_of(file)
    except FileNotFoundError:
        return None
    if quoted(checkpoint_id) not in content:
        return None
    commit = document.parsed(file, content)
    for record in commit.records:
        if record["checkpoint_id"] == checkpoint_id:
            return commit.head.run_id, record["seq"]
    return None
