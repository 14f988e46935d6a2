# SPDX-License-Identifier: Apache-2.0
"""The few requests to the Kubernetes API server that this plugin makes, each with a deadline.

The client library brings the way there: address, TLS, credentials and their renewal. Its generated
methods and model classes would cost 20 MiB and are never looked at: objects are the server's JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deviceplugin.pod import Json

GONE = 410
CONFLICT = 409
NOT_FOUND = 404
WATCH_SECONDS = 60
"""How long the server lets a watch run. A quiet one is not known to be dead before."""

_MERGE_PATCH = "application/merge-patch+json"
_CONNECT_SECONDS = 5.0
_NOT_NOW = frozenset({401, 408, 429})
"""A token on its way to be renewed, a server that was too slow, or asked too much at once."""


class ApiServerError(Exception):
    """A request that was refused, or not answered in time."""

    def __init__(self, what: str, why: str, status: int = 0) -> None:
        super().__init__(f"{what}: {why}")
        self.status = status
        """The HTTP status; 0 where there was no answer."""

    @property
    def final(self) -> bool:
        """Whether the same request will hear the same again."""
        return 400 <= self.status < 500 and self.status not in _NOT_NOW


class ApiServer:
    """What this plugin asks of the API server, for one node. Safe to use from many threads."""

    def __init__(self, api: client.ApiClient, node: str) -> None:
        self._api = api
        self.node = node

    def get_node(self, timeout: float) -> Json:
        """This node."""
        return self._call("GET", f"/nodes/{self.node}", timeout)

    def get_pod(self, namespace: str, name: str, timeout: float) -> Json | None:
        """One pod; None if there is none of this name."""
        try:
            return self._call("GET", f"/namespaces/{namespace}/pods/{name}", timeout)
        except ApiServerError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def list_nodes(self, timeout: float) -> Json:
        """A list with this node alone, to watch it from."""
        return self._call("GET", f"/nodes?{_only(f'metadata.name={self.node}')}", timeout)

    def list_pods(self, timeout: float) -> Json:
        """The pods bound to this node."""
        return self._call("GET", f"/pods?{_only(f'spec.nodeName={self.node}')}", timeout)

    def watch_nodes(self, resource_version: str, opened: Callable[[Any], None]) -> Iterator[Json]:
        """Changes of this node; ``opened`` gets the response, whose ``shutdown`` ends it."""
        return self._watch("/nodes", f"metadata.name={self.node}", resource_version, opened)

    def watch_pods(self, resource_version: str, opened: Callable[[Any], None]) -> Iterator[Json]:
        """Changes of the pods bound to this node."""
        return self._watch("/pods", f"spec.nodeName={self.node}", resource_version, opened)

    def patch_pod(self, namespace: str, name: str, patch: Json, timeout: float) -> Json:
        """The pod after a merge patch; its ``resourceVersion`` in the patch is a precondition."""
        return self._call("PATCH", f"/namespaces/{namespace}/pods/{name}", timeout, patch)

    def patch_node_status(self, patch: Json, timeout: float) -> Json:
        """This node after a merge patch of its status."""
        return self._call("PATCH", f"/nodes/{self.node}/status", timeout, patch)

    def create_event(self, namespace: str, event: Json, timeout: float) -> Json:
        """The event as the server keeps it."""
        return self._call("POST", f"/namespaces/{namespace}/events", timeout, event)

    def patch_node(self, patch: Json, timeout: float) -> Json:
        """This node after a merge patch."""
        return self._call("PATCH", f"/nodes/{self.node}", timeout, patch)

    def _call(self, method: str, path: str, timeout: float, body: Json | None = None) -> Json:
        what = f"{method} {path}"
        response = self._request(what, method, path, urllib3.Timeout(total=timeout), body)
        try:
            text = response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(what, f"no answer: {error}") from error
        finally:
            response.release_conn()
        if not 200 <= response.status < 300:
            raise _refused(what, response.status, text)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ApiServerError(what, f"expected JSON, found {error}") from error
        if not isinstance(answer, dict):
            raise ApiServerError(what, f"expected an object, found {type(answer).__name__}")
        return answer

    def _watch(
        self, path: str, selector: str, version: str, opened: Callable[[Any], None]
    ) -> Iterator[Json]:
        query = {
            "watch": "true",
            "fieldSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        what = f"watch {path} {selector}"
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=WATCH_SECONDS + 10)
        response = self._request(what, "GET", f"{path}?{urlencode(query)}", timeout, None)
        opened(response)
        try:
            if response.status != 200:
                raise _refused(what, response.status, response.read())
            for line in _lines(response.stream(1 << 16)):
                event = json.loads(line)
                if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
                    raise ValueError(f"expected an event with its object, found {line[:80]!r}")
                yield event
        except (urllib3.exceptions.HTTPError, OSError, ValueError, RecursionError) as error:
            raise ApiServerError(what, f"broke off: {error}") from error
        finally:
            response.close()

    def _request(
        self, what: str, method: str, path: str, timeout: urllib3.Timeout, body: Json | None
    ) -> urllib3.BaseHTTPResponse:
        settings = self._api.configuration
        headers = {"Accept": "application/json", "User-Agent": "ringfence"}
        # Asked for every time: it is where a rotated service account token is read again.
        try:
            credentials = settings.auth_settings().values()
        except (OSError, config.ConfigException) as error:
            raise ApiServerError(what, f"no credentials: {error}") from error
        for credential in credentials:
            if credential["in"] == "header" and credential["value"]:
                headers[credential["key"]] = credential["value"]
        content = None
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
            content = json.dumps(body).encode()
        try:
            response: urllib3.BaseHTTPResponse = self._api.rest_client.pool_manager.request(
                method,
                f"{settings.host.rstrip('/')}/api/v1{path}",
                body=content,
                headers=headers,
                timeout=timeout,
                # One inside would multiply the deadline; the callers try again.
                retries=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(what, f"no answer: {error}") from error
        return response


def connect(node: str, kubeconfig: Path | None, keys: Path | None = None) -> ApiServer:
    """The API server of a kubeconfig, or of the cluster this process runs in.

    The directory ``keys`` gets the keys that are in the kubeconfig itself, as files. Raises
    ``kubernetes.config.ConfigException`` where neither describes one.
    """
    configuration = client.Configuration()
    if kubeconfig is None:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig),
            client_configuration=configuration,
            temp_file_path=None if keys is None else str(keys),
        )
    # Two watches, and one request each from Allocate, release, publish-node, reap and both events.
    configuration.connection_pool_maxsize = 8
    return ApiServer(client.ApiClient(configuration), node)


def _only(selector: str) -> str:
    return urlencode({"fieldSelector": selector})


def _refused(what: str, status: int, body: bytes | str) -> ApiServerError:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        message = json.loads(text).get("message", text)
    except (ValueError, AttributeError, RecursionError):
        message = text
    return ApiServerError(what, f"refused with {status}: {str(message)[:500]}", status)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
