# SPDX-License-Identifier: Apache-2.0
"""An API server for nodes, pods and events: real HTTP, versions, watches, merge patches.

In a test: ``with ApiServer() as api: api.put_node(...)``. By itself::

    python -m tests.contract.peers.apiserver --address 127.0.0.1:8080 --objects objects.json \
        --kubeconfig kubeconfig.yaml

``objects.json`` is a list of nodes and pods. A PUT on an object's path creates or replaces it, a
PUT of ``{"away": true}`` on ``/faults`` plays an outage (see ``Faults``).
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import ssl
import sys
import threading
import time
import uuid
from dataclasses import dataclass, fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

Json = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); no namespace for nodes."""

Event = tuple[str, str, Json]
"""(kind, what happened, object)."""

_HISTORY = 1000
_BOOKMARK_SECONDS = 1.0
_ROUTE = re.compile(
    r"/api/v1(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>nodes|pods|events)"
    r"(?:/(?P<name>[^/]+))?(?:/status)?"
)


@dataclass
class Faults:
    """What is wrong with the server at the moment."""

    away: bool = False
    """Connections are dropped without an answer, watches included."""
    slow: float = 0.0
    """Seconds before every answer."""
    silent: bool = False
    """Watches stay open and say nothing any more."""
    end_watches: float = 0.0
    """Watches end after this many seconds, without a word."""
    refuse_patches: int = 0
    """So many patches get a 500 first."""
    token: str = ""
    """Requests without this bearer token get a 401."""
    refuse_events: int = 0
    """Events get this status."""
    hung_pod: str = ""
    """Patches of the pod of this name get no answer, as with an admission webhook that hangs."""
    denied_pod: str = ""
    """Patches of the pod of this name get this status, 403 as of an admission webhook."""
    denied_status: int = 403
    conflicts: int = 0
    """So many patches with a precondition get a 409 first."""


class HttpError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    def body(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.status,
        }


class Store:
    """The objects, their versions, and what happened lately."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[str, dict[Key, Json]] = {"nodes": {}, "pods": {}, "events": {}}
        self.version = 100
        self.oldest = 100
        self.history: list[tuple[int, str, str, Json]] = []
        self.requests: list[str] = []

    def _record(self, kind: str, event: str, item: Json) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, event, copy.deepcopy(item)))
        if len(self.history) > _HISTORY:
            self.oldest = self.history.pop(0)[0]
        self.changed.notify_all()

    def put(self, kind: str, item: Json) -> Json:
        with self.changed:
            item = copy.deepcopy(item)
            metadata = item.setdefault("metadata", {})
            key = metadata.get("namespace", ""), metadata["name"]
            known = self.objects[kind].get(key)
            if known is None:
                metadata.setdefault("uid", str(uuid.uuid4()))
            else:
                metadata.setdefault("uid", known["metadata"]["uid"])
            self.objects[kind][key] = item
            self._record(kind, "MODIFIED" if known else "ADDED", item)
            return copy.deepcopy(item)

    def get(self, kind: str, key: Key) -> Json:
        with self.changed:
            item = self.objects[kind].get(key)
            if item is None:
                raise HttpError(404, "NotFound", f'{kind} "{key[1]}" not found')
            return copy.deepcopy(item)

    def delete(self, kind: str, key: Key) -> Json:
        with self.changed:
            item = self.objects[kind].pop(key, None)
            if item is None:
                raise HttpError(404, "NotFound", f'{kind} "{key[1]}" not found')
            self._record(kind, "DELETED", item)
            return item

    def patch(self, kind: str, key: Key, patch: Json) -> Json:
        with self.changed:
            item = self.objects[kind].get(key)
            if item is None:
                raise HttpError(404, "NotFound", f'{kind} "{key[1]}" not found')
            wanted = patch.get("metadata", {})
            for field in ("resourceVersion", "uid"):
                if field in wanted and wanted[field] != item["metadata"][field]:
                    raise HttpError(
                        409,
                        "Conflict",
                        f'Operation cannot be fulfilled on {kind} "{key[1]}": the object has been '
                        "modified; please apply your changes to the latest version and try again",
                    )
            merged = _merge(item, patch)
            if merged == item:
                return copy.deepcopy(item)
            self.objects[kind][key] = merged
            self._record(kind, "MODIFIED", merged)
            return copy.deepcopy(merged)

    def list(self, kind: str, selector: str, namespace: str = "") -> Json:
        with self.changed:
            items = [
                copy.deepcopy(item)
                for item in self.objects[kind].values()
                if _selected(item, selector, namespace)
            ]
            return {
                "kind": "List",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(self.version)},
                "items": items,
            }

    def events_after(self, seen: int, timeout: float) -> tuple[int, Sequence[Event]]:
        """The newest version and what happened since ``seen``; waits for the first."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > seen, timeout)
            events = [event[1:] for event in self.history if event[0] > seen]
            return self.version, events

    def forget(self) -> None:
        """Watches from any version so far get 410 Gone."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()


class ApiServer:
    """The server, listening from its creation until ``close``."""

    def __init__(
        self, address: tuple[str, int] = ("127.0.0.1", 0), tls: ssl.SSLContext | None = None
    ) -> None:
        self.store = Store()
        self.faults = Faults()
        self.closing = False
        self.told: dict[str, int] = {}
        """Kind -> the version up to which its newest watch has been told everything."""
        peer = self

        class Handler(_Handler):
            api = peer

        self._http = _Server(address, Handler)
        if tls is not None:
            # The handshake is for the thread of each client: a slow one holds up no other.
            self._http.socket = tls.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(0.05,), name="apiserver", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Of a server without TLS."""
        return f"http://{self._http.server_address[0]!s}:{self.port}"

    def close(self) -> None:
        self.closing = True
        with self.store.changed:
            self.store.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kubeconfig(self, path: Path, token: str = "") -> Path:
        """Write a kubeconfig that leads here."""
        path.write_text(kubeconfig(self.url, token))
        return path

    def put_node(self, name: str, annotations: dict[str, str] | None = None) -> Json:
        return self.store.put(
            "nodes", {"metadata": {"name": name, "annotations": annotations or {}}, "status": {}}
        )

    def put_pod(self, pod: Json) -> Json:
        return self.store.put("pods", pod)

    def node(self, name: str) -> Json:
        return self.store.get("nodes", ("", name))

    def pod(self, namespace: str, name: str) -> Json:
        return self.store.get("pods", (namespace, name))

    def annotations(self, namespace: str, name: str) -> dict[str, str]:
        """A pod's annotations."""
        return dict(self.pod(namespace, name)["metadata"].get("annotations") or {})

    def node_annotations(self, name: str) -> dict[str, str]:
        return dict(self.node(name)["metadata"].get("annotations") or {})


