"""Access: keys with scopes, kept as digests, and the principal that a request acts for."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.checkpoint.arguments import check_by
from holdfast.errors import InvalidArgument

Scope: TypeAlias = Literal["read", "run", "answer", "admin"]
"""A thing that a key lets its holder do."""

SCOPES: Final[tuple[str, ...]] = get_args(Scope)
_SHORTEST_TOKEN = 16
_DIGEST_DIGITS = 64


@dataclass(frozen=True)
class Principal:
    """The person or program that a request acts for, and what it may do; its name is the ``by`` of all that it does.

    ``run`` and ``answer`` include ``read``, ``admin`` includes all. A principal without a name leaves no ``by``.

    >>> Principal("kim", {"answer"}).may("read"), Principal("kim", {"answer"}).may("run")
    (True, False)
    """

    name: str = ""
    scopes: Iterable[str] = SCOPES

    def __post_init__(self) -> None:
        check_by(self.name or None)
        object.__setattr__(self, "scopes", frozenset(self.scopes))
        unknown = sorted(set(self.scopes) - set(SCOPES))
        if unknown or not self.scopes:
            raise InvalidArgument(
                f"Principal({self.name!r}): scopes are some of {', '.join(SCOPES)}, not {unknown or 'none'}"
            )

    @property
    def by(self) -> str | None:
        """The name as ``by=`` takes it."""
        return self.name or None

    def may(self, scope: Scope) -> bool:
        """Return True if it may do what needs this scope."""
        return "admin" in self.scopes or scope in self.scopes or scope == "read"


Authenticate: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
"""Finds the principal of a request; None refuses it. It may be async."""


class AccessKeys:
    """Keys that let their holders in; only their SHA-256 digests are kept, with a name and scopes each.

    An object of it is what ``create_app(authenticate=...)`` takes. Tokens are random, so a plain digest of one tells
    nothing about it.

    >>> keys = AccessKeys()
    >>> token = keys.add("kim", ["answer"])
    >>> keys.find(token)
    Principal(name='kim', scopes=frozenset({'answer'}))
    >>> keys.find("guessed") is None
    True
    """

    def __init__(self) -> None:
        self._principals: dict[str, Principal] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def add(self, name: str, scopes: Iterable[str] = SCOPES, token: str | None = None) -> str:
        """Let the holder of a token in, of a new one if none is given; return the token, which is not kept."""
        if token is None:
            token = f"hf_{secrets.token_urlsafe(32)}"
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidArgument(
                f"the token of {name!r} must have at least {_SHORTEST_TOKEN} printable characters of ASCII and no "
                f"spaces; leave it out, then a good one is made"
            )
        if not name:
            raise InvalidArgument("a key needs a name, which says in checkpoints who did what")
        self._principals[_digest(token)] = Principal(name, scopes)
        return token

    def find(self, token: str) -> Principal | None:
        """Return the principal of a token; takes as long for wrong ones as for right ones."""
        given, found = _digest(token), None
        for digest, principal in self._principals.items():
            if hmac.compare_digest(digest, given):
                found = principal
        return found

    def __call__(self, request: Request) -> Principal | None:
        """Return the principal whose token a request brings."""
        token = token_of(request)
        return None if token is None else self.find(token)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> AccessKeys:
        """Read the keys that ``save`` wrote; a file that is not there has none."""
        keys = cls()
        place = Path(path)
        if not place.exists():
            return keys
        try:
            entries = json.loads(place.read_text(encoding="utf-8"))["keys"]
            for entry in entries:
                digest = str(entry["sha256"])
                if len(digest) != _DIGEST_DIGITS:
                    raise ValueError(f"a digest has {_DIGEST_DIGITS} digits")
                keys._principals[digest] = Principal(entry["name"], entry["scopes"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"{str(place)!r} is no file of keys: {error}; 'holdfast serve --keys FILE --add-key NAME' makes one"
            ) from error
        return keys

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write digests, names and scopes to a file that only its owner can read."""
        place = Path(path)
        entries = [
            {"name": principal.name, "scopes": sorted(principal.scopes), "sha256": digest}
            for digest, principal in self._principals.items()
        ]
        draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps({"keys": entries}, indent=2) + "\n")
        draft.replace(place)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def token_of(request: Request) -> str | None:
    """Return the token of a request: ``Authorization: Bearer ...``, or for streams the parameter ``access_token``.

    The ``EventSource`` of browsers can send no headers.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if request.method == "GET" and request.url.path.endswith("/events"):
        return request.query_params.get("access_token")
    return None


async def find_principal(authenticate: Authenticate | None, request: Request) -> Principal:
    """Return the principal of a request; raise 401 if there is none. Without ``authenticate`` all may do all."""
    if authenticate is None:
        return Principal()
    found: Any = authenticate(request)
    principal = await found if isawaitable(found) else found
    if principal is None:
        is_given = "authorization" in request.headers
        told = "This key is not known here." if is_given else "A key is needed: Authorization: Bearer ..."
        raise HTTPException(401, told, {"WWW-Authenticate": 'Bearer realm="holdfast"'})
    if not isinstance(principal, Principal):
        raise TypeError(f"authenticate returned a {type(principal).__name__}, not a Principal or None")
    return principal


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise 403 unless a principal may do what needs a scope."""
    if not principal.may(scope):
        held = ", ".join(sorted(principal.scopes))
        raise HTTPException(403, f"This needs the scope {scope!r}; the key has: {held}.")
