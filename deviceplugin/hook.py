# SPDX-License-Identifier: Apache-2.0
"""The in-process hook of slices: whether it is installed, and what makes a process load it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AUDITOR = "libringfence-audit.so"
TOOL = "libringfence-hsa.so"
IN_CONTAINER = PurePosixPath("/usr/local/ringfence")
TLS_TUNABLE = "glibc.rtld.optional_static_tls=4096"
"""Room for jemalloc's static TLS beside an auditor (glibc bug 31991)."""

_ELF = b"\x7fELF"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hook:
    """The hook in a directory of the host."""

    directory: Path
    log_level: int = 0
    """How much it tells: 1 errors to 4 everything; 0: as it does by itself."""

    def missing(self) -> tuple[str, ...]:
        """Which of its two objects are not there: with one alone it does not work."""
        return tuple(name for name in (AUDITOR, TOOL) if not _is_object(self.directory / name))

    def envs(self) -> Mapping[str, str]:
        """The variables that a container is given with it."""
        envs = self.needed_envs()
        return {**envs, "LIBHIP_LOG_LEVEL": str(self.log_level)} if self.log_level else envs

    def needed_envs(self) -> Mapping[str, str]:
        """Of these, the ones by which a process of the container loads it."""
        return {
            "LD_AUDIT": str(IN_CONTAINER / AUDITOR),
            "HSA_TOOLS_LIB": str(IN_CONTAINER / TOOL),
            "GLIBC_TUNABLES": TLS_TUNABLE,
            # Otherwise ROCr skips our tools library once a rocprofiler-sdk tool has registered.
            "HSA_TOOLS_ROCPROFILER_V1_TOOLS": "1",
        }


def _is_object(path: Path) -> bool:
    # Only of a regular file: anything else could keep whoever opens it waiting.
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


class Installed:
    """Looks whether the hook is there, and tells the log whenever that changed."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._missing: tuple[str, ...] | None = None

    def look(self) -> Hook | None:
        """The hook; None where it is not installed whole."""
        missing = self._hook.missing()
        if missing != self._missing:
            self._missing = missing
            if missing:
                # Half of it is a mistake; none at all may be meant.
                _log.log(
                    logging.WARNING if len(missing) == 1 else logging.INFO,
                    "hook: expected %s in %s, found no %s: slices go without it, and programs see "
                    "the memory of the whole GPU",
                    f"{AUDITOR} and {TOOL}",
                    self._hook.directory,
                    " and no ".join(missing),
                )
            else:
                _log.info("hook: slices get that of %s", self._hook.directory)
        return None if missing else self._hook
