"""The command on a store under keys, which stand in ``HOLDFAST_KEYS``."""

import asyncio
import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast import Keyring, open_storage
from tests.command.conftest import Command, Done
from tests.command.test_reference import FORMS
from tests.stores.keyed_world import KEYS, MAKERS, SECRETS, fill


@pytest.fixture
def keyed_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    async def make() -> None:
        async with MAKERS["sqlite"](tmp_path, KEYS) as storage:
            await fill(storage)

    asyncio.run(make())
    monkeypatch.setenv("HOLDFAST_KEYS", KEYS.to_text())
    return f"sqlite:///{tmp_path / 'runs.db'}"


def test_the_keys_of_a_store_come_from_the_environment(
    command: Command, keyed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command("--store", keyed_url, "--json", "runs", "ls")
    assert {run["run_id"] for run in done.json["runs"]} == {"first", "second", "failed"}
    monkeypatch.delenv("HOLDFAST_KEYS")
    done = command("--store", keyed_url, "runs", "ls")
    assert (done.code, "is under keys, and none were given" in done.err) == (7, True)


def test_a_copy_of_a_store_under_keys_is_under_keys(command: Command, keyed_url: str, tmp_path: Path) -> None:
    assert command("--store", keyed_url, "store", "copy", f"sqlite:///{tmp_path / 'copy.db'}").code == 0
    data = (tmp_path / "copy.db").read_bytes()
    assert not any(secret.encode() in data for secret in SECRETS)
    assert command("--store", f"sqlite:///{tmp_path / 'copy.db'}", "store", "verify").code == 0


def test_a_copy_may_have_other_keys(
    command: Command, keyed_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = tmp_path / "other.keys", f"sqlite:///{tmp_path / 'plain.db'}"
    other, again = (f"sqlite:///{tmp_path / name}.db" for name in ("other", "again"))
    command("keys", "new", str(path))
    assert command("--store", keyed_url, "store", "copy", other, "--keyring", str(path)).code == 0
    assert command("--store", keyed_url, "store", "copy", again, "--keyring", "").code != 0
    assert not (tmp_path / "again.db").exists()  # an empty name is no wish for a plain copy
    assert command("--store", other, "runs", "ls").code == 7
    monkeypatch.setenv("HOLDFAST_KEYS", path.read_text())
    assert command("--store", other, "store", "verify").code == 0
    monkeypatch.delenv("HOLDFAST_KEYS")

    async def make_plain() -> None:
        async with open_storage(plain) as storage:
            await fill(storage)

    asyncio.run(make_plain())
    assert command("--store", plain, "store", "copy", again, "--keyring", str(path)).code == 0
    assert not any(secret.encode() in (tmp_path / "again.db").read_bytes() for secret in SECRETS)


def test_the_command_keeps_the_anchor_of_its_store(
    command: Command, keyed_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it removes is no attack for those who have the anchor."""
    anchor, path = tmp_path / "runs.anchor", tmp_path / "one.keys"
    KEYS.to_file(path)
    monkeypatch.delenv("HOLDFAST_KEYS")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text(
        f'store = "{keyed_url}"\nkeyring = "{path}"\nanchor = "{anchor}"\n'
    )

    async def look() -> set[str]:
        async with open_storage(keyed_url, keys=KEYS, anchor=anchor) as storage:
            assert (await storage.verify()).ok
            return {run.run_id for run in await storage.list_runs()}

    assert asyncio.run(look()) == {"first", "second", "failed"}
    assert command("runs", "rm", "first", "--yes").code == 0
    assert asyncio.run(look()) == {"second", "failed"}
    spelled = keyed_url.replace("/runs.db", f"/../{tmp_path.name}/runs.db")
    assert command("--store", spelled, "runs", "rm", "failed", "--yes").code == 0
    assert asyncio.run(look()) == {"second"}
    elsewhere = f"sqlite:///{tmp_path / 'copy.db'}"
    assert command("store", "copy", elsewhere).code == 0  # which is not the store of the anchor
    assert command("--store", elsewhere, "runs", "ls").code == 0
    assert asyncio.run(look()) == {"second"}
    path.unlink()
    (tmp_path / "holdfast.toml").write_text(f'store = "{keyed_url}"\nanchor = "{anchor}"\n')
    assert "anchor= needs keys=" in command("runs", "ls").err


def has_form(done: Done, name: str, folder: Path) -> bool:
    text = re.sub(r"[0-9a-f]{12}", "KEY", done.out.replace(str(folder), "FOLDER"))
    wanted: Any = json.loads((FORMS / f"{name}.json").read_text(encoding="utf-8"))
    return bool(json.loads(text) == wanted)


class TestFiles:
    """``holdfast keys``."""

    def test_a_new_key_is_for_its_owner_and_replaces_none(self, command: Command, tmp_path: Path) -> None:
        path = tmp_path / "one.keys"
        made = command("keys", "new", str(path), "--json")
        assert has_form(made, "keys-new", tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before = path.read_bytes()
        again = command("keys", "new", str(path))
        assert (again.code, path.read_bytes()) == (1, before)
        assert "keys rotate" in again.err
        assert command("keys", "new", str(tmp_path / "nowhere" / "x")).code == 2

    def test_a_new_key_for_the_environment(self, command: Command) -> None:
        done = command("keys", "new", "-")
        assert len(Keyring.from_text(done.out).key_ids) == 1
        assert len(Keyring.from_text(command("keys", "new", "-", "--json").json["keys"]).key_ids) == 1

    def test_rotating_keeps_the_old_ones_until_they_are_dropped(
        self, command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "one.keys"
        command("keys", "new", str(path))
        (old,) = Keyring.from_file(path).key_ids
        rotated = command("keys", "rotate", str(path), "--json")
        assert has_form(rotated, "keys-rotate", tmp_path)
        new, last = Keyring.from_file(path).key_ids
        assert (last, new != old) == (old, True)
        refused = command("keys", "rotate", str(path), "--drop-old")
        assert refused.code == 2
        assert old in refused.err
        assert Keyring.from_file(path).key_ids == (new, old)
        assert command("keys", "rotate", str(path), "--drop-old", "--yes").code == 0
        assert Keyring.from_file(path).key_ids == (new,)

    def test_a_file_that_has_no_keys_is_refused(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("no keys")
        for line in (
            ["keys", "rotate", str(tmp_path / "text")],
            ["keys", "rotate", str(tmp_path / "nothing")],
        ):
            assert command(*line).code == 2


class TestRekey:
    """``holdfast store rekey``."""

    def test_a_store_is_locked_with_the_new_key(
        self, command: Command, keyed_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "one.keys"
        KEYS.to_file(path)
        monkeypatch.delenv("HOLDFAST_KEYS")
        command("keys", "rotate", str(path))
        rekey = ["--store", keyed_url, "store", "rekey", str(path)]
        assert "would lock the store of 3 runs" in command(*rekey, "--dry-run").out
        refused = command(*rekey)
        assert refused.code == 2
        assert "--yes" in refused.err
        monkeypatch.setenv("HOLDFAST_KEYS", KEYS.to_text())
        assert command("--store", keyed_url, "runs", "ls").code == 0  # nothing was changed yet
        assert has_form(command(*rekey, "--yes", "--json"), "store-rekey", tmp_path)
        late = command("--store", keyed_url, "runs", "ls")
        assert late.code == 7
        assert "HOLDFAST_KEYS" in late.err
        monkeypatch.delenv("HOLDFAST_KEYS")
        command("keys", "rotate", str(path), "--drop-old", "--yes")
        (tmp_path / "holdfast.toml").write_text(f'store = "{keyed_url}"\nkeyring = "{path}"\n')
        monkeypatch.chdir(tmp_path)
        assert len(command("runs", "ls", "--json").json["runs"]) == 3
        assert command("store", "verify").code == 0

    def test_a_store_that_is_not_there_or_not_under_keys_is_left_alone(
        self, shopping: Command, command: Command, tmp_path: Path
    ) -> None:
        path = tmp_path / "one.keys"
        command("keys", "new", str(path))
        assert shopping("store", "rekey", str(path), "--yes").code == 7
        assert shopping("runs", "ls").code == 0
        nothing = tmp_path / "nothing.db"
        assert command("--store", f"sqlite:///{nothing}", "store", "rekey", str(path), "--yes").code == 5
        assert not nothing.exists()

    def test_foreign_keys_do_not_lock_it(self, command: Command, keyed_url: str, tmp_path: Path) -> None:
        path = tmp_path / "one.keys"
        command("keys", "new", str(path))
        done = command("--store", keyed_url, "store", "rekey", str(path), "--dry-run")
        assert done.code == 0  # the environment has the keys of the store: any key may follow
        assert command("--store", keyed_url, "runs", "ls").code == 0
