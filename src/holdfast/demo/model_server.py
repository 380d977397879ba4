"""A model for the demo: a small server that speaks chat completions, and needs no network and no key.

It stands where a real model would: the agent reaches it through the ``openai`` SDK. It answers by rules, hence the same
each time, and notes each call that it was paid for in a file: its bill. It is a process of its own, so that it lives on
when the process that asks is killed, and ends when its standard input is closed.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple


class ModelReply(NamedTuple):
    """A reply of the model: its words, and the tool that it wants with arguments, if it wants one."""

    text: str
    tool: str = ""
    arguments: dict[str, str] | None = None


def reply_to(messages: list[Any]) -> ModelReply:
    """Return the reply to a conversation: search, look up, search again, judge.

    >>> reply_to([{"role": "user", "content": "log-7"}])
    ModelReply(text='First the errors ...', tool='search_log', arguments={'log_id': 'log-7', 'text': 'ERROR'})
    """
    log_id = next(message["content"] for message in messages if message["role"] == "user")
    match [json.loads(message["content"]) for message in messages if message["role"] == "tool"]:
        case []:
            text = "First the errors of the whole log."
            return ModelReply(text, "search_log", {"log_id": log_id, "text": "ERROR"})
        case [errors]:
            worst = next(iter(errors["by_service"]), "none")
            text = f"{errors['found']} errors, most of them in {worst}. What is known about it?"
            return ModelReply(text, "look_up_service", {"name": worst})
        case [errors, facts]:
            cause = facts["known_cause"]
            text = f"Its owner, {facts['owner']}, knows one cause: {cause!r}. Is it in the log?"
            return ModelReply(text, "search_log", {"log_id": log_id, "text": cause})
        case [errors, facts, cause, *_]:
            return ModelReply(_judge(errors, cause["found"], facts["service"], log_id))
        case _:
            raise AssertionError("a list of results has one of these forms")


def _judge(errors: Any, causes: int, service: str, log_id: str) -> str:
    """Return the severity, in the form that the agent was told to use."""
    by_minute: dict[str, int] = errors["by_minute"]
    usual = median(by_minute.values()) if by_minute else 0
    burst = sorted(minute for minute, found in by_minute.items() if found > 10 * usual)
    told = f"none, about {usual:.0f} errors a minute throughout"
    if burst:
        peak = max(by_minute[minute] for minute in burst)
        told = f"{burst[0]} to {burst[-1]}, up to {peak} errors a minute instead of {usual:.0f}"
    most = ", ".join(f"{name} {found}" for name, found in list(errors["by_service"].items())[:3])
    return "\n".join(
        [
            f"PRIORITY: {'P0' if len(burst) >= 3 and causes else 'P1' if burst else 'P3'}",
            f"SERVICE: {service}",
            f"ERRORS: {errors['found']} of {errors['lines']} lines; most in {most or 'none'}",
            f"BURST: {told}",
            f"LOG: {log_id}",
        ]
    )


class ModelServer(ThreadingHTTPServer):
    """Answers chat completions on a free port of this machine, and writes its bill."""

    daemon_threads = True

    def __init__(self, bill: Path) -> None:
        super().__init__(("127.0.0.1", 0), _ChatHandler)
        self._bill = bill
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def charge(self, body: dict[str, Any], asked_by: str, usage: dict[str, int]) -> None:
        """Add a call to the bill, before it is answered: whoever asks, pays."""
        digest = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:16]
        entry = {"question": digest, "asked_by": asked_by, "model": body["model"], **usage}
        with self._lock, self._bill.open("a", encoding="utf-8") as bill:
            bill.write(json.dumps(entry) + "\n")


class _ChatHandler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/chat/completions":
            return self._send(404, {"error": {"message": f"there is no {self.path} here"}})
        try:
            body = json.loads(content)
            messages, model = body["messages"], body["model"]
            reply = reply_to(messages)
        except (KeyError, StopIteration, TypeError, ValueError) as error:
            return self._send(400, {"error": {"message": f"no conversation about a log: {error!r}"}})
        usage = _usage(messages, reply)
        self.server.charge(body, self.headers.get("X-Asked-By", "somebody"), usage)
        message = _message(reply, f"call_{len(messages)}")
        head = {"id": "demo", "created": 0, "model": model}
        if body.get("stream"):
            return self._stream(message, usage, {**head, "object": "chat.completion.chunk"})
        choice = {"index": 0, "message": message, "finish_reason": _reason(message)}
        return self._send(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    def _stream(self, message: dict[str, Any], usage: dict[str, int], head: dict[str, Any]) -> None:
        """Send a message word by word, then the tool call, then the usage."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in [*_parts(message), {"choices": [], "usage": usage}]:
            self.wfile.write(f"data: {json.dumps({**head, **part})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # who asked is gone
            pass

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the terminal is the demo's."""


def _usage(messages: list[Any], reply: ModelReply) -> dict[str, int]:
    """Return about as many tokens as a real model would count."""
    asked = len(json.dumps(messages)) // 4
    answered = len(reply.text + json.dumps(reply.arguments or "")) // 4
    return {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}


def _message(reply: ModelReply, call_id: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool:
        function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return message


def _reason(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def _parts(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a message in parts, as streams have them."""
    for word in re.findall(r"\S+\s*", message["content"]):
        yield _part({"content": word})
    for index, call in enumerate(message.get("tool_calls", ())):
        yield _part({"tool_calls": [{"index": index, **call}]})
    yield _part({}, _reason(message))


def _part(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def main(arguments: list[str]) -> None:
    """Say the URL on standard output, and answer until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that drives the run
    with ModelServer(Path(arguments[0])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.url, flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
