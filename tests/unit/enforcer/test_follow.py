# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are listened to; that they are heard is tried in the VM."""

from dataclasses import replace

from enforcer.follow import to_listen_to
from enforcer.model import Gpu

RADEON = Gpu("0000:03:00.0", 7, 1, 128, "", 1 << 30, 96, 110000)
INSTINCT = replace(RADEON, bdf="0000:83:00.0", kfd_id=8, compute_partition="spx")


def test_gpus_that_cannot_be_partitioned_are_listened_to() -> None:
    assert to_listen_to([RADEON], always=False) == {7}


def test_nobody_is_where_one_can_be_partitioned() -> None:
    assert to_listen_to([RADEON, INSTINCT], always=False) == frozenset()


def test_all_are_when_asked_for() -> None:
    assert to_listen_to([RADEON, INSTINCT], always=True) == {7, 8}


def test_without_gpus_there_is_nothing_to_listen_to() -> None:
    assert to_listen_to([], always=True) == frozenset()
