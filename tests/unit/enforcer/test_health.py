# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.api.convert import health_to_pb
from enforcer.health import GONE, Health, HealthFile
from enforcer.host.smi import SmiEvent, SmiKind
from enforcer.model import GpuHealth

ONE, OTHER = "0000:03:00.0", "0000:83:00.0"
PRE, POST, FAULT = SmiKind.PRE_RESET, SmiKind.POST_RESET, SmiKind.VM_FAULT


@pytest.fixture
def health() -> Health:
    health = Health()
    health.see({ONE: 1, OTHER: 2}, 100.0)
    return health


def row(health: Health, bdf: str = ONE) -> GpuHealth:
    return next(one for one in health.rows if one.bdf == bdf)


def test_a_gpu_that_nothing_was_told_of_is_healthy(health: Health) -> None:
    assert health.rows == (
        GpuHealth(ONE, healthy=True, since=100.0),
        GpuHealth(OTHER, healthy=True, since=100.0),
    )


def test_a_reset_makes_a_gpu_unhealthy_until_it_ends(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 job hang from ring gfx"))], 110.0)
    ill = row(health)
    assert (ill.healthy, ill.reason, ill.since) == (
        False,
        "being reset: job hang from ring gfx",
        110.0,
    )
    assert row(health, OTHER).healthy
    health.hear([(ONE, SmiEvent(7, POST, "1 job hang from ring gfx"))], 112.0)
    well = row(health)
    assert (well.healthy, well.reason, well.since, well.last_reset) == (True, "", 112.0, 112.0)


def test_resets_that_are_told_at_once_are_seen_at_their_last() -> None:
    health = Health()
    health.see({ONE: 1}, 100.0)
    seen = []

    def told() -> Iterator[tuple[str, SmiEvent]]:
        for kind in (PRE, POST, PRE):
            reader = Thread(target=lambda: seen.append(row(health).reason))
            reader.start()
            reader.join(0.05)
            yield ONE, SmiEvent(7, kind, "1 MES hang")

    health.hear(told(), 110.0)
    while len(seen) < 3:
        sleep(0.01)
    assert seen == ["being reset: MES hang"] * 3


def test_a_gpu_of_several_nodes_is_well_when_all_are(health: Health) -> None:
    for node in (7, 8):
        health.hear([(ONE, SmiEvent(node, PRE, "1 RAS error"))], 110.0)
    health.hear([(ONE, SmiEvent(8, POST, "1 RAS error"))], 111.0)
    assert not row(health).healthy
    health.hear([(ONE, SmiEvent(7, POST, "1 RAS error"))], 112.0)
    assert row(health).healthy


def test_a_reset_without_a_cause_says_so(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1"))], 110.0)
    assert row(health).reason == "being reset: no cause told"


def test_an_end_that_was_missed_can_be_found_out(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 110.0)
    assert health.overdue(119.0) == ()
    assert health.overdue(120.0) == (ONE,)
    health.reset_ended(ONE, 120.0, 121.0)
    assert (row(health).healthy, row(health).last_reset) == (True, 121.0)
    assert health.overdue(200.0) == ()


def test_a_reset_that_began_while_kfd_was_asked_is_not_over(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 110.0)
    assert health.overdue(120.0) == (ONE,)
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 120.5)
    health.reset_ended(ONE, 120.0, 121.0)
    assert not row(health).healthy
    assert health.overdue(130.0) == ()
    assert health.overdue(130.5) == (ONE,)


def test_a_clock_that_was_put_back_keeps_no_gpu_unhealthy(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 5000.0)
    assert health.overdue(110.0) == (ONE,)
    health.reset_ended(ONE, 110.0, 111.0)
    assert row(health).healthy


def test_what_is_not_heard_is_a_problem_until_it_is(health: Health) -> None:
    health.unheard("uevents", "not heard")
    health.unheard("KFD events", "not allowed")
    assert health.problems == ["KFD events: not allowed", "uevents: not heard"]
    health.unheard("uevents", "")
    assert health.problems == ["KFD events: not allowed"]


def test_the_end_of_a_successors_reset_can_be_found_out(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 110.0)
    heir = Health()
    heir.decode(health.encode())
    assert heir.overdue(119.0) == ()
    assert heir.overdue(120.0) == (ONE,)
    heir.reset_ended(ONE, 120.0, 121.0)
    assert row(heir).healthy


def test_the_drivers_word_of_the_reset_before_ends_no_reset(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 110.0)
    health.hear([(ONE, SmiEvent(7, POST, "1 MES hang"))], 111.0)
    health.hear([(ONE, SmiEvent(7, PRE, "1 MES hang"))], 112.0)
    health.wedged(ONE, "none", "", 113.0)
    assert (row(health).healthy, row(health).last_reset) == (False, 113.0)
    health.hear([(ONE, SmiEvent(7, POST, "1 MES hang"))], 114.0)
    assert (row(health).healthy, row(health).last_reset) == (True, 114.0)


def test_the_drivers_word_that_all_is_well_ends_what_it_asked_for(health: Health) -> None:
    health.wedged(ONE, "rebind", "", 110.0)
    health.wedged(ONE, "none", "", 113.0)
    assert (row(health).healthy, row(health).last_reset) == (True, 113.0)


def test_a_gpu_that_has_to_be_bound_anew_is_unhealthy_until_it_is(health: Health) -> None:
    health.wedged(ONE, "rebind,bus-reset", "python3[4711]", 110.0)
    assert row(health).reason == ("wedged: the driver asks for rebind,bus-reset (by python3[4711])")
    health.see({ONE: 1, OTHER: 2}, 120.0)
    assert row(health).since == 110.0
    health.see({OTHER: 2}, 130.0)
    assert (row(health).reason, row(health).since) == ("not there any more", 130.0)
    health.see({ONE: 9, OTHER: 2}, 140.0)
    assert row(health) == GpuHealth(ONE, healthy=True, since=140.0)


def test_a_gpu_that_comes_back_as_it_was_is_still_wedged(health: Health) -> None:
    health.wedged(ONE, "rebind", "", 110.0)
    health.see({OTHER: 2}, 120.0)
    health.see({ONE: 1, OTHER: 2}, 130.0)
    assert not row(health).healthy


def test_a_gpu_that_was_taken_out_is_ill_until_nobody_waits_for_it(health: Health) -> None:
    health.see({OTHER: 2}, 200.0)
    health.give_up((), 3799.0)
    assert row(health).reason == GONE
    health.give_up({ONE}, 9000.0)
    assert row(health).reason == GONE
    health.give_up((), 9000.0)
    assert [one.bdf for one in health.rows] == [OTHER]
    health.see({OTHER: 2}, 9002.0)
    health.give_up((), 9002.0)
    assert [one.bdf for one in health.rows] == [OTHER]


def test_a_slice_that_names_a_gpu_given_up_brings_its_row_back(health: Health) -> None:
    health.see({OTHER: 2}, 200.0)
    health.give_up((), 9000.0)
    health.give_up({ONE}, 9002.0)
    assert (row(health).reason, row(health).since) == (GONE, 200.0)


def test_a_gpu_given_up_that_comes_back_as_it_was_is_still_wedged(health: Health) -> None:
    health.wedged(ONE, "rebind", "", 110.0)
    health.see({OTHER: 2}, 200.0)
    health.give_up((), 9000.0)
    health.see({ONE: 1, OTHER: 2}, 9002.0)
    assert row(health).reason == "wedged: the driver asks for rebind"
    health.see({ONE: 9, OTHER: 2}, 9004.0)
    assert row(health) == GpuHealth(ONE, healthy=True, since=9004.0)


def test_a_gpu_that_is_ill_and_there_is_never_given_up(health: Health) -> None:
    health.wedged(ONE, "rebind", "", 110.0)
    health.give_up((), 90000.0)
    assert not row(health).healthy


def test_a_fault_of_a_process_is_counted_and_no_ailment(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, FAULT, "1267:python3"))], 110.0)
    health.hear([(ONE, SmiEvent(7, FAULT, "1267:py\nthon"))], 111.0)
    assert row(health) == GpuHealth(
        ONE, healthy=True, since=100.0, vm_faults=2, last_fault="py?thon[4711]"
    )


