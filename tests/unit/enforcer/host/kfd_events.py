# SPDX-License-Identifier: Apache-2.0
"""KFD's side of SMI events, as kfd_smi_events.c has it, over sockets."""

import errno
import socket
import struct


class Driver:
    """Stands behind ``fcntl.ioctl`` of ``/dev/kfd``; it closes its own ends only."""

    def __init__(self, *, at_once: int = 8192) -> None:
        """``at_once``: bytes that one read gets."""
        self._clients: list[tuple[int, socket.socket]] = []
        self._at_once = at_once
        self.unknown: set[int] = set()
        """The GPUs that came later than the process."""

    def ioctl(self, _kfd: int, request: int, arguments: bytes) -> bytes:
        assert request == 0xC0084B1F
        kfd_id, _ = struct.unpack("=II", arguments)
        if kfd_id in self.unknown:
            raise OSError(errno.EINVAL, "Invalid argument")
        kind = socket.SOCK_STREAM if self._at_once > 8 else socket.SOCK_SEQPACKET
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        ours.setblocking(False)
        self._clients.append((kfd_id, ours))
        return struct.pack("=II", kfd_id, theirs.detach())

    def masks(self) -> list[tuple[int, int]]:
        """(KFD id, mask) of each client, in the order they came."""
        return [(kfd_id, self._mask(ours)) for kfd_id, ours in self._clients]

    def close(self) -> None:
        for _, ours in self._clients:
            ours.close()

    def fault(self, kfd_id: int, pid: int, task: bytes, times: int = 1) -> None:
        """Faults of a task that calls itself so, in at most 15 bytes."""
        assert len(task) <= 15
        self._tell(kfd_id, 1, b"%x:%s\n" % (pid, task), times)

    def reset(self, kfd_id: int, number: int, cause: str, *, ended: bool) -> None:
        self._tell(kfd_id, 4 if ended else 3, f"{number:x} {cause}\n".encode())

    def _tell(self, kfd_id: int, event: int, text: bytes, times: int = 1) -> None:
        line = (b"%x %s" % (event, text)) * times
        for whose, ours in self._clients:
            if whose == kfd_id and self._mask(ours) & 1 << (event - 1):
                for at in range(0, len(line), self._at_once):
                    ours.send(line[at : at + self._at_once])

    def _mask(self, ours: socket.socket) -> int:
        try:
            data = ours.recv(8, socket.MSG_PEEK)
        except BlockingIOError:
            return 0
        return int(struct.unpack("=Q", data)[0])
