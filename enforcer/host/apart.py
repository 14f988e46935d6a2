# SPDX-License-Identifier: Apache-2.0
"""Does apart from this process what could hang it, fill its memory, or leave a mark on it.

Each question is answered by a process of its own. It is forked by another one that was forked
before this process had a thread: later a fork is not safe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MESSAGE_BYTES = 65536
_MOST_DESCRIPTORS = (1 << 31) - 1

_Question = tuple[str, str]
"""(kind, what it is about)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question."""

    text: str
    silent: bool = False
    """True: there is no answer, and ``text`` says why."""


class Apart:
    """The process that questions are put to. Make it before any thread; safe to use from many.

    It ends with this one.
    """

    def __init__(self, answer: Mapping[str, Callable[[str], str]]) -> None:
        """``answer`` has a function for each kind of question. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            _serve(theirs, answer)
        theirs.close()
        self._socket = ours
        self._lock = threading.Lock()
        self._asked = 0
        self._hanging: dict[_Question, int] = {}

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._pid

    def ask(self, kind: str, about: Sequence[str], seconds: float) -> list[Answer]:
        """An answer for each, within ``seconds``.

        A question whose last answer has not come yet is not put again.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            numbers: dict[int, str] = {}
            answers: dict[str, Answer] = {}
            self._receive(0)
            for one in about:
                refused = self._put((kind, one))
                if refused is None:
                    numbers[self._asked] = one
                else:
                    answers[one] = Answer(refused, silent=True)
            while set(numbers.values()) - answers.keys():
                came = self._receive(max(0.0, deadline - time.monotonic()))
                answers.update((numbers[one], Answer(text)) for one, text in came if one in numbers)
                if not came:
                    break
            none = Answer(f"does not answer within {seconds:.1f} s", silent=True)
            return [answers.get(one, none) for one in about]

    def close(self) -> None:
        """End the process; answers that hang end when the kernel lets them."""
        self._socket.close()
        os.waitpid(self._pid, 0)

    def _put(self, question: _Question) -> str | None:
        """Put a question; why it could not be."""
        if question in self._hanging:
            return "does not answer: the last try still hangs"
        self._asked += 1
        try:
            self._socket.send(json.dumps([self._asked, *question]).encode())
        except OSError as error:
            return f"cannot be asked: {error.strerror}"
        self._hanging[question] = self._asked
        return None

    def _receive(self, seconds: float) -> list[tuple[int, str]]:
        """What is there within ``seconds``: (number of the question, answer)."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return []
        answers: list[tuple[int, str]] = []
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return answers
            except OSError:
                message = b""
            if not message:
                # Its process is gone, and with it every answer.
                self._hanging.clear()
                return answers
            number, text = json.loads(message)
            self._hanging = {one: asked for one, asked in self._hanging.items() if asked != number}
            answers.append((number, text))


def _serve(asked: socket.socket, answer: Mapping[str, Callable[[str], str]]) -> NoReturn:
    """Fork a process for each question until the asking process is gone."""
    try:
        # One that hangs must hold on to nothing of the asking process, its lock above all.
        os.closerange(3, asked.fileno())
        os.closerange(asked.fileno() + 1, _MOST_DESCRIPTORS)
        # The asking one is told to end by its own; children are reaped by the kernel.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while message := asked.recv(_MESSAGE_BYTES):
            question, kind, about = json.loads(message)
            if os.fork() == 0:
                asked.send(json.dumps([question, answer[kind](about)]).encode())
                break
    finally:
        # No handler of the process this is a copy of may run.
        os._exit(0)
