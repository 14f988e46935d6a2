# SPDX-License-Identifier: Apache-2.0
"""The few requests to the Kubernetes API server that this plugin makes, each with a deadline.

Objects are the server's JSON: the client's model classes would cost megabytes per list and are
never looked at.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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


class ApiServerError(Exception):
    """A request that was refused, or not answered in time."""

    def __init__(self, what: str, why: str, status: int = 0) -> None:
        super().__init__(f"{what}: {why}")
        self.status = status
        """The HTTP status; 0 where there was no answer."""


class ApiServer:
    """What this plugin asks of the API server, for one node."""

    def __init__(self, api: client.ApiClient, node: str) -> None:
        self._core = client.CoreV1Api(api)
        self.node = node

    def get_node(self, timeout: float) -> Json:
        """This node."""
        return self._call(f"get node {self.node}", timeout, self._core.read_node, self.node)

    def get_pod(self, namespace: str, name: str, timeout: float) -> Json | None:
        """One pod; None if there is none of this name."""
        what = f"get pod {namespace}/{name}"
        try:
            return self._call(what, timeout, self._core.read_namespaced_pod, name, namespace)
        except ApiServerError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def list_nodes(self, timeout: float) -> Json:
        """A list with this node alone, to watch it from."""
        return self._call(
            f"list node {self.node}",
            timeout,
            self._core.list_node,
            field_selector=f"metadata.name={self.node}",
        )

    def list_pods(self, timeout: float) -> Json:
        """The pods bound to this node."""
        return self._call(
            f"list pods of node {self.node}",
            timeout,
            self._core.list_pod_for_all_namespaces,
            field_selector=f"spec.nodeName={self.node}",
        )

    def watch_nodes(self, resource_version: str, opened: Callable[[Any], None]) -> Iterator[Json]:
        """Changes of this node."""
        return self._watch(
            self._core.list_node, f"metadata.name={self.node}", resource_version, opened
        )

    def watch_pods(self, resource_version: str, opened: Callable[[Any], None]) -> Iterator[Json]:
        """Changes of the pods bound to this node."""
        return self._watch(
            self._core.list_pod_for_all_namespaces,
            f"spec.nodeName={self.node}",
            resource_version,
            opened,
        )

    def patch_pod(self, namespace: str, name: str, patch: Json, timeout: float) -> Json:
        """The pod after a merge patch; its ``resourceVersion`` in the patch is a precondition."""
        return self._call(
            f"patch pod {namespace}/{name}",
            timeout,
            self._core.patch_namespaced_pod,
            name,
            namespace,
            patch,
            _content_type=_MERGE_PATCH,
        )

    def patch_node(self, patch: Json, timeout: float) -> Json:
        """This node after a merge patch."""
        return self._call(
            f"patch node {self.node}",
            timeout,
            self._core.patch_node,
            self.node,
            patch,
            _content_type=_MERGE_PATCH,
        )

    def _call(
        self, what: str, timeout: float, method: Callable[..., Any], *args: Any, **more: Any
    ) -> Json:
        try:
            response = method(*args, _preload_content=False, _request_timeout=timeout, **more)
            try:
                body = response.read()
            finally:
                response.release_conn()
        except client.ApiException as error:
            raise _refused(what, error.status or 0, error.body or error.reason) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiServerError(what, f"no answer: {error}") from error
        if not 200 <= response.status < 300:
            raise _refused(what, response.status, body)
        try:
            answer = json.loads(body)
        except ValueError as error:
            raise ApiServerError(what, f"expected JSON, found {error}") from error
        if not isinstance(answer, dict):
            raise ApiServerError(what, f"expected an object, found {type(answer).__name__}")
        return answer

    def _watch(
        self,
        method: Callable[..., Any],
        selector: str,
        resource_version: str,
        opened: Callable[[Any], None],
    ) -> Iterator[Json]:
        what = f"watch {selector}"
        try:
            response = method(
                watch=True,
                field_selector=selector,
                resource_version=resource_version,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_SECONDS,
                _preload_content=False,
                _request_timeout=(5, WATCH_SECONDS + 10),
            )
            opened(response)
            try:
                if response.status != 200:
                    raise _refused(what, response.status, response.read())
                for line in _lines(response.stream(1 << 16)):
                    yield json.loads(line)
            finally:
                response.close()
        except client.ApiException as error:
            raise _refused(what, error.status or 0, error.body or error.reason) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiServerError(what, f"broke off: {error}") from error


def connect(node: str, kubeconfig: Path | None) -> ApiServer:
    """The API server of a kubeconfig, or of the cluster this process runs in.

    Raises ``kubernetes.config.ConfigException`` where neither describes one.
    """
    configuration = client.Configuration()
    if kubeconfig is None:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            str(kubeconfig), client_configuration=configuration
        )
    # A retry inside the client would multiply every deadline; the callers retry.
    configuration.retries = 0
    configuration.client_side_validation = False
    return ApiServer(client.ApiClient(configuration), node)


def _refused(what: str, status: int, body: bytes | str) -> ApiServerError:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    try:
        message = json.loads(text).get("message", text)
    except (ValueError, AttributeError):
        message = text
    return ApiServerError(what, f"refused with {status}: {str(message)[:500]}", status)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
