# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that scrapes what a test tells it to, and answers queries."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import yaml

from tests.testbed.prometheus import program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

_READY_SECONDS = 120.0


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Prometheus:
    """A server in ``directory``, alive inside a ``with`` statement.

    ``targets``: address -> the label ``node`` it gets, as the chart's monitors give it.
    """

    def __init__(
        self,
        directory: Path,
        targets: Mapping[str, str],
        rules: Path | None = None,
        interval: str = "1s",
    ) -> None:
        """``interval`` is also the time a scrape may take."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "prometheus.log"
        self._directory = directory
        self._port = _free_port()
        config: dict[str, Any] = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "scrape_configs": [
                {
                    "job_name": "ringfence",
                    "honor_labels": True,
                    "static_configs": [
                        {"targets": [address], "labels": {"node": node}}
                        for address, node in targets.items()
                    ],
                },
                {
                    "job_name": "self",
                    "static_configs": [{"targets": [f"127.0.0.1:{self._port}"]}],
                },
            ],
            "rule_files": [str(rules)] if rules is not None else [],
        }
        (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={self._directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _READY_SECONDS
        while not self._answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query: (labels, value) of each series. Raises QueryError."""
        data = self._get("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """The rules as they were last evaluated."""
        groups = self._get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(error.read().decode()) from error

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=10):
                return True
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
