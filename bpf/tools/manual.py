# SPDX-License-Identifier: Apache-2.0
"""The help of a tool as a page of a manual: what it does, options, an example, what it misses."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Final

from bpf.tools.scope import add_filters

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOCK: Final = "12:00:00"
CONTAINER: Final = "0123456789ab"
GPU: Final = "0000:c1:00.0"
PID: Final = 1234
CGROUP: Final = f"cri-containerd-{CONTAINER:0<64}.scope"
"""All of examples."""
_WIDTH: Final = 79


def manual(
    tool: str, about: str, options: str, shown: Iterable[str], unseen: str, *, gpu: bool = True
) -> argparse.ArgumentParser:
    """The command line of a tool, with the filters that all have (``gpu``: and that one).

    ``options`` and ``shown`` are the example: what it is called with, and the lines it prints.
    ``unseen`` ends the sentence "It does not see".
    """
    example = [f"# ringfence trace {tool} {options}".rstrip(), *shown]
    limits = textwrap.fill(f"It does not see {unseen}", _WIDTH)
    made = argparse.ArgumentParser(
        prog=tool,
        description=textwrap.fill(about, _WIDTH),
        epilog="\n".join(["example:", *example, "", limits]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_filters(made, gpu=gpu)
    return made
