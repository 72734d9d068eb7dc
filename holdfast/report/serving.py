"""A small web server for one person at this machine: on 127.0.0.1 alone, and only under that name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.core.errors import HoldfastError

MOST = 32  # connections at a time; a browser that is turned away asks again
IDLE = 30.0  # seconds for a request to arrive, and for a page to take what it is sent
ALWAYS = {  # of every answer: not kept, not framed, not read by pages from elsewhere
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
log = logging.getLogger(__name__)


class LocalHandler(BaseHTTPRequestHandler):
    """What all pages of this machine share; `get` and `post` answer what got past the checks."""

    timeout = IDLE

    def do_GET(self) -> None:
        if self.host is None:
            self.send_error(403, "Only for this machine")  # a stranger's page must not read through a name of its own
        else:
            self.get()

    def do_POST(self) -> None:
        """A form of another page is refused: browsers say where a post comes from."""
        if self.host is None or self.headers.get("Origin") != f"http://{self.host}":
            self.send_error(403, "Only from this page")
        else:
            self.post()

    def get(self) -> None:
        self.send_error(404)

    def post(self) -> None:
        self.send_error(404)

    @property
    def host(self) -> str | None:
        """This server as the browser calls it; none if it came by another name, as a rebound DNS name would."""
        _, port = self.connection.getsockname()
        asked = self.headers.get("Host")
        return asked if asked in (f"127.0.0.1:{port}", f"localhost:{port}") else None

    def head(self, kind: str, status: int = 200, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **ALWAYS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class Server(ThreadingHTTPServer):
    """A server that turns away whoever comes when it is busy: each connection takes a thread."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._free = threading.Semaphore(MOST)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A request failed", exc_info=True)  # whoever asked in another way than browsers do


@contextmanager
def serving(handler: Callable[..., LocalHandler], port: int = 0) -> Iterator[str]:
    """Serve on 127.0.0.1 and give the address; a port of 0 takes a free one."""
    try:
        server = Server(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise HoldfastError(f"Cannot listen on 127.0.0.1, port {port}: {reason}; choose another --port.") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
