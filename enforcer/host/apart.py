# SPDX-License-Identifier: Apache-2.0
"""Does apart from this process what could hang it, fill its memory, or leave a mark on it.

Each question is answered by a process of its own. It is forked by another one that was forked
before this process had a thread: later a fork is not safe.
"""

from __future__ import annotations

import errno
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
_MOST_ANSWER_BYTES = 16384
_MOST_DESCRIPTORS = (1 << 31) - 1
_EXIT_UNSENT = 1

_Question = tuple[str, str]
"""(kind, what it is about)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question."""

    text: str
    silent: bool = False
    """True: there is no answer, and ``text`` says why."""
    failed: bool = False
    """True: there is none for a reason on our side, and nothing of what it is about."""


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
        # Held for no longer than it takes to note something down.
        self._turn = threading.Condition()
        self._receiving = False
        self._asked = 0
        self._hanging: dict[_Question, int] = {}
        self._waiting: list[dict[int, Answer | None]] = []
        """What each who waits has got, by number; None has not come."""

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._pid

    def ask(self, kind: str, about: Sequence[str], seconds: float) -> list[Answer]:
        """An answer for each, within ``seconds``, whoever else waits for one.

        One question is put once, and whoever asks it meanwhile has the same answer; one whose last
        answer has not come in the time that somebody had for it is not put again.
        """
        deadline = time.monotonic() + seconds
        came: dict[int, Answer | None] = {}
        with self._turn:
            self._waiting.append(came)
            try:
                put = [self._put((kind, one), came) for one in about]
                while None in came.values():
                    left = deadline - time.monotonic()
                    if not self._wait(max(0.0, left)) and left <= 0:
                        break
            finally:
                self._waiting = [one for one in self._waiting if one is not came]
        none = Answer(f"does not answer within {seconds:.1f} s", silent=True)
        return [one if isinstance(one, Answer) else came[one] or none for one in put]

    def wait(self) -> str:
        """Wait until the process has ended, and say how. For a thread that may wait for ever.

        Nothing can be asked from then on, and no new one is made: this process has threads by now.
        """
        ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            return f"by signal {ended.si_status}"
        return "by itself"

    def close(self) -> None:
        """End the process; answers that hang end when the kernel lets them."""
        self._socket.close()
        os.waitpid(self._pid, 0)

    def _put(self, question: _Question, came: dict[int, Answer | None]) -> int | Answer:
        """Put a question; its number, or why it has none."""
        self._note(self._receive())
        number = self._hanging.get(question)
        if number is not None:
            if not any(number in one for one in self._waiting):
                return Answer("does not answer: the last try still hangs", silent=True)
            came[number] = None
            return number
        self._asked += 1
        message = json.dumps([self._asked, *question]).encode()
        try:
            if len(message) > _MESSAGE_BYTES:
                raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
            self._socket.send(message, socket.MSG_DONTWAIT)
        except OSError as error:
            return Answer(f"cannot be asked: {error.strerror}", silent=True, failed=True)
        self._hanging[question] = self._asked
        came[self._asked] = None
        return self._asked

    def _wait(self, seconds: float) -> bool:
        """Wait until something has come for anyone; one of those who wait receives for all."""
        if self._receiving:
            return self._turn.wait(seconds)
        self._receiving = True
        self._turn.release()
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            ready = bool(poll.poll(seconds * 1000))
        finally:
            self._turn.acquire()
            self._receiving = False
            # Somebody else receives from here on, or finds what has come.
            self._turn.notify_all()
        self._note(self._receive())
        return ready

    def _note(self, answers: Mapping[int, Answer] | None) -> None:
        if answers is None:
            # Its process is gone, and with it every answer.
            gone = Answer("cannot be asked: its process is gone", silent=True, failed=True)
            answers = dict.fromkeys(self._hanging.values(), gone)
        self._hanging = {one: asked for one, asked in self._hanging.items() if asked not in answers}
        for came in self._waiting:
            came.update((number, answers[number]) for number in came.keys() & answers.keys())

    def _receive(self) -> dict[int, Answer] | None:
        """What is there, by number; None: the process is gone."""
        answers: dict[int, Answer] = {}
        while True:
            try:
                message = self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return answers
            except OSError:
                message = b""
            if not message:
                return None
            try:
                number, text, failed = json.loads(message)
            except (ValueError, TypeError):
                continue
            answers[number] = Answer(text, silent=failed, failed=failed)


def _serve(asked: socket.socket, answer: Mapping[str, Callable[[str], str]]) -> NoReturn:
    """Fork a process for each question until the asking process is gone."""
    try:
        # One that hangs must hold on to nothing of the asking process, its lock above all.
        os.closerange(3, asked.fileno())
        os.closerange(asked.fileno() + 1, _MOST_DESCRIPTORS)
        # The asking one is told to end by its own.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        ended, wake = os.pipe()
        for descriptor in (ended, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(asked, select.POLLIN)
        poll.register(ended, select.POLLIN)
        children: dict[int, int] = {}
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if ended in ready:
                os.read(ended, _MESSAGE_BYTES)
                _reap(asked, children)
            if asked.fileno() in ready:
                message = asked.recv(_MESSAGE_BYTES)
                if not message:
                    break
                _fork(asked, message, answer, children)
    finally:
        # No handler of the process this is a copy of may run.
        os._exit(0)


def _fork(
    asked: socket.socket,
    message: bytes,
    answer: Mapping[str, Callable[[str], str]],
    children: dict[int, int],
) -> None:
    number, kind, about = json.loads(message)
    try:
        pid = os.fork()
    except OSError as error:
        _send(asked, number, f"cannot be asked: no process for it: {error.strerror}", failed=True)
        return
    if pid:
        children[pid] = number
        return
    status = _EXIT_UNSENT
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            text, failed = answer[kind](about), False
        except Exception as error:
            text, failed = f"ended with {type(error).__name__}: {str(error)!a}", True
        _send(asked, number, text, failed=failed)
        status = 0
    finally:
        os._exit(status)


def _reap(asked: socket.socket, children: dict[int, int]) -> None:
    """Answer for the processes that ended without."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        number = children.pop(pid)
        if status:
            how = f", by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
            _send(asked, number, f"ended without an answer{how}", failed=True)


def _send(asked: socket.socket, number: int, text: str, *, failed: bool) -> None:
    message = json.dumps([number, text, failed]).encode()
    if len(message) > _MOST_ANSWER_BYTES:
        what = f"an answer that is too large, of {len(message)} bytes"
        message = json.dumps([number, what, True]).encode()
    asked.send(message)
