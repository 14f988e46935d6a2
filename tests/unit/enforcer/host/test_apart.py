# SPDX-License-Identifier: Apache-2.0
"""Each test has a process of its own: this one has threads, and must not fork."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from enforcer.host.apart import Answer, Apart


def _answer(about: str) -> str:
    match about:
        case "hangs":
            time.sleep(60)
        case "dies":
            os._exit(1)
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


def _dying(apart: Apart) -> list[Answer]:
    return [*apart.ask("one", ["dies"], 1), *apart.ask("one", ["a"], 30)]


def test_a_process_that_dies_is_silent_and_no_other_is() -> None:
    dies, other = run(_dying)
    assert dies.silent
    assert other == Answer("seen a")


def _orphaned(apart: Apart) -> list[Answer]:
    os.kill(apart.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        found = apart.ask("one", ["a"], 0.5)
        if "cannot be asked" in found[0].text or time.monotonic() > deadline:
            return found


def test_without_its_process_nothing_can_be_asked() -> None:
    (answer,) = run(_orphaned)
    assert answer.silent
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
