# SPDX-License-Identifier: Apache-2.0
import time
from dataclasses import replace

import pytest

from bpf.decode import Counter, Event, LedgerUsage
from enforcer.model import Container, PodCgroup
from enforcer.overruns import Overruns
from enforcer.plan import KillCgroup

KEY = (101, 768)
POD = PodCgroup("uid-a", "poda", 100)
TRAIN = Container("c" * 64, POD, "poda/c", 101, "train")
OWNERS: dict[int, Container | PodCgroup] = {100: POD, 101: TRAIN}
SWITCHED = Event(
    time=50.0,
    pid=7,
    comm="python",
    cgroup=101,
    gpu=768,
    asked=8192,
    used=4096,
    limit=None,
    reason=Counter.SWITCHED_KILLED,
    nr=22,
)
ABOVE = {KEY: LedgerUsage(4097)}
LIMITS: dict[tuple[int, int], int | None] = {KEY: 4096}
KILL = KillCgroup("poda/c", 101)
POD_KEY = (100, 768)
BOTH_ABOVE = {KEY: LedgerUsage(4097), POD_KEY: LedgerUsage(4097)}
BOTH: dict[tuple[int, int], int | None] = {KEY: 4096, POD_KEY: 4096}


def alive(_: Container | PodCgroup) -> bool:
    return False


def ended(_: Container | PodCgroup) -> bool:
    return True


@pytest.mark.parametrize(
    "reason", [Counter.SWITCHED_KILLED, Counter.SWITCHED_SPARED, Counter.OVERRAN]
)
def test_a_container_above_its_limit_a_second_after_a_switch_is_killed_once(
    reason: Counter,
) -> None:
    overruns = Overruns(kill=True)
    overruns.add([replace(SWITCHED, reason=reason)])
    assert overruns.judge(50.9, ABOVE, LIMITS, OWNERS, alive) == ([], [])
    kills, (told,) = overruns.judge(51.0, ABOVE, LIMITS, OWNERS, alive)
    assert kills == [KILL]
    assert str(told) == ("above its limit after switched arguments (4097 of 4096 used), killed")
    assert told.reason.name == "OVERRUN_KILLED"
    assert overruns.judge(60.0, ABOVE, LIMITS, OWNERS, alive) == ([], [])


def test_the_next_look_is_when_a_judgement_is_due() -> None:
    overruns = Overruns(kill=True)
    assert overruns.wait(2.0) == 2.0
    now = time.monotonic()
    overruns.add([replace(SWITCHED, time=now)])
    assert 0.0 < overruns.wait(2.0) <= 1.0
    overruns.add([replace(SWITCHED, gpu=1024, time=now - 30.0)])
    assert overruns.wait(2.0) == 0.2
    assert overruns.wait(0.1) == 0.1


def test_who_goes_on_switching_is_given_no_more_time() -> None:
    overruns = Overruns(kill=True)
    for tenths in range(10):
        overruns.add([replace(SWITCHED, time=50.0 + tenths / 10)])
    assert overruns.judge(51.0, ABOVE, LIMITS, OWNERS, alive)[0] == [KILL]


@pytest.mark.parametrize(
    ("ledger", "limits", "owners"),
    [
        ({KEY: LedgerUsage(4096)}, LIMITS, OWNERS),
        ({}, LIMITS, OWNERS),
        (ABOVE, {KEY: None}, OWNERS),
        (ABOVE, {}, OWNERS),
        (ABOVE, {}, {}),
    ],
    ids=["at the limit", "nothing held", "whole GPU", "no limit", "container gone"],
)
def test_who_is_within_its_limit_lives(
    ledger: dict[tuple[int, int], LedgerUsage],
    limits: dict[tuple[int, int], int | None],
    owners: dict[int, Container | PodCgroup],
) -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(60.0, ledger, limits, owners, alive) == ([], [])


def test_a_refusal_is_no_reason_to_kill_whatever_the_ledger_says() -> None:
    overruns = Overruns(kill=True)
    overruns.add([replace(SWITCHED, reason=Counter.REFUSED_LIMIT)])
    assert overruns.judge(60.0, ABOVE, LIMITS, OWNERS, alive) == ([], [])


def test_it_can_be_only_reported() -> None:
    overruns = Overruns(kill=False)
    overruns.add([SWITCHED])
    kills, (told,) = overruns.judge(60.0, ABOVE, LIMITS, OWNERS, alive)
    assert kills == []
    assert "reported only" in str(told)
    assert told.reason.name == "OVERRUN_SPARED"


def test_a_container_that_the_walk_did_not_find_is_judged_when_it_is_found() -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, ABOVE, LIMITS, {}, alive) == ([], [])
    assert overruns.judge(51.5, ABOVE, LIMITS, OWNERS, alive) == ([], [])
    assert overruns.judge(52.0, ABOVE, LIMITS, OWNERS, alive)[0] == [KILL]


def test_who_was_told_of_is_told_again_only_once_it_was_below_its_limit() -> None:
    overruns = Overruns(kill=False)
    overruns.add_untold(50.0, {101}, ABOVE, LIMITS, OWNERS)
    assert len(overruns.judge(51.0, ABOVE, LIMITS, OWNERS, alive)[1]) == 1
    for now in (51.2, 52.2, 53.2):
        overruns.add_untold(now, {101}, ABOVE, LIMITS, OWNERS)
        assert overruns.judge(now + 0.9, ABOVE, LIMITS, OWNERS, alive) == ([], [])
    below = {KEY: LedgerUsage(4096)}
    assert overruns.judge(60.0, below, LIMITS, OWNERS, alive) == ([], [])
    overruns.add_untold(61.0, {101}, ABOVE, LIMITS, OWNERS)
    assert len(overruns.judge(62.0, ABOVE, LIMITS, OWNERS, alive)[1]) == 1


