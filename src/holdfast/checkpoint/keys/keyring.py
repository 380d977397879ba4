"""Keyrings: the keys that users hold, by which the keys of a store are wrapped."""

from __future__ import annotations

import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from holdfast.errors import CheckpointUntrusted, HoldfastError, InvalidArgument, StorageError, WrongType

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as missing:
    raise InvalidArgument(
        f"keys need the package {missing.name!r}; install it with: pip install 'holdfast[keys]'"
    ) from missing

KEY_BYTES = 32
NONCE_BYTES = 12
VARIABLE = "HOLDFAST_KEYS"
"""The environment variable that holds keys unless another one is named."""
_PREFIX = "holdfast-key-1:"
_ID_CONTEXT = "holdfast 2026-11-18 id of a key"
_WRAP_CONTEXT = "holdfast 2026-11-18 wrapping by a key"
_LARGEST_FILE = 1 << 20


class WrappingKey(Protocol):
    """A key that wraps the keys of stores; ``key_id`` tells it from others and says nothing about it."""

    @property
    def key_id(self) -> str:
        """The name under which the wrapped keys are stored."""
        ...

    def wrap(self, secret: bytes, place: bytes) -> bytes:
        """Return 32 bytes encrypted, so that they can be unwrapped only with the same ``place``."""
        ...

    def unwrap(self, wrapped: bytes, place: bytes) -> bytes:
        """Return what was wrapped; raise some ``Exception`` if it was not this key, or another place."""
        ...


