"""``holdfast serve``: serves workflows over HTTP and drives their runs, until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.session import CommandSession, StoreCommand, read_config, run_with_storage
from holdfast.cli.workflows import load_workflow

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.server import AccessKeys, ServerOptions

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Connections have so long to end after streams and waiting requests were told to; runs have the grace time.
_CONNECTION_SECONDS = 5


@click.command(cls=StoreCommand)
@click.argument("names", metavar="MODULE:WORKFLOW...", nargs=-1)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8123, show_default=True, help="0 takes a free one."
)
@click.option(
    "--token", metavar="TOKEN", help="The key of clients, who may do everything; else HOLDFAST_TOKEN."
)
@click.option(
    "--keys", "keys_path", metavar="FILE", help="A file with digests of keys, their names and scopes."
)
@click.option(
    "--add-key",
    metavar="NAME[:SCOPE,...]",
    help="Add a key to the file of --keys, write it to stdout, and end.",
)
@click.option(
    "--allowed-host", multiple=True, metavar="NAME", help="A name by which clients may call it; repeatable."
)
@click.option(
    "--cors-origin", multiple=True, metavar="URL", help="An origin whose pages may call it; repeatable."
)
@click.option(
    "--concurrency", type=click.IntRange(0), default=100, show_default=True, help="Runs driven at a time."
)
@click.option(
    "--grace", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for runs at the end."
)
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds between not being ready and refusing calls, for a balancer to notice.",
)
@click.option(
    "--max-body", type=click.IntRange(1), default=1_000_000, show_default=True, help="Bytes of a body."
)
@click.option(
    "--proxy", "proxies", metavar="IP,...", default="127.0.0.1", help="Proxies whose X-Forwarded-* count."
)
@click.option(
    "--root-path", default="", metavar="PATH", help="The path under which a proxy shows the service."
)
@click.option(
    "--allow-graph-change", is_flag=True, help="Let older runs go on with the newest build that fits."
)
@click.pass_obj
def serve(session: CommandSession, /, names: tuple[str, ...], **given: Any) -> ExitCode:
    """Serve workflows over HTTP, and drive their runs: new ones, and those that dead processes left.

    On loopback a key is made and written to stderr, unless one is given; elsewhere one must be given. SIGTERM ends it:
    it is not ready any more, ends streams, and gives runs the grace time.
    """
    _check_extra()
    if given["add_key"] is not None:
        return _add_key(session, given["keys_path"], given["add_key"])
    names = names or tuple(read_config().workflows)
    if not names:
        raise CommandError(
            "name the workflows to serve, like shop:workflow, here or in holdfast.toml", ExitCode.USAGE
        )
    workflows = [load_workflow(name) for name in names]
    keys, made = _find_keys(given["host"], given["token"], given["keys_path"])
    listening = _listen(given["host"], given["port"])
    url = _url_of(listening)

    async def work(storage: CheckpointStorage) -> None:
        from holdfast.server import create_app

        app = create_app(workflows, storage, keys, _options(given))
        served = list(dict.fromkeys(workflow.name for workflow in workflows))
        session.output.say(f"holdfast serves {', '.join(served)} at {url}")
        if made is not None:
            session.output.say(f"Authorization: Bearer {made}")
        if session.is_json:
            session.output.write({"url": url, "token": made, "workflows": served}, list)
        await serve_app(app, listening, given)

    run_with_storage(session.find_store_url(), work, read_only=False, loop_factory=_loop_factory())
    return ExitCode.OK


def _loop_factory() -> Any:
    """Return what makes the event loop: that of uvloop, where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:  # as on Windows
        return None
    return uvloop.new_event_loop


def _check_extra() -> None:
    try:
        import uvicorn  # noqa: F401

        import holdfast.server  # noqa: F401
    except ModuleNotFoundError as error:
        raise CommandError(
            f"'holdfast serve' needs the package {error.name!r}; install it with: pip install 'holdfast[server]'"
        ) from error


def _add_key(session: CommandSession, path: str | None, text: str) -> ExitCode:
    from holdfast.server import AccessKeys

    if path is None:
        raise CommandError("--add-key needs --keys FILE, which gets the digest of the key", ExitCode.USAGE)
    name, _, scopes = text.partition(":")
    keys = AccessKeys.from_file(path)
    token = keys.add(name, scopes.split(",")) if scopes else keys.add(name)
    keys.save(path)
    session.output.write({"name": name, "token": token}, lambda: [token])
    session.output.say(f"{path} has the digest of it; the key itself is not kept, so keep it now")
    return ExitCode.OK


def _find_keys(host: str, token: str | None, path: str | None) -> tuple[AccessKeys, str | None]:
    """Return the keys that let clients in, and the one that was made because none was given."""
    from holdfast.server import AccessKeys

    keys = AccessKeys() if path is None else AccessKeys.from_file(path)
    token = token or os.environ.get("HOLDFAST_TOKEN")
    if token:
        keys.add("token", token=token)
    if len(keys):
        return keys, None
    if path is not None or not _is_loopback(host):
        where = f"{path!r} has no keys" if path is not None else f"{host!r} can be reached from elsewhere"
        raise CommandError(
            f"{where}: give a key with --token or HOLDFAST_TOKEN, or add one with --keys FILE --add-key NAME",
            ExitCode.USAGE,
        )
    return keys, keys.add("token")


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _options(given: dict[str, Any]) -> ServerOptions:
    from holdfast.server import ServerOptions

    names = given["allowed_host"]
    if _is_loopback(given["host"]):  # a web page may call this machine by a name of its own
        names = (*_LOOPBACK_NAMES, *names)
    return ServerOptions(
        max_body=given["max_body"],
        concurrency=given["concurrency"],
        grace=given["grace"],
        allowed_hosts=names,
        cors_origins=given["cors_origin"],
        allow_graph_change=given["allow_graph_change"],
    )


def _listen(host: str, port: int) -> socket.socket:
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host.strip("[]"), port), family=family, backlog=2048)
        # Connections have it from here: asyncio sets it only for sockets of its own, and replies would take 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise CommandError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error


def _url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve_app(app: FastAPI, listening: socket.socket, given: dict[str, Any]) -> None:
    """Serve an app until SIGTERM or Ctrl-C; a second signal ends the process at once."""
    import asyncio
    import logging

    import uvicorn

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # addresses of streams may have keys
        server_header=False,
        root_path=given["root_path"],
        forwarded_allow_ips=given["proxies"],
        timeout_graceful_shutdown=_CONNECTION_SECONDS,
    )
    server = uvicorn.Server(config)
    stopping = asyncio.create_task(_stop_on_signal(app, server, given["drain"]))
    try:
        await server.serve([listening])
    finally:
        stopping.cancel()
    if not server.started:
        raise CommandError("the service did not start; the log has more")


async def _stop_on_signal(app: FastAPI, server: Any, drain: float) -> None:
    """Wait for a signal; then be not ready, end streams and waiting requests, and let the server end."""
    import asyncio
    import signal

    while not server.started:  # noqa: ASYNC110 - it tells nobody, and sets handlers of its own before
        await asyncio.sleep(0.01)
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, told.set)
    await told.wait()
    for number in signals:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    app.state.service.retire()
    await asyncio.sleep(drain)
    app.state.service.announce_stop()
    server.should_exit = True