def test_what_is_told_of_an_unknown_gpu_is_passed_over(health: Health) -> None:
    before = health.rows
    health.wedged("0000:99:00.0", "rebind", "", 110.0)
    health.hear([("0000:99:00.0", SmiEvent(7, PRE, "1"))], 110.0)
    assert health.rows == before


def test_a_successor_knows_who_is_ill(health: Health) -> None:
    health.hear([(ONE, SmiEvent(7, PRE, "1 HWS hang"))], 110.0)
    heir = Health()
    heir.decode(health.encode())
    heir.see({ONE: 1, OTHER: 2}, 200.0)
    assert row(heir) == row(health)
    assert row(heir, OTHER).healthy
    heir.hear([(ONE, SmiEvent(7, POST, "1"))], 210.0)
    assert row(heir).healthy


def test_a_gpu_bound_anew_while_nobody_looked_is_well(health: Health) -> None:
    health.wedged(ONE, "rebind", "", 110.0)
    heir = Health()
    heir.decode(health.encode())
    heir.see({ONE: 3, OTHER: 2}, 200.0)
    assert row(heir).healthy


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"ill": 1}', '{"ill": {"a": {}}}', '{"ill": {"a": {"instance": "x"}}}'],
)
def test_what_no_predecessor_wrote_is_refused(health: Health, text: str) -> None:
    before = health.rows
    with pytest.raises(ValueError, match=r"\S"):
        health.decode(text)
    assert health.rows == before


