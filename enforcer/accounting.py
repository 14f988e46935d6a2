# SPDX-License-Identifier: Apache-2.0
"""One row per container and GPU from every source of usage side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from enforcer.model import Container, ContainerUsage, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from enforcer.model import Limit, PodCgroup, Protection, Slice


class LedgerRow(Protocol):
    """What the ledger holds for one cgroup on one GPU. Bytes, but for ``refusals``."""

    @property
    def requested(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def page_tables(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def refusals(self) -> int: ...
    @property
    def empty(self) -> bool: ...


def container_usage(
    limits: Iterable[Limit],
    owners: Mapping[int, Container | PodCgroup],
    slices: Iterable[Slice],
    ledger: Mapping[tuple[int, int], LedgerRow] | None,
    charged: Mapping[tuple[str, str], int],
    protections: Mapping[tuple[int, int], Protection],
) -> list[ContainerUsage]:
    """A row for every limit, in its order: the pods' own rows have an empty container name.

    ``owners`` are the cgroups by id, ``ledger`` the usage by ``Limit.key`` (None: no ledger, and
    then its fields are unknown), ``charged`` is ``dmem.current`` by (cgroup path, BDF). A cgroup
    the ledger has no entry for has used nothing.
    """
    pods = {one.pod_uid: one for one in slices}
    rows = []
    for limit in limits:
        owner = owners[limit.cgroup_id]
        uid, name = _identity(owner)
        one = pods[uid]
        usage = _usage(ledger, limit.key, charged.get((limit.path, limit.bdf)))
        protection = protections.get(limit.key)
        rows.append(
            ContainerUsage(
                namespace=one.namespace,
                pod=one.pod,
                pod_uid=uid,
                container=name,
                cgroup=limit.path,
                bdf=limit.bdf,
                limit=limit.vram_bytes,
                usage=usage,
                layers=() if protection is None else protection.layers,
            )
        )
    return rows


def _identity(owner: Container | PodCgroup) -> tuple[str, str]:
    if isinstance(owner, Container):
        return owner.pod.uid, owner.name or owner.id
    return owner.uid, ""


def _usage(
    ledger: Mapping[tuple[int, int], LedgerRow] | None, key: tuple[int, int], charged: int | None
) -> Usage:
    if ledger is None:
        return Usage(dmem_current=charged)
    row = ledger.get(key)
    if row is None:
        return Usage(0, 0, 0, 0, 0, charged)
    return Usage(
        row.requested, row.resident, row.page_tables, row.peak, row.refusals, dmem_current=charged
    )