def test_who_could_not_be_ended_is_so_later() -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, ABOVE, LIMITS, OWNERS, alive)[0] == [KILL]
    overruns.lives_on(KILL.cgroup_id, 51.0)
    assert overruns.judge(80.9, ABOVE, LIMITS, OWNERS, alive) == ([], [])
    # It was told once.
    assert overruns.judge(81.0, ABOVE, LIMITS, OWNERS, alive) == ([KILL], [])
    assert overruns.judge(120.0, ABOVE, LIMITS, OWNERS, alive) == ([], [])


def test_a_pod_that_is_above_its_limit_when_its_container_has_ended_is_ended_too() -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, OWNERS, alive)[0] == [KILL]
    assert overruns.judge(52.0, BOTH_ABOVE, BOTH, OWNERS, alive) == ([], [])
    assert overruns.judge(53.0, BOTH_ABOVE, BOTH, OWNERS, ended) == ([], [])
    assert overruns.judge(53.2, BOTH_ABOVE, BOTH, {100: POD}, ended) == ([], [])
    kills, (told,) = overruns.judge(54.2, BOTH_ABOVE, BOTH, {100: POD}, ended)
    assert kills == [KillCgroup("poda", 100)]
    assert (told.cgroup, told.used, told.killed) == (100, 4097, True)
    assert overruns.judge(60.0, BOTH_ABOVE, BOTH, {100: POD}, ended) == ([], [])


def test_a_pod_is_not_judged_by_what_was_read_before_its_container_was_gone() -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, OWNERS, alive)[0] == [KILL]
    # A pass that takes long: read at 55 s, and the container ends before it is looked at.
    assert overruns.judge(55.0, BOTH_ABOVE, BOTH, OWNERS, ended) == ([], [])
    left = {POD_KEY: LedgerUsage(4096)}
    for now in (70.0, 70.5, 71.0, 72.0):
        assert overruns.judge(now, left, BOTH, {100: POD}, ended) == ([], [])
    assert overruns.wait(2.0) == 2.0


def test_a_pod_within_its_limit_outlives_the_container_that_was_ended() -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, OWNERS, alive)[0] == [KILL]
    for now in (52.0, 53.0, 54.0):
        assert overruns.judge(now, {POD_KEY: LedgerUsage(4096)}, BOTH, OWNERS, ended) == ([], [])
    assert overruns.wait(2.0) == 2.0


def test_nothing_follows_what_is_only_reported() -> None:
    overruns = Overruns(kill=False)
    overruns.add([SWITCHED])
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, OWNERS, ended)[0] == []
    assert overruns.wait(2.0) == 2.0


@pytest.mark.parametrize("missing", ["ledger", "limits"])
def test_without_the_maps_the_judgement_waits(missing: str) -> None:
    overruns = Overruns(kill=True)
    overruns.add([SWITCHED])
    ledger = None if missing == "ledger" else ABOVE
    limits = None if missing == "limits" else LIMITS
    assert overruns.judge(60.0, ledger, limits, OWNERS, alive) == ([], [])
    assert overruns.judge(61.0, ABOVE, LIMITS, OWNERS, alive)[0] == [KILL]


def test_who_has_overrun_and_was_not_told_of_is_judged_as_if_it_had_been() -> None:
    overruns = Overruns(kill=True)
    overruns.add_untold(50.0, {101, 100}, BOTH_ABOVE, BOTH, OWNERS)
    assert overruns.judge(50.9, BOTH_ABOVE, BOTH, OWNERS, alive) == ([], [])
    # The container alone, until it is known what it leaves the pod with.
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, OWNERS, alive)[0] == [KILL]
    overruns.add_untold(51.0, {101, 100}, {POD_KEY: LedgerUsage(4097)}, BOTH, OWNERS)
    assert overruns.judge(52.0, BOTH_ABOVE, BOTH, OWNERS, alive) == ([], [])
    assert overruns.judge(53.0, BOTH_ABOVE, BOTH, {100: POD}, ended) == ([], [])
    assert overruns.judge(54.0, BOTH_ABOVE, BOTH, {100: POD}, ended) == ([], [])
    assert overruns.judge(55.0, BOTH_ABOVE, BOTH, {100: POD}, ended)[0] == [KillCgroup("poda", 100)]


def test_a_pod_whose_container_has_ended_untold_is_judged_itself() -> None:
    overruns = Overruns(kill=True)
    overruns.add_untold(50.0, {100}, {POD_KEY: LedgerUsage(4097)}, BOTH, {100: POD})
    assert overruns.judge(51.0, BOTH_ABOVE, BOTH, {100: POD}, ended)[0] == [KillCgroup("poda", 100)]


@pytest.mark.parametrize(
    ("cgroups", "ledger"),
    [(set(), ABOVE), ({101}, {KEY: LedgerUsage(4096)}), ({100}, ABOVE)],
    ids=["never overran", "within its limit by now", "another one"],
)
def test_who_is_above_without_a_trick_or_within_after_one_lives(
    cgroups: set[int], ledger: dict[tuple[int, int], LedgerUsage]
) -> None:
    overruns = Overruns(kill=True)
    overruns.add_untold(50.0, cgroups, ledger, LIMITS, OWNERS)
    assert overruns.judge(60.0, ABOVE, LIMITS, OWNERS, alive) == ([], [])