@given(st.lists(st.tuples(st.sampled_from(list(SmiKind)), st.text(max_size=400))))
def test_no_text_of_the_driver_breaks_it(told: list[tuple[SmiKind, str]]) -> None:
    health = Health()
    health.see({ONE: 1}, 1.0)
    for kind, text in told:
        health.hear([(ONE, SmiEvent(7, kind, text))], 2.0)
    heir = Health()
    heir.decode(health.encode())
    assert (row(health).reason + row(health).last_fault + "x").isprintable()


def test_a_file_tells_a_successor(health: Health, tmp_path: Path) -> None:
    path = tmp_path / "run" / "health.json"
    file = HealthFile(path, health)
    file.read()
    file.write()
    assert not path.exists()
    health.wedged(ONE, "rebind", "", 110.0)
    file.write()
    heir = Health()
    HealthFile(path, heir).read()
    heir.see({ONE: 1, OTHER: 2}, 200.0)
    assert row(heir) == row(health)


def test_a_damaged_or_forbidden_file_costs_only_what_was_in_it(
    health: Health, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "health.json").write_text("{ torn")
    HealthFile(tmp_path / "health.json", health).read()
    assert "every GPU counts as healthy" in caplog.text
    (tmp_path / "file").touch()
    nowhere = HealthFile(tmp_path / "file" / "health.json", health)
    health.wedged(ONE, "rebind", "", 110.0)
    nowhere.write()
    assert "a new enforcer will not know" in caplog.text
    assert not row(health).healthy


def test_a_file_that_could_not_be_written_is_told_once_and_written_when_it_can(
    health: Health, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "run"
    blocked.touch()
    file = HealthFile(blocked / "health.json", health)
    health.wedged(ONE, "rebind", "", 110.0)
    for _ in range(3):
        file.write()
    assert caplog.text.count("a new enforcer will not know") == 1
    blocked.unlink()
    file.write()
    heir = Health()
    heir.decode((blocked / "health.json").read_text())
    assert row(heir).reason == row(health).reason


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**400, "9" * 5000, ONE]),
    lambda one: st.lists(one, max_size=2),
    max_leaves=4,
)
FIELDS = ("instance", "since", "resetting", "cause", "wedged")


@given(st.dictionaries(st.sampled_from(FIELDS), JUNK), st.sampled_from([ONE, "gpu", "\ud800"]))
def test_a_predecessors_file_is_read_or_refused(junk: dict[str, object], bdf: str) -> None:
    good = {"instance": 1, "since": 1.5, "resetting": [7], "cause": "", "wedged": ""}
    health = Health()
    with suppress(ValueError):
        health.decode(json.dumps({"ill": {bdf: {**good, **junk}}}))
    for one in health.rows:
        assert one.bdf == ONE
        assert one.reason.isprintable()
        health_to_pb(one)
