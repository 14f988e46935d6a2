# SPDX-License-Identifier: Apache-2.0
"""Holds the simulation driver to the real one: same functions, same prototypes, same members.

Compares type information (BTF) of the simulated amdgpu.ko with that of a distribution's own, for
the names in attach_points.toml. Prints each difference; status 0: none, 1: some, 2: cannot compare.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.testbed.btf import BtfError, read_kernel, read_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

POINTS = Path(__file__).parent / "attach_points.toml"


class Types(Protocol):
    """What a comparison asks of a module's type information."""

    def prototype(self, function: str) -> str | None:
        """The function's type as C text; None if it cannot be attached to."""

    def members(self, name: str) -> Mapping[str, str] | None:
        """The struct's members and their types; None if there is no such struct."""


@dataclass(frozen=True, slots=True)
class Points:
    """Names BPF programs rely on. Optional ones: both modules have them, or neither."""

    functions: tuple[str, ...]
    optional_functions: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]]
    optional_members: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Difference:
    """One name that is not the same in both."""

    name: str
    sim: str
    stock: str

    def __str__(self) -> str:
        return f"{self.name}\n    simulated: {self.sim}\n    real:      {self.stock}"


class PointsError(ValueError):
    """The list of attach points cannot be used; one line naming it."""


def read_points(path: Path) -> Points:
    """The list in ``path``. Raises PointsError, OSError."""
    try:
        data = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise PointsError(f"{path}: not TOML: {error}") from error
    known = {"functions", "optional", "members", "optional_members"}
    if unknown := sorted(set(data) - known):
        raise PointsError(f"{path}: expected {', '.join(sorted(known))}, found {unknown[0]}")
    return Points(
        _names(path, "functions", data.get("functions", [])),
        _names(path, "optional", data.get("optional", [])),
        _table(path, "members", data.get("members", {})),
        _table(path, "optional_members", data.get("optional_members", {})),
    )


def compare(points: Points, sim: Types, stock: Types) -> Iterator[Difference]:
    """Every difference, in the order of the list."""
    for name in points.functions:
        yield from _differ(f"{name}()", sim.prototype(name), stock.prototype(name), needed=True)
    for name in points.optional_functions:
        yield from _differ(f"{name}()", sim.prototype(name), stock.prototype(name), needed=False)
    for needed, table in ((True, points.members), (False, points.optional_members)):
        for struct, names in table.items():
            ours, theirs = sim.members(struct), stock.members(struct)
            for name in names:
                yield from _differ(
                    f"struct {struct}.{name}",
                    None if ours is None else ours.get(name),
                    None if theirs is None else theirs.get(name),
                    needed=needed,
                )


def _differ(name: str, sim: str | None, stock: str | None, *, needed: bool) -> Iterator[Difference]:
    if sim != stock or (needed and sim is None):
        yield Difference(name, sim or "absent", stock or "absent")


def _names(path: Path, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise PointsError(f"{path}: {key}: expected a list of names, found {value!r}")
    return tuple(value)


def _table(path: Path, key: str, value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise PointsError(f"{path}: {key}: expected struct = [members], found {value!r}")
    return {name: _names(path, f"{key}.{name}", members) for name, members in value.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; the status the module's docstring promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, what in (("sim", "simulated"), ("stock", "real")):
        parser.add_argument(f"--{name}", type=Path, required=True, help=f"the {what} amdgpu.ko")
        parser.add_argument(
            f"--{name}-vmlinux", type=Path, required=True, help=f"vmlinux or vmlinuz of the {what}"
        )
    parser.add_argument("--points", type=Path, default=POINTS, help="default: %(default)s")
    args = parser.parse_args(argv)
    try:
        points = read_points(args.points)
        sim = read_module(args.sim, read_kernel(args.sim_vmlinux))
        stock = read_module(args.stock, read_kernel(args.stock_vmlinux))
        found = list(compare(points, sim, stock))
    except (BtfError, PointsError, OSError) as error:
        print(f"btf_compare: {error}", file=sys.stderr)
        return 2
    for difference in found:
        print(difference)
    checked = len(points.functions) + len(points.optional_functions)
    held = sum(map(len, (*points.members.values(), *points.optional_members.values())))
    print(f"{checked} functions and {held} members compared, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
