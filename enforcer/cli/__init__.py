# SPDX-License-Identifier: Apache-2.0
"""The command ``ringfence``. Each subcommand is imported when it is called for."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Name -> (module with main(argv) -> exit status, what it does).
_COMMANDS: Final = (
    ("inventory", "enforcer.cli.inventory", "list the GPUs of this node"),
    ("top", "enforcer.cli.top", "show every GPU and every container on it, live"),
    ("explain", "enforcer.cli.explain", "say what holds a pod's containers, and what does not"),
    ("doctor", "enforcer.cli.doctor", "look for what is wrong with this node"),
    ("enforcer", "enforcer.daemon", "hold every container to its slice (runs until stopped)"),
    ("device-plugin", "deviceplugin.main", "hand out slices to kubelet (runs until stopped)"),
    ("health", "enforcer.cli.health", "say whether a daemon of this container is ready"),
    ("trace", "enforcer.cli.trace", "watch allocations and refusals as they happen"),
    ("demo", "enforcer.cli.demo", "show the limits holding on a simulated node"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand with the arguments after its name; the exit status."""
    commands = [(name, module, text) for name, module, text in _COMMANDS if _exists(module)]
    parser = argparse.ArgumentParser(
        prog="ringfence",
        description="Kubernetes containers share AMD GPUs, and each is held to its share.",
        epilog="commands:\n" + "".join(f"  {name:<15}{text}\n" for name, _, text in commands),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    parser.add_argument("command", choices=[name for name, _, _ in commands], metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(argv)
    module = next(module for name, module, _ in commands if name == options.command)
    run: Callable[[Sequence[str]], int] = import_module(module).main
    try:
        return run(options.arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output left; nothing more can be said to it.
        sys.stderr.close()
        return 141


class _Version(argparse.Action):
    """Half of what a probe costs would be the import for an answer that it did not ask for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        sys.stdout.write(f"{version('ringfence')}\n")
        parser.exit()


def _exists(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None