def kubeconfig(url: str, token: str = "") -> str:
    """A kubeconfig for a server without TLS."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "peer", "cluster": {"server": url}}],
            "users": [{"name": "peer", "user": {"token": token} if token else {}}],
            "contexts": [{"name": "peer", "context": {"cluster": "peer", "user": "peer"}}],
            "current-context": "peer",
        },
        indent=1,
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left in the middle of an answer is nothing to report."""
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLEOFError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for each answer, at once: else every other request waits 40 ms for an ACK.
    disable_nagle_algorithm = True
    wbufsize = -1
    api: ApiServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        if url.path == "/faults":
            self._faults(json.loads(body))
            return
        self.api.store.requests.append(f"{method} {self.path}")
        hangs = method == "PATCH" and url.path.endswith(f"/pods/{self.api.faults.hung_pod}")
        if self.api.faults.away or self.api.closing or hangs:
            self.close_connection = True
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else ""
        if self.api.faults.token not in ("", given):
            self._reply(401, HttpError(401, "Unauthorized", "Unauthorized").body())
            return
        if self.api.faults.slow:
            time.sleep(self.api.faults.slow)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            if query.get("watch", "").lower() in {"1", "true"}:
                self._watch(url.path, query)
                return
            answer = self._object(method, url.path, query, json.loads(body) if body else {})
        except HttpError as error:
            self._reply(error.status, error.body())
        except (KeyError, ValueError) as error:
            self._reply(400, HttpError(400, "BadRequest", repr(error)).body())
        else:
            self._reply(200, answer)

    def _object(self, method: str, path: str, query: dict[str, str], body: Json) -> Json:
        match = _ROUTE.fullmatch(path)
        if match is None:
            raise HttpError(404, "NotFound", f"the server could not find {path}")
        kind, name = match["kind"], match["name"]
        namespace = match["namespace"] or ""
        store = self.api.store
        if method == "GET" and name is None:
            return store.list(kind, query.get("fieldSelector", ""), namespace)
        if method == "GET":
            return store.get(kind, (namespace, name))
        if method == "DELETE":
            return store.delete(kind, (namespace, name))
        self._object_faults(method, f"{kind}/{name}", body)
        if method == "PATCH":
            if self.headers.get("Content-Type") != "application/merge-patch+json":
                raise HttpError(415, "UnsupportedMediaType", "expected a merge patch")
            return store.patch(kind, (namespace, name), body)
        metadata = body.setdefault("metadata", {})
        if "name" not in metadata:
            metadata["name"] = f"{metadata.get('generateName', '')}{uuid.uuid4().hex[:8]}"
        if namespace:
            metadata["namespace"] = namespace
        if method == "POST" and (namespace, metadata["name"]) in store.objects[kind]:
            raise HttpError(409, "AlreadyExists", f'{kind} "{metadata["name"]}" already exists')
        return store.put(kind, body)

    def _object_faults(self, method: str, what: str, body: Json) -> None:
        faults = self.api.faults
        if method == "POST" and what.startswith("events/") and faults.refuse_events:
            raise HttpError(faults.refuse_events, "Refused", "no event now")
        if method != "PATCH":
            return
        if what == f"pods/{faults.denied_pod}":
            raise HttpError(
                faults.denied_status,
                "Refused",
                f'admission webhook "no.example" denied it at {time.time()}',
            )
        if faults.refuse_patches > 0:
            faults.refuse_patches -= 1
            raise HttpError(500, "InternalError", "etcd leader changed")
        if faults.conflicts > 0 and "resourceVersion" in body.get("metadata", {}):
            faults.conflicts -= 1
            raise HttpError(409, "Conflict", "the object has been modified")

    def _faults(self, wanted: Json) -> None:
        for field in fields(Faults):
            if field.name in wanted:
                setattr(self.api.faults, field.name, wanted[field.name])
        if wanted.get("forget"):
            self.api.store.forget()
        with self.api.store.changed:
            self.api.store.changed.notify_all()
        self._reply(200, {"kind": "Status", "status": "Success"})

    def _reply(self, status: int, answer: Json) -> None:
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def _watch(self, path: str, query: dict[str, str]) -> None:
        match = _ROUTE.fullmatch(path)
        if match is None:
            raise HttpError(404, "NotFound", f"the server could not find {path}")
        store = self.api.store
        seen = int(query.get("resourceVersion") or store.version)
        if seen < store.oldest:
            gone = HttpError(410, "Expired", f"too old resource version: {seen}").body()
            self._start_stream()
            self._send({"type": "ERROR", "object": gone})
            self._end_stream()
            return
        self._start_stream()
        try:
            self._follow(match["kind"], match["namespace"] or "", seen, query)
        except OSError:
            self.close_connection = True

    def _follow(self, kind: str, namespace: str, seen: int, query: dict[str, str]) -> None:
        started = bookmarked = time.monotonic()
        limit = float(query.get("timeoutSeconds") or 300)
        bookmarks = query.get("allowWatchBookmarks", "").lower() in {"1", "true"}
        selector = query.get("fieldSelector", "")
        while True:
            seen, events = self.api.store.events_after(seen, 0.1)
            if self.api.faults.away or self.api.closing:
                self.close_connection = True
                self.connection.close()
                return
            if self._broken(started, limit):
                self._end_stream()
                return
            if self.api.faults.silent:
                continue
            for of, event, item in events:
                if of == kind and _selected(item, selector, namespace):
                    self._send({"type": event, "object": item})
            self.api.told[kind] = seen
            if bookmarks and time.monotonic() - bookmarked > _BOOKMARK_SECONDS:
                bookmarked = time.monotonic()
                metadata = {"resourceVersion": str(seen)}
                item = {"kind": kind[:-1].capitalize(), "metadata": metadata}
                self._send({"type": "BOOKMARK", "object": item})

    def _broken(self, started: float, limit: float) -> bool:
        end = self.api.faults.end_watches
        age = time.monotonic() - started
        return self.api.closing or age > limit or bool(end and age > end)

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _send(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
        self.close_connection = True


def _merge(item: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(item) if isinstance(item, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _selected(item: Json, selector: str, namespace: str) -> bool:
    if namespace and item["metadata"].get("namespace") != namespace:
        return False
    for term in filter(None, selector.split(",")):
        path, _, wanted = term.replace("==", "=").partition("=")
        value: Any = item
        for part in path.split("."):
            value = (value or {}).get(part)
        if (value or "") != wanted:
            return False
    return True


def main(argv: list[str]) -> int:
    options = argparse.ArgumentParser(prog="python -m tests.contract.peers.apiserver")
    options.add_argument("--address", default="127.0.0.1:8080", help="host:port to listen on")
    options.add_argument("--objects", type=Path, help="JSON list of nodes and pods to start with")
    options.add_argument("--kubeconfig", type=Path, help="write a kubeconfig for this server")
    arguments = options.parse_args(argv)
    host, _, port = arguments.address.rpartition(":")
    api = ApiServer((host, int(port)))
    for item in json.loads(arguments.objects.read_text()) if arguments.objects else []:
        api.store.put("pods" if item.get("kind") == "Pod" else "nodes", item)
    if arguments.kubeconfig:
        api.kubeconfig(arguments.kubeconfig)
    sys.stdout.write(f"listening on {api.url}\n")
    sys.stdout.flush()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        api.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
