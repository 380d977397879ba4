"""Workflows as an API: an ASGI app with runs, streams of events and answers (extra ``server``).

>>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
>>> from holdfast.server import AccessKeys, create_app
>>> @executor
... def shout(text: str) -> str:
...     return text.upper()
>>> workflow = WorkflowBuilder(name="Shout").set_start_executor(shout).build()
>>> keys = AccessKeys()
>>> token = keys.add("kim", ["read", "run"])
>>> app = create_app([workflow], InMemoryCheckpointStorage(), keys)
"""

from __future__ import annotations

try:
    from holdfast.server.access import AccessKeys, Principal
    from holdfast.server.app import create_app, run_app
    from holdfast.server.options import ServerOptions
except ModuleNotFoundError as error:
    if error.name not in ("fastapi", "starlette", "pydantic"):
        raise
    raise ModuleNotFoundError(
        f"holdfast.server needs the package {error.name!r}; install it with: pip install 'holdfast[server]'",
        name=error.name,
    ) from error

__all__ = ["AccessKeys", "Principal", "ServerOptions", "create_app", "run_app"]
