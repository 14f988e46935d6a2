# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import gzip
import http.client
import logging
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from enforcer.metrics import serve as module
from enforcer.metrics.serve import Body, Site, serve, serve_when_free
from tests.unit.enforcer.sample import SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enforcer.model import Snapshot


def site(snapshot: Snapshot | None = SNAPSHOT, **options: object) -> Site:
    return Site(lambda: snapshot, "node-a", "1.2.3", **options)  # type: ignore[arg-type]


@contextmanager
def served(port: int, what: Site) -> Iterator[http.client.HTTPConnection]:
    stop = serve(f"127.0.0.1:{port}", what)
    try:
        yield http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    finally:
        stop()


def get(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=names)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize("address", ["9394", "host", ":x", ":99999", ""])
def test_an_address_of_another_form_is_an_error(address: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        serve(address, site())


def test_metrics_are_served_until_stopped(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        status, headers, body = get(connection, "/metrics")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        assert b"hami_vgpu_memory_used_bytes" in body
        with pytest.raises(OSError, match="in use"):
            serve(f"127.0.0.1:{unused_port}", site())
    with pytest.raises(OSError, match="refused"):
        get(http.client.HTTPConnection("127.0.0.1", unused_port), "/metrics")


def test_a_port_that_another_has_is_taken_when_it_is_free(
    unused_port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.05)
    first = serve(f"127.0.0.1:{unused_port}", site())
    end = serve_when_free(f"127.0.0.1:{unused_port}", site())
    try:
        while "in use" not in caplog.text:
            time.sleep(0.01)
        time.sleep(0.2)
        first()
        while "served after all" not in caplog.text:
            time.sleep(0.01)
        connection = http.client.HTTPConnection("127.0.0.1", unused_port, timeout=30)
        assert get(connection, "/metrics")[0] == 200
        connection.close()
    finally:
        end()
    assert caplog.text.count("trying again") == 1
    with pytest.raises(OSError, match="refused"):
        get(http.client.HTTPConnection("127.0.0.1", unused_port), "/metrics")


def test_who_waits_for_a_port_can_be_stopped(unused_port: int) -> None:
    with served(unused_port, site()):
        serve_when_free(f"127.0.0.1:{unused_port}", site())()


def test_nobody_waits_for_an_address_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"expected \[HOST\]:PORT"):
        serve_when_free("nowhere", site())


def test_without_a_host_both_families_are_answered(unused_port: int) -> None:
    stop = serve(f":{unused_port}", site())
    try:
        assert get(http.client.HTTPConnection("127.0.0.1", unused_port), "/metrics")[0] == 200
        if socket.has_dualstack_ipv6():
            assert get(http.client.HTTPConnection("::1", unused_port), "/metrics")[0] == 200
    finally:
        stop()


def test_the_page_is_at_the_root_and_takes_nothing_from_elsewhere(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        status, headers, body = get(connection, "/?x=1")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert b"node-a" in body


def test_the_page_can_be_switched_off(unused_port: int) -> None:
    with served(unused_port, site(with_page=False)) as connection:
        assert get(connection, "/")[0] == 404
        assert get(connection, "/metrics")[0] == 200


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/../etc/passwd"])
def test_nothing_else_is_there(unused_port: int, path: str) -> None:
    with served(unused_port, site()) as connection:
        assert get(connection, path)[0] == 404


def test_head_has_the_size_and_no_body(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        status, headers, body = get(connection, "/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000


def test_other_methods_are_refused(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        assert get(connection, "/metrics", "POST")[0] == 501


def test_who_can_unpack_gets_it_packed(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        _, headers, packed = get(connection, "/metrics", Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == get(connection, "/metrics")[2]


@pytest.mark.parametrize(("what", "writer"), [("metrics", "render"), ("page", "page")])
def test_a_snapshot_is_written_once_whoever_asks_at_once(
    monkeypatch: pytest.MonkeyPatch, what: str, writer: str
) -> None:
    asking = threading.Barrier(8)
    snapshots = [SNAPSHOT]
    made = Site(lambda: snapshots[-1], "node-a", "1.2.3")
    real = getattr(module, writer)
    written = []

    def write(*arguments: object) -> str:
        written.append(arguments)
        time.sleep(0.05)
        return str(real(*arguments))

    monkeypatch.setattr(module, writer, write)

    def ask(_: int) -> Body:
        asking.wait(30)
        found = getattr(made, what)()
        assert isinstance(found, Body)
        return found

    with ThreadPoolExecutor(8) as pool:
        before = list(pool.map(ask, range(8)))
        assert len(written) == 1
        snapshots.append(replace(SNAPSHOT, time=SNAPSHOT.time + 3600, pass_seconds=7.5))
        after = list(pool.map(ask, range(8)))
        assert len(written) == 2
    assert {id(body) for body in before} == {id(before[0])}
    assert {id(body) for body in after} == {id(after[0])}
    assert before[0].plain != after[0].plain


def test_an_equal_snapshot_of_another_pass_is_another_one() -> None:
    snapshots = [SNAPSHOT]
    made = Site(lambda: snapshots[-1], "node-a", "1.2.3")
    first = made.page(), made.metrics()
    snapshots.append(replace(SNAPSHOT))
    assert made.page() is not first[0]
    assert made.metrics() is not first[1]


def test_before_the_first_pass_there_is_a_page_and_a_version(unused_port: int) -> None:
    with served(unused_port, site(None)) as connection:
        assert b"not done yet" in get(connection, "/")[2]
        assert b'ringfence_build_info{version="1.2.3"} 1' in get(connection, "/metrics")[2]


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "admitted"),
    [
        ("", False),
        ("Bearer s3cret", True),
        ("bearer  s3cret ", True),
        ("Bearer s3cre", False),
        ("Bearer", False),
        ("s3cret", False),
        (basic("s3cret"), True),
        (basic("other"), False),
        ("Basic s3cret", False),
        ("Basic " + base64.b64encode(b"s3cret").decode(), False),
        ("Digest s3cret", False),
    ],
)
@pytest.mark.parametrize("path", ["/", "/metrics", "/nothing"])
def test_with_a_token_only_who_has_it_sees_anything(
    unused_port: int, tmp_path: Path, header: str, admitted: bool, path: str
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with served(unused_port, site(token=tmp_path / "token")) as connection:
        status, headers, body = get(connection, path, Authorization=header)
    assert (status == 401) is not admitted
    if not admitted:
        assert headers["WWW-Authenticate"].startswith("Basic")
        assert b"team-a" not in body


def test_a_token_that_changes_is_the_new_one_at_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    made = site(token=token)
    assert made.admits("Bearer old")
    token.write_text("new")
    assert (made.admits("Bearer old"), made.admits("Bearer new")) == (False, True)


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_token_that_is_not_there_admits_nobody(tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    made = site(token=token)
    assert not any(made.admits(header) for header in ("", "Bearer ", "Bearer x", basic("")))


def test_a_token_that_cannot_be_read_is_told_once_whoever_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    token = tmp_path / "token"
    made = site(token=token)
    for _ in range(5):
        assert not made.admits("Bearer x")
    assert caplog.text.count("nobody is admitted") == 1
    token.write_text("x")
    assert made.admits("Bearer x")
    assert "the token can be read again" in caplog.text
    token.unlink()
    assert not made.admits("Bearer x")
    assert caplog.text.count("nobody is admitted") == 2


def test_who_leaves_early_or_says_nothing_harms_nobody(unused_port: int) -> None:
    with served(unused_port, site()) as connection:
        idle = [socket.create_connection(("127.0.0.1", unused_port)) for _ in range(8)]
        rude = socket.create_connection(("127.0.0.1", unused_port))
        rude.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        rude.close()
        assert get(connection, "/metrics")[0] == 200
        for one in idle:
            one.close()


def test_an_answer_that_cannot_be_written_is_an_error_told_once_a_minute(
    unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    unwritten = replace(SNAPSHOT, problems=("\udcff",))
    with caplog.at_level(logging.INFO), served(unused_port, site(unwritten)) as connection:
        for _ in range(3):
            with pytest.raises(OSError, match="without response"):
                get(connection, "/")
            connection.close()
        assert get(connection, "/metrics")[0] == 200
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert record.exc_info[0] is UnicodeEncodeError
    assert not any("left before" in message for message in caplog.messages)


def test_who_leaves_is_no_error(unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), served(unused_port, site()) as connection:
        rude = socket.create_connection(("127.0.0.1", unused_port))
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"GET / HTTP/1.1\r\n")
        rude.close()
        until = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        assert get(connection, "/metrics")[0] == 200
    assert [one.levelno for one in caplog.records] == [logging.INFO]
    assert "left before its answer" in caplog.messages[0]


def test_many_at_once_are_answered_or_turned_away_but_none_hangs(unused_port: int) -> None:
    statuses: list[int | None] = []

    def ask() -> None:
        try:
            statuses.append(
                get(http.client.HTTPConnection("127.0.0.1", unused_port, timeout=30), "/metrics")[0]
            )
        except (OSError, http.client.HTTPException):
            statuses.append(None)

    with served(unused_port, site()):
        threads = [threading.Thread(target=ask) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(statuses) == 64
        assert set(statuses) <= {200, None}
        assert statuses.count(200) >= 16
