# SPDX-License-Identifier: Apache-2.0
"""The options of the device plugin: by flag, by environment, or in one YAML file.

All three set the same options under the same names and are checked by the same rules:
``--split-count``, ``RINGFENCE_SPLIT_COUNT`` and the key ``split-count``. A flag wins over the
environment, the environment over the file. A mistake in any of them ends the start, with all the
others that were found.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deviceplugin.preferred import BINPACK, SPREAD
from deviceplugin.terms import COMPUTE_PARTITIONS, OPERATING_MODES, Terms
from enforcer.host.sockets import socket_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXPORTER = "/var/lib/amd-metrics-exporter/amdgpu_device_metrics_exporter_grpc.socket"

POD_RESOURCES = "pod-resources/kubelet.sock"
"""Below kubelet's root directory, the one thing of ours that moves with it."""
LONGEST_SOCKET = "/ringfence-01234567.sock"
"""Where device plugins register; it is ours (``registration``)."""

_BDF = re.compile(r"([0-9a-f]{4,8}):[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CARD = re.compile(r"card\d{1,4}", re.ASCII)
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


class OptionsError(Exception):
    """What is wrong with the options, one line for each mistake."""


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line, the environment and the file that either names.

    Raises OptionsError; what is wrong with a flag ends the process, as argparse does.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--config", default=os.environ.get(_variable("config")))
    path = early.parse_known_args(argv)[0].config
    file = _read_file(Path(path)) if path else {}
    known = {name: action.type for name, action in _actions(parser()).items()}
    problems = []
    texts: dict[str, str] = {}
    for source, entries in (
        (f"{path}: ", file),
        ("", {name: os.environ.get(_variable(name)) for name in known}),
    ):
        for name, value in entries.items():
            if value is None:
                continue
            place = f"{source}{name}" if source else _variable(name)
            if name not in known or (source and name == "config"):
                problems.append(f"{place}: expected one of {', '.join(sorted(known))}")
                continue
            try:
                texts[name] = _text(value)
                _check(known[name], texts[name])
            except (argparse.ArgumentTypeError, ValueError) as error:
                problems.append(f"{place}: {error}")
    if problems:
        raise OptionsError("; ".join(problems))
    return parser(texts).parse_args(argv)


def terms(options: argparse.Namespace) -> Terms:
    """How the options say that GPUs are offered."""
    return Terms(
        split_count=options.split_count,
        whole=options.scheduler == "none",
        operating_mode=options.operating_mode,
        compute_partition=options.compute_partition,
        mixed=options.resource_naming == "mixed",
        memory_scaling=options.memory_scaling,
        exclude=options.exclude_gpus,
    )


def parser(settings: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """The flags; ``settings`` are what environment and file say (default: the environment)."""
    if settings is None:
        settings = {
            name.removeprefix("RINGFENCE_").replace("_", "-").lower(): value
            for name, value in os.environ.items()
            if name.startswith("RINGFENCE_")
        }
    options = argparse.ArgumentParser(
        prog="ringfence device-plugin",
        description="Offer this node's AMD GPUs to kubelet and give out what a scheduler decided.",
        epilog="Each option can be set by an environment variable, --state-dir by "
        "RINGFENCE_STATE_DIR, or in the file of --config, as the key state-dir. NODE_NAME is the "
        "node's name too.",
    )

    def add(name: str, parse: Callable[[str], object], default: str | None, text: str) -> None:
        shown = f" (default: {default or 'none'})" if default is not None else ""
        options.add_argument(
            f"--{name}",
            type=parse,
            default=settings.get(name, default),
            metavar=getattr(parse, "metavar", "TEXT"),
            help=f"{text}{shown}",
        )

    def switch(name: str, text: str) -> None:
        options.add_argument(
            f"--{name}",
            type=_flag,
            nargs="?",
            const=True,
            default=settings.get(name, "false"),
            metavar="BOOL",
            help=text,
        )

    add("config", _path, None, "a YAML file with options")
    options.add_argument(
        "--node-name",
        type=str,
        default=settings.get("node-name", os.environ.get("NODE_NAME")),
        metavar="NAME",
        help="name of this node in the cluster (default: $NODE_NAME)",
    )
    add(
        "device-plugins-dir",
        _device_plugins_dir,
        "/var/lib/kubelet/device-plugins",
        "where kubelet has device plugins register; its --root-dir does not move it",
    )
    add(
        "kubelet-dir",
        _kubelet_dir,
        "/var/lib/kubelet",
        f"kubelet's --root-dir, where its {POD_RESOURCES} is",
    )
    add("state-dir", _path, "/var/lib/ringfence", "where the checkpoint is written")
    add("socket", _socket, "/run/ringfence/enforcer.sock", "the enforcer's socket")
    add(
        "hook-dir",
        _path,
        "/var/lib/ringfence-hook/current",
        "the host's directory with the hook, mounted into slices when both its files are there",
    )
    add(
        "hip-log-level",
        _log_level,
        "0",
        "what the hook tells in a slice's processes: 1 errors to 4 everything; 0: its own default",
    )
    add("sys", _path, "/sys", "where sysfs is mounted")
    add("dev", _path, "/dev", "where the host's /dev is mounted")
    add("heartbeat", _path, None, "where to write how it goes, for `ringfence health`")
    add("cdi-dir", _path, None, "where to write a CDI spec; GPUs are then given by CDI name")
    add("kubeconfig", _path, None, "how to reach the API server (default: in the cluster)")
    add(
        "scheduler",
        _one_of("hami", "none"),
        "hami",
        "hami: its annotations say what each container gets; none: kubelet hands out whole GPUs",
    )
    add(
        "split-count",
        _split_count,
        "0",
        "containers that may share one GPU; 0: 2 on RDNA4, else 10",
    )
    add(
        "operating-mode",
        _one_of(*OPERATING_MODES),
        "cu",
        "cu: GPUs are shared by compute units; partition: GPUs in a compute partition mode are "
        "handed out by partition; the node's annotation hami.io/amd-operating-mode wins",
    )
    add(
        "compute-partition",
        _one_of("", *COMPUTE_PARTITIONS),
        "",
        "the compute partition mode GPUs should be in; one that is not is reported, never switched",
    )
    add(
        "resource-naming",
        _one_of("single", "mixed"),
        "single",
        "single: everything is amd.com/gpu; mixed: a partition is amd.com/<compute>_<memory>",
    )
    add("exclude-gpus", _gpus, "", "PCI addresses or cardN of GPUs that are not offered, by comma")
    add(
        "memory-scaling",
        _scaling,
        "1",
        "how many times the VRAM of a shared GPU is offered; above 1 slices are oversubscribed",
    )
    add(
        "allocator-policy",
        _one_of(BINPACK, SPREAD, "besteffort"),
        BINPACK,
        "of GPUs that fit equally, take the fullest (binpack, besteffort) or emptiest (spread)",
    )
    add(
        "metrics-exporter",
        _socket,
        EXPORTER,
        "socket of AMD's Device Metrics Exporter: a GPU it calls unhealthy is",
    )
    add(
        "health-pulse",
        _seconds,
        "10",
        "seconds between two looks at the GPUs and their health",
    )
    switch("report-node-capacity", "publish the sums of amd.com/gpumem and gpucores on the node")
    switch("fail-open", "start containers whose limit nothing can hold, instead of refusing them")
    add("log-level", _one_of("debug", "info", "warning", "error"), "info", "what to log")
    return options


def _actions(options: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        flag.removeprefix("--"): action
        for action in options._actions
        for flag in action.option_strings
        if action.type is not None
    }


def _variable(name: str) -> str:
    return f"RINGFENCE_{name.replace('-', '_').upper()}"


def _read_file(path: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - most nodes are configured by flags alone

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionsError(
            f"{path}: expected YAML, found: {' '.join(str(error).split())}"
        ) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise OptionsError(f"{path}: expected keys and values, found {type(document).__name__}")
    return {str(name): value for name, value in document.items() if value is not None}


def _text(value: object) -> str:
    """A value of the file as the flag would spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise ValueError(f"[{index}]: expected text, found {item!r}")
        return ",".join(value)
    raise ValueError(f"expected one value or a list, found {type(value).__name__}")


def _check(parse: Any, text: str) -> None:
    parse(text)


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            names = ", ".join(name or '""' for name in known)
            raise argparse.ArgumentTypeError(f"expected one of {names}, found {text!r}")
        return text

    parse.metavar = "|".join(filter(None, known))  # type: ignore[attr-defined]
    return parse


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found none")
    return Path(text)


def _socket(text: str) -> Path:
    return socket_path(text)


def _device_plugins_dir(text: str) -> Path:
    return socket_path(text, LONGEST_SOCKET)


def _kubelet_dir(text: str) -> Path:
    return socket_path(text, f"/{POD_RESOURCES}")


def _flag(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return _FLAGS[text.lower()]


def _split_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"expected 0 to 1000, found {text!r}")
    return int(text)


def _log_level(text: str) -> int:
    if text not in {"0", "1", "2", "3", "4"}:
        raise argparse.ArgumentTypeError(f"expected 0 to 4, found {text!r}")
    return int(text)


def _scaling(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 100:
        raise argparse.ArgumentTypeError(f"expected 1 to 100, found {text!r}")
    return factor


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected 0.1 to 3600, found {text!r}")
    return seconds


def _gpus(text: str) -> frozenset[str]:
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for index, name in enumerate(names):
        if not (_BDF.fullmatch(name) or _CARD.fullmatch(name)):
            raise argparse.ArgumentTypeError(
                f"[{index}]: expected a PCI address (0000:05:00.0) or cardN, found {name!r}"
            )
    return frozenset(names)


for _parse in (_path, _socket, _device_plugins_dir, _kubelet_dir):
    _parse.metavar = "PATH"  # type: ignore[attr-defined]
_split_count.metavar = "N"  # type: ignore[attr-defined]
_log_level.metavar = "LEVEL"  # type: ignore[attr-defined]
_scaling.metavar = "FACTOR"  # type: ignore[attr-defined]
_seconds.metavar = "SECONDS"  # type: ignore[attr-defined]
_gpus.metavar = "GPUS"  # type: ignore[attr-defined]
