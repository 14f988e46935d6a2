# SPDX-License-Identifier: Apache-2.0
"""Each test has a process of its own: this one has threads, and must not fork."""

import multiprocessing
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from enforcer.host.apart import Answer, Apart


def _answer(about: str) -> str:
    match about:
        case "hangs":
            time.sleep(60)
        case "dies":
            os._exit(1)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise ValueError("of the \N{SNOWMAN} question")
        case "large":
            return "x" * 100_000
        case "slow":
            time.sleep(1)
    return f"seen {about}"


def _other(about: str) -> str:
    return about.upper()


Steps = Callable[[Apart], list[Answer]]


def run(steps: Steps) -> list[Answer]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_with_one, steps).result(90)


def _with_one(steps: Steps) -> list[Answer]:
    apart = Apart({"one": _answer, "other": _other})
    try:
        return steps(apart)
    finally:
        apart.close()


def _several(apart: Apart) -> list[Answer]:
    return [
        *apart.ask("one", ["b", "a"], 30),
        *apart.ask("other", ["a"], 30),
        *apart.ask("one", [], 1),
    ]


def test_each_question_is_answered_by_its_kind_in_order() -> None:
    assert run(_several) == [Answer("seen b"), Answer("seen a"), Answer("A")]


def _hanging(apart: Apart) -> list[Answer]:
    return [*apart.ask("one", ["hangs", "a"], 3), *apart.ask("one", ["hangs", "a"], 3)]


def test_an_answer_that_hangs_costs_only_itself_and_is_not_asked_for_again() -> None:
    assert run(_hanging) == [
        Answer("does not answer within 3.0 s", silent=True),
        Answer("seen a"),
        Answer("does not answer: the last try still hangs", silent=True),
        Answer("seen a"),
    ]


def _late(apart: Apart) -> list[Answer]:
    found = apart.ask("one", ["slow"], 0.1)
    deadline = time.monotonic() + 30
    while found[-1].silent and time.monotonic() < deadline:
        found += apart.ask("one", ["slow"], 5)
        time.sleep(0.1)
    return [found[0], found[-1]]


def test_an_answer_that_came_late_may_be_asked_for_again() -> None:
    first, last = run(_late)
    assert first.silent
    assert last == Answer("seen slow")


def _failing(apart: Apart) -> list[Answer]:
    bad = apart.ask("one", ["dies", "killed", "raises", "large", "x" * 70_000], 30)
    # Once more: nothing hangs of what has ended.
    return [*bad, *apart.ask("one", ["killed", "a"], 30)]


def test_a_process_that_ends_without_an_answer_is_told_at_once_and_no_other_is() -> None:
    started = time.monotonic()
    *failed, other = run(_failing)
    assert time.monotonic() - started < 25
    assert [one.text for one in failed] == [
        "ended without an answer",
        "ended without an answer, by signal 9",
        r"ended with ValueError: 'of the \u2603 question'",
        failed[3].text,
        "cannot be asked: Message too long",
        "ended without an answer, by signal 9",
    ]
    assert re.fullmatch(r"an answer that is too large, of 1\d{5} bytes", failed[3].text)
    assert all(one.silent and one.failed for one in failed)
    assert other == Answer("seen a")


def _at_once(apart: Apart) -> list[Answer]:
    with ThreadPoolExecutor(3) as pool:
        hanging = pool.submit(apart.ask, "one", ["hangs"], 8)
        time.sleep(0.5)
        started = time.monotonic()
        slow = [pool.submit(apart.ask, "one", ["slow"], 6) for _ in range(2)]
        found = [answer for one in slow for answer in one.result()]
        found += apart.ask("other", ["a"], 6)
        took = time.monotonic() - started
        return [*found, *hanging.result(), Answer(str(took < 6))]


def test_who_waits_for_an_answer_keeps_nobody_from_another_one() -> None:
    assert run(_at_once) == [
        Answer("seen slow"),
        Answer("seen slow"),
        Answer("A"),
        Answer("does not answer within 8.0 s", silent=True),
        Answer("True"),
    ]


def _unforkable(_: Apart) -> list[Answer]:
    # Only somebody else's processes are counted: root may have as many as it wants.
    os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))
    second = Apart({"one": _answer})
    resource.prlimit(second.pid, resource.RLIMIT_NPROC, (0, 1000))
    refused = second.ask("one", ["a"], 30)
    resource.prlimit(second.pid, resource.RLIMIT_NPROC, (1000, 1000))
    answered = second.ask("one", ["a"], 30)
    second.close()
    return [*refused, *answered]


@pytest.mark.skipif(os.getuid() != 0, reason="becomes somebody whose processes are counted")
def test_a_process_that_cannot_be_made_is_told_and_the_next_one_is() -> None:
    refused, answered = run(_unforkable)
    assert refused.failed
    assert refused.text.startswith("cannot be asked: no process for it: ")
    assert answered == Answer("seen a")


def _orphaned(apart: Apart) -> list[Answer]:
    os.kill(apart.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        found = apart.ask("one", ["a"], 0.5)
        if "cannot be asked" in found[0].text or time.monotonic() > deadline:
            return found


def test_without_its_process_nothing_can_be_asked() -> None:
    (answer,) = run(_orphaned)
    assert answer.failed
    assert "cannot be asked" in answer.text


def _leaving(_: Apart) -> list[Answer]:
    reader, writer = os.pipe()
    second = Apart({"one": _answer})
    os.close(writer)
    second.ask("one", ["hangs"], 0.1)
    left = os.read(reader, 1)
    second.close()
    return [Answer(left.decode())]


def test_the_processes_hold_on_to_nothing_of_ours() -> None:
    assert run(_leaving) == [Answer("")]
