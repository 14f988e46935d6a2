# SPDX-License-Identifier: Apache-2.0
"""The HTTP port: ``/metrics`` for Prometheus, ``/`` for people, to those who may see them."""

from __future__ import annotations

import base64
import binascii
import gzip
import hmac
import logging
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from enforcer.metrics.families import View, render
from enforcer.metrics.page import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from enforcer.model import Snapshot

_log = logging.getLogger(__name__)

_MOST_AT_ONCE: Final = 16
_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 10.0
_WORTH_PACKING: Final = 8192
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Body:
    """An answer's body, as it is and packed with gzip; not packed where that is not worth it."""

    plain: bytes
    packed: bytes | None = None

    @classmethod
    def of(cls, text: str) -> Body:
        plain = text.encode()
        return cls(plain, gzip.compress(plain, 1) if len(plain) >= _WORTH_PACKING else None)


class _Written:
    """What a snapshot reads as. Whoever asks for the same one shares one writing of it."""

    def __init__(self, write: Callable[[Snapshot | None], str]) -> None:
        """``write`` must say nothing but what is in the snapshot."""
        self._write = write
        self._lock = threading.Lock()
        self._last: tuple[Snapshot | None, Body] | None = None

    def of(self, snapshot: Callable[[], Snapshot | None]) -> Body:
        """The body of what ``snapshot`` has once it is this caller's turn."""
        with self._lock:
            now = snapshot()
            if self._last is None or self._last[0] is not now:
                self._last = (now, Body.of(self._write(now)))
            return self._last[1]


class Site:
    """What is served: the last snapshot, written anew only when there is another."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        node: str,
        version: str,
        *,
        with_page: bool = True,
        token: Path | None = None,
    ) -> None:
        """``token``: a file; whoever asks must send what it holds, read at each request."""
        self._snapshot = snapshot
        self._node = node
        self._version = version
        self._token = token
        self._trouble = ""
        self._metrics = _Written(self._write_metrics)
        self._page = _Written(self._write_page) if with_page else None

    def metrics(self) -> Body:
        """The exposition text of the last snapshot."""
        return self._metrics.of(self._snapshot)

    def page(self) -> Body | None:
        """The node page of the last snapshot; None where it is switched off."""
        return None if self._page is None else self._page.of(self._snapshot)

    def admits(self, authorization: str) -> bool:
        """Whether a request with this ``Authorization`` header may see anything.

        ``Bearer <token>``, or ``Basic`` with any name and the token as the password, which is what
        a browser asks its user for. A token file that is empty or unreadable admits nobody.
        """
        if self._token is None:
            return True
        try:
            expected = self._token.read_bytes().strip()
        except OSError as error:
            # Said once: anybody can ask, as often as he likes.
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.error("metrics: token cannot be read, nobody is admitted: %s", error)
            return False
        if self._trouble:
            self._trouble = ""
            _log.info("metrics: the token can be read again")
        given = _given(authorization)
        return bool(expected) and given is not None and hmac.compare_digest(given, expected)

    def _write_metrics(self, snapshot: Snapshot | None) -> str:
        view = None if snapshot is None else View(snapshot, self._node, self._version)
        return render(view, self._version)

    def _write_page(self, snapshot: Snapshot | None) -> str:
        return page(snapshot, self._node, self._version)


def serve(address: str, site: Site) -> Callable[[], None]:
    """Serve at ``[HOST]:PORT`` from threads of its own; call what it returns to end.

    Without a host on every address of the machine, IPv6 and IPv4. Raises ValueError for an address
    of another form, OSError when it is taken.
    """
    server = _Server(*_host_and_port(address), site)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def serve_when_free(address: str, site: Site) -> Callable[[], None]:
    """``serve``, which is tried again and again as long as another has the address.

    Raises ValueError as it does. What keeps it from serving is told in the log, once.
    """
    _host_and_port(address)
    stopping = threading.Event()

    def run() -> None:
        told = ""
        while not stopping.is_set():
            try:
                stop = serve(address, site)
            except OSError as error:
                if str(error) != told:
                    told = str(error)
                    _log.error("metrics at %s: %s; trying again now and then", address, error)
                stopping.wait(_RETRY_SECONDS)
                continue
            if told:
                _log.info("metrics at %s: served after all", address)
            stopping.wait()
            stop()

    thread = threading.Thread(target=run, name="metrics-port", daemon=True)
    thread.start()

    def end() -> None:
        stopping.set()
        thread.join()

    return end


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"expected [HOST]:PORT, found {address!r}")
    return host.strip("[]"), int(port)


def _given(authorization: str) -> bytes | None:
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() != "basic":
        return None
    try:
        _, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return password if colon else None


class _Server(ThreadingHTTPServer):
    """A bounded number of requests at once: more are turned away, not piled up."""

    daemon_threads = True

    def __init__(self, host: str, port: int, site: Site) -> None:
        self.site = site
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._quiet_until = float("-inf")
        family, where = self._where(host, port)
        self.address_family = family
        super().__init__(where, _Request)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            only = int(self.server_address[0] != "::")
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
        super().server_bind()

    def process_request(self, request: object, client_address: object) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._places.release()

    def handle_error(self, _request: object, client_address: object) -> None:
        """Whoever left took the connection along; all else is a mistake of ours."""
        if isinstance(sys.exc_info()[1], OSError):
            _log.info("metrics: %s left before its answer", client_address)
        elif (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _log.exception("metrics: no answer to %s: report it with what follows", client_address)

    @staticmethod
    def _where(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
        if not host:
            if socket.has_dualstack_ipv6():
                return socket.AF_INET6, ("::", port)
            return socket.AF_INET, ("0.0.0.0", port)  # noqa: S104 - the default of an exporter
        family, _, _, _, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return family, (str(found[0]), port)


class _Request(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def version_string(self) -> str:
        return "ringfence"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """A scrape every few seconds is no news."""

    def _answer(self, *, with_body: bool) -> None:
        site, path = self.server.site, self.path.partition("?")[0]
        if not site.admits(self.headers.get("Authorization", "")):
            needed = Body(b"a token is needed\n")
            self._send(HTTPStatus.UNAUTHORIZED, "text/plain", needed, with_body)
        elif path == "/metrics":
            self._send(HTTPStatus.OK, _TEXT, site.metrics(), with_body)
        elif path == "/" and (body := site.page()) is not None:
            self._send(HTTPStatus.OK, _HTML, body, with_body)
        else:
            nothing = Body(b"not here: see /metrics\n")
            self._send(HTTPStatus.NOT_FOUND, "text/plain", nothing, with_body)

    def _send(self, status: HTTPStatus, kind: str, body: Body, with_body: bool) -> None:
        self.send_response(status)
        content = body.plain
        if body.packed is not None and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = body.packed
            self.send_header("Content-Encoding", "gzip")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="ringfence"')
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("Vary", "Accept-Encoding"),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)
