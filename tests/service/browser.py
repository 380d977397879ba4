"""A browser without a window, and the small site whose page it shows and whose page tells what it saw."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.service.processes import PATIENCE
from tests.support.system_packages import find_program

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
)
# One after the other: requests that are under way at the same time arrive in any order.
_TELL = """
let told = Promise.resolve();
const tell = value => {
  told = told.then(() => fetch("/tell", {method: "POST", body: JSON.stringify(value)}));
};
"""


def find_browser() -> str:
    """Return the path of Chromium, which is installed where it is missing."""
    return find_program(*_NAMES)


class BrowserPage:
    """A page of another origin than the service, shown by a browser; ``told`` has what its script tells."""

    def __init__(self, folder: Path) -> None:
        self.html = b""
        self.told: queue.Queue[Any] = queue.Queue()
        self._site = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.origin = f"http://127.0.0.1:{self._site.server_address[1]}"
        self._thread = threading.Thread(target=self._site.serve_forever, args=(0.05,))
        self._thread.start()
        self._folder = folder
        self._browser: subprocess.Popen[bytes] | None = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class SiteHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(page.html if self.path == "/" else b"", "text/html; charset=utf-8")

            def do_POST(self) -> None:
                page.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._reply(b"", "text/plain")

            def _reply(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing: what a page asks for is no news."""

        return SiteHandler

    def show(self, script: str) -> None:
        """Open a page with this script in the browser; it may call ``tell(value)``."""
        self.html = f"<!doctype html><script>{_TELL}\n{script}</script>".encode()
        command = [find_browser(), *_FLAGS, f"--user-data-dir={self._folder}", f"{self.origin}/"]
        with open(self._folder.with_suffix(".log"), "wb") as log:
            self._browser = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def hear(self) -> Any:
        """Return the next thing that the page tells."""
        return self.told.get(timeout=PATIENCE)

    def close(self) -> None:
        """End the browser with its helpers, and the site."""
        if self._browser is not None:
            os.killpg(self._browser.pid, signal.SIGKILL)
            self._browser.wait(PATIENCE)
        self._site.shutdown()
        self._thread.join(PATIENCE)
        self._site.server_close()
