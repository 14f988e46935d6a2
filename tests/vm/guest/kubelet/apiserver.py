# SPDX-License-Identifier: Apache-2.0
"""kube-apiserver over etcd, and what a test asks of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

from tests.vm.guest.kubelet.program import GoProgram
from tests.vm.guest.services import wait_for

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]

_PORT = 6443
_TOKEN = "token-of-the-tests"  # noqa: S105 - of a server that lives as long as the machine
_ETCD = "http://127.0.0.1:2379"
_APIS = (
    "api/all=false",
    *("api/v1=true", "apiregistration.k8s.io/v1=true", "apiextensions.k8s.io/v1=true"),
    # A node's heartbeat, and what kubelet watches.
    *("coordination.k8s.io/v1=true", "node.k8s.io/v1=true", "storage.k8s.io/v1=true"),
)
_NOT_ASKED = (
    # There is no controller that would make a pod's service account.
    "ServiceAccount",
    *("LimitRanger", "ResourceQuota", "Priority", "RuntimeClass", "StorageObjectInUseProtection"),
    *("DefaultStorageClass", "DefaultIngressClass", "PersistentVolumeClaimResize"),
    *("CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction"),
    *("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"),
)
_START_SECONDS = 400
_CALL_SECONDS = 120


class ApiError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiServer:
    """Both processes, and their client. ``programs`` is what the testbed has built."""

    def __init__(self, programs: Path, root: Path, logs: Path) -> None:
        self._certificate = programs / "server.crt"
        tokens = root / "tokens"
        tokens.write_text(f'{_TOKEN},tests,tests,"system:masters"\n')
        self._kubeconfig = root / "kubeconfig"
        self._kubeconfig.write_text(json.dumps(self._config()))
        key = programs / "server.key"
        self.processes = (
            GoProgram(
                programs,
                "etcd",
                [
                    f"--data-dir={root / 'etcd'}",
                    f"--listen-client-urls={_ETCD}",
                    f"--advertise-client-urls={_ETCD}",
                    "--listen-peer-urls=http://127.0.0.1:2380",
                ],
                logs,
            ),
            GoProgram(
                programs,
                "kube-apiserver",
                [
                    f"--etcd-servers={_ETCD}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={_PORT}",
                    f"--tls-cert-file={self._certificate}",
                    f"--tls-private-key-file={key}",
                    f"--token-auth-file={tokens}",
                    "--authorization-mode=AlwaysAllow",
                    "--service-cluster-ip-range=10.0.0.0/24",
                    "--service-account-issuer=https://127.0.0.1",
                    f"--service-account-signing-key-file={key}",
                    f"--service-account-key-file={key}",
                    "--endpoint-reconciler-type=none",
                    "--allow-privileged=true",
                    # What nobody here asks for costs the emulated machine half a minute.
                    f"--runtime-config={','.join(_APIS)}",
                    f"--disable-admission-plugins={','.join(_NOT_ASKED)}",
                    "--enable-priority-and-fairness=false",
                    "--profiling=false",
                ],
                logs,
            ),
        )
        self._connection: http.client.HTTPSConnection | None = None

    @property
    def kubeconfig(self) -> Path:
        """A file that leads here."""
        return self._kubeconfig

    def write_account(self, folder: Path) -> dict[str, str]:
        """What a pod finds in its account's directory; the variables that lead it here."""
        folder.mkdir()
        (folder / "token").write_text(_TOKEN)
        (folder / "ca.crt").write_bytes(self._certificate.read_bytes())
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(_PORT)}

    def start(self) -> None:
        """Start both, without waiting."""
        for process in self.processes:
            process.spawn()

    def wait_ready(self) -> None:
        """Return once it serves, and has the namespace of the tests' pods."""

        def ready() -> bool:
            for process in self.processes:
                assert process.alive(), f"{process.name} ended:\n{process.log.read_text()[-4000:]}"
            try:
                self.call("GET", "/api/v1/namespaces/default")
            except (ApiError, OSError, http.client.HTTPException):
                return False
            return True

        wait_for("the API server", ready, _START_SECONDS)

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """One request; a PATCH is a merge patch. Raises ApiError or OSError."""
        merge = "application/merge-patch+json"
        headers = {
            "Authorization": f"Bearer {_TOKEN}",
            "Content-Type": merge if method == "PATCH" else "application/json",
        }
        if self._connection is None:
            context = ssl.create_default_context(cafile=str(self._certificate))
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", _PORT, context=context, timeout=_CALL_SECONDS
            )
        try:
            self._connection.request(method, path, json.dumps(body) if body else None, headers)
            response = self._connection.getresponse()
            answer: Json = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise
        if response.status >= 300:
            raise ApiError(response.status, answer.get("message", ""))
        return answer

    def node(self, name: str) -> Json:
        return self.call("GET", f"/api/v1/nodes/{name}")

    def patch_node(self, name: str, patch: Json) -> Json:
        return self.call("PATCH", f"/api/v1/nodes/{name}", patch)

    def create_pod(self, pod: Json) -> Json:
        return self.call("POST", "/api/v1/namespaces/default/pods", pod)

    def patch_pod(self, name: str, patch: Json) -> Json:
        return self.call("PATCH", f"/api/v1/namespaces/default/pods/{name}", patch)

    def bind_pod(self, name: str, node: str) -> None:
        """What a scheduler's Bind is."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"metadata": {"name": name}, "target": target}
        self.call("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)

    def pod(self, name: str) -> Json | None:
        """The pod; None if there is none."""
        try:
            return self.call("GET", f"/api/v1/namespaces/default/pods/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def delete_pod(self, name: str) -> None:
        """Ask for its end, with the grace it asks for; a pod that is gone is no error."""
        try:
            self.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")
        except ApiError as error:
            if error.status != 404:
                raise

    def pods(self) -> list[str]:
        """The names of the pods that there are."""
        listed = self.call("GET", "/api/v1/namespaces/default/pods")
        return [item["metadata"]["name"] for item in listed["items"]]

    def events(self, name: str) -> list[str]:
        """What was told about an object of that name: reason and message."""
        listed = self.call(
            "GET", f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
        )
        return [f"{item['reason']}: {item['message']}" for item in listed["items"]]

    def close(self) -> None:
        """End both processes."""
        for process in reversed(self.processes):
            if process.alive():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    def _config(self) -> Json:
        server = {
            "server": f"https://127.0.0.1:{_PORT}",
            "certificate-authority": str(self._certificate),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": server}],
            "users": [{"name": "testbed", "user": {"token": _TOKEN}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
            "current-context": "testbed",
        }