class _LocalKey:
    """A key of 32 bytes that this process holds."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.key_id = blake3(secret, derive_key_context=_ID_CONTEXT).hexdigest(6)
        self._cipher = AESGCM(blake3(secret, derive_key_context=_WRAP_CONTEXT).digest())

    def wrap(self, secret: bytes, place: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, place)

    def unwrap(self, wrapped: bytes, place: bytes) -> bytes:
        return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], place)


class _ServiceKey:
    """A key that a service holds, which wraps and unwraps for this process."""

    def __init__(self, key_id: str, wrap: Callable[[bytes], bytes], unwrap: Callable[[bytes], bytes]) -> None:
        self.key_id = key_id
        self._wrap, self._unwrap = wrap, unwrap

    # The service may not know of places: the place goes with the secret, and is compared.

    def wrap(self, secret: bytes, place: bytes) -> bytes:
        wrapped: object = self._wrap(secret + blake3(place).digest())
        if not isinstance(wrapped, bytes):
            raise WrongType(f"wrap of the key {self.key_id!r} returned {type(wrapped).__name__}, not bytes")
        return wrapped

    def unwrap(self, wrapped: bytes, place: bytes) -> bytes:
        secret: object = self._unwrap(wrapped)
        if not isinstance(secret, bytes) or secret[KEY_BYTES:] != blake3(place).digest():
            raise ValueError("what the service unwrapped was not wrapped for this place")
        return secret[:KEY_BYTES]


class Keyring:
    """The keys of a storage: the first one wraps new secrets, the others open what was wrapped before.

    >>> ring = Keyring.generate()
    >>> len(ring.key_ids), len(ring.rotate().key_ids)
    (1, 2)
    >>> ring.rotate().key_ids[1] == ring.key_ids[0]
    True
    """

    def __init__(self, keys: Sequence[WrappingKey]) -> None:
        if not keys:
            raise InvalidArgument("a keyring needs at least one key; Keyring.generate() makes one")
        self._keys = tuple({key.key_id: key for key in keys}.values())

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self.key_ids)})"

    def __reduce__(self) -> Any:
        raise WrongType("a Keyring cannot be pickled or copied; pass HOLDFAST_KEYS or the path of a file on")

    @classmethod
    def generate(cls) -> Keyring:
        """Return a keyring with one new key."""
        return cls([_LocalKey(secrets.token_bytes(KEY_BYTES))])

    @classmethod
    def from_text(cls, text: str) -> Keyring:
        """Return the keyring that ``to_text`` wrote: keys with spaces, commas or lines between, the newest first.

        >>> ring = Keyring.generate().rotate()
        >>> Keyring.from_text(ring.to_text()).key_ids == ring.key_ids
        True
        """
        lines = (line.partition("#")[0] for line in text.splitlines())
        words = " ".join(lines).replace(",", " ").split()
        return cls([_LocalKey(_read_key(number, word)) for number, word in enumerate(words, 1)])

    @classmethod
    def from_env(cls, name: str = VARIABLE, environ: Mapping[str, str] | None = None) -> Keyring:
        """Return the keyring in an environment variable, in the form of ``to_text``."""
        text = (os.environ if environ is None else environ).get(name, "")
        if not text.strip():
            raise InvalidArgument(
                f"the environment variable {name} holds no keys; make some with Keyring.generate().to_text()"
            )
        return _of_source(cls, f"the environment variable {name}", text)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keyring:
        """Return the keyring in a file, in the form of ``to_text``; what follows a ``#`` in a line is left out."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(_LARGEST_FILE)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(
                f"the keys in {os.fspath(path)!r} cannot be read: {error}. If a store is under them, put back your "
                f"copy of that file, for no new key opens it; for a new store make them with "
                f"Keyring.generate().to_file(path), or 'holdfast keys new PATH'"
            ) from error
        return _of_source(cls, f"the file {os.fspath(path)!r}", text)

    @classmethod
    def from_callback(
        cls, key_id: str, wrap: Callable[[bytes], bytes], unwrap: Callable[[bytes], bytes]
    ) -> Keyring:
        """Return a keyring whose key a service holds: ``wrap`` and ``unwrap`` send it 64 bytes, in a thread.

        They are called when a storage is opened, and never for a checkpoint. ``key_id`` names the key in the store.

        >>> held = Keyring.generate()
        >>> ring = Keyring.from_callback("kms:main", lambda secret: secret[::-1], lambda wrapped: wrapped[::-1])
        >>> ring.key_ids
        ('kms:main',)
        """
        if not key_id:
            raise InvalidArgument("key_id='': give the key a name, by which the store finds it again")
        return cls([_ServiceKey(key_id, wrap, unwrap)])

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of its keys, the one that wraps new secrets first; they say nothing about the keys."""
        return tuple(key.key_id for key in self._keys)

    def rotate(self) -> Keyring:
        """Return a keyring with a new first key and all keys of this one behind it.

        A store that was made with this keyring opens with both; ``storage.rekey`` lets it need only the new one.
        """
        self._local_keys()
        return Keyring([*Keyring.generate()._keys, *self._keys])

    def only_newest(self) -> Keyring:
        """Return a keyring with the first key alone, for stores that were rekeyed with it."""
        return Keyring(self._keys[:1])

    def to_text(self) -> str:
        """Return the secret keys as text, one in a line; keep it as you keep passwords."""
        return "".join(f"{_PREFIX}{urlsafe_b64encode(key.secret).decode()}\n" for key in self._local_keys())

    def to_file(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write the keys to a file that only its owner can read, durably.

        A file that is there is replaced if this keyring has all its keys, as a rotated one does, or with ``replace``:
        what is under other keys could not be opened any more.
        """
        place = Path(path)
        text = self.to_text().encode()
        if not replace and place.exists():
            self._check_replaces(place)
        temp = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            handle = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, place)
            folder = os.open(place.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            with suppress(OSError):
                temp.unlink()
            raise InvalidArgument(f"the keys cannot be written to {os.fspath(path)!r}: {error}") from error

    def _check_replaces(self, place: Path) -> None:
        try:
            lost = [key_id for key_id in Keyring.from_file(place).key_ids if key_id not in self.key_ids]
        except (InvalidArgument, WrongType) as error:
            raise InvalidArgument(
                f"{str(place)!r} is there and holds no keys, so nothing was written; choose another path, or say "
                f"replace=True"
            ) from error
        if lost:
            raise InvalidArgument(
                f"{str(place)!r} holds the key {_spell(lost)}, which may be all that opens a store, and this keyring "
                f"lacks it, so nothing was written; use Keyring.from_file(path), with .rotate() for a new key, choose "
                f"another path, or say replace=True"
            )

    def wrap(self, secret: bytes, place: bytes) -> tuple[str, bytes]:
        """Return a secret wrapped by the first key, with the id of that key."""
        first = self._keys[0]
        try:
            return first.key_id, first.wrap(secret, place)
        except HoldfastError:
            raise
        except Exception as error:  # that of a service may be any
            raise StorageError(
                f"the key {first.key_id!r} could not wrap the keys of a store: {error!r}; nothing was changed. Look "
                f"whether its service answers, and try again"
            ) from error

    def unwrap(self, wrapped: Mapping[str, bytes], place: bytes, name: str) -> bytes:
        """Return a secret that was wrapped by one of the keys; ``name`` says in errors what is locked.

        Raise ``CheckpointUntrusted`` if none of the keys wrapped it, or if it was wrapped for another place.
        """
        held = [key for key in self._keys if key.key_id in wrapped]
        if not held:
            raise CheckpointUntrusted(
                f"{name} is under the key {_spell(wrapped)}, and the keyring has {_spell(self.key_ids)}; "
                f"open it with a keyring that has that key"
            )
        errors: list[Exception] = []
        for key in held:
            try:
                return key.unwrap(wrapped[key.key_id], place)
            except Exception as error:  # that of a service may be any
                errors.append(error)
        reason = "" if isinstance(errors[0], InvalidTag) else f" ({errors[0]!r})"
        raise CheckpointUntrusted(
            f"{name} cannot be opened with the key {held[0].key_id}{reason}: its keys were changed, or are those of "
            f"another store; restore it from a backup"
        ) from errors[0]

    def _local_keys(self) -> list[_LocalKey]:
        local = [key for key in self._keys if isinstance(key, _LocalKey)]
        if len(local) != len(self._keys):
            raise InvalidArgument(
                f"{self!r}: a service holds a key of it, so it has no text and is rotated there; "
                f"give storage.rekey a keyring with the new key"
            )
        return local


def check_keys(keys: Any) -> Keyring:
    """Return a keyring; raise ``WrongType`` if it is none."""
    if not isinstance(keys, Keyring):
        raise WrongType(f"keys={type(keys).__name__}: give a Keyring, like Keyring.from_env()")
    return keys


def _of_source(cls: type[Keyring], source: str, text: str) -> Keyring:
    try:
        return cls.from_text(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}") from None


def _read_key(number: int, word: str) -> bytes:
    try:
        if not word.startswith(_PREFIX):
            raise ValueError
        secret = urlsafe_b64decode(word.removeprefix(_PREFIX).encode())
        if len(secret) != KEY_BYTES or urlsafe_b64encode(secret).decode() != word.removeprefix(_PREFIX):
            raise ValueError
    except ValueError:
        # Without the word itself, which may be a key with a slip.
        raise InvalidArgument(
            f"word {number} of {len(word)} characters is no key: one is {_PREFIX!r} and 44 further characters, as "
            f"Keyring.generate().to_text() writes it"
        ) from None
    return secret


def _spell(key_ids: Iterable[str]) -> str:
    return ", ".join(key_ids) or "of nobody"
