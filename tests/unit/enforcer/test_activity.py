# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from enforcer.accounting import Processes
from enforcer.activity import Activities, Meter
from enforcer.host.drm import DrmClient
from enforcer.host.kfd import KfdActivity
from enforcer.model import Activity, Gpu, Limit

GPU = Gpu("0000:03:00.0", 5, 1, 128, "gpu", 1 << 37, 304, 90402)
LIMIT = Limit("poda/c", 101, GPU.bdf, 1 << 30)
IDLE = (("compute", 0.0), ("gfx", 0.0))


def _kfd(**pids: KfdActivity) -> Processes:
    """Processes p1, p2 ... of the container."""
    numbers = {int(name[1:]): one for name, one in pids.items()}
    return Processes(
        {LIMIT.path: set(numbers)}, {}, {}, {pid: {GPU.bdf: one} for pid, one in numbers.items()}
    )


def _drm(*clients: tuple[int, int, int]) -> Processes:
    """(pid, client, nanoseconds of gfx)."""
    return Processes(
        {LIMIT.path: {pid for pid, _, _ in clients}},
        {},
        {pid: [DrmClient(GPU.bdf, one, 0, engines=(("gfx", ns),))] for pid, one, ns in clients},
    )


def _new() -> Activities:
    """As it is once the enforcer has run a while."""
    made = Activities()
    made.keep([])
    return made


def test_an_idle_container_has_zeros() -> None:
    found = _new().look(LIMIT, Processes({}, {}, {}), GPU)
    assert found == Activity(0, 0, 0.0, 0.0, IDLE, 0)


def test_occupancy_is_unknown_where_the_hardware_does_not_count_waves() -> None:
    radeon = Gpu("0000:03:00.0", 5, 1, 128, "gpu", 1 << 34, 96, 110000)
    assert _new().look(LIMIT, Processes({}, {}, {}), radeon).cu_occupancy is None
    busy = _kfd(p7=KfdActivity(None, 0, 0, 1))
    assert _new().look(LIMIT, busy, radeon).cu_occupancy is None
    assert _new().look(LIMIT, Processes({}, {}, {}), None).cu_occupancy is None


def test_processes_add_up_and_their_time_outlives_them() -> None:
    activities = _new()
    both = _kfd(p7=KfdActivity(11, 1500, 250_000, 2), p8=KfdActivity(3, 500, 750_000, 1))
    assert activities.look(LIMIT, both, GPU) == Activity(14, 3, 2.0, 1.0, IDLE, 0)
    one = _kfd(p8=KfdActivity(0, 600, 750_000, 1))
    assert activities.look(LIMIT, one, GPU) == Activity(0, 1, 2.1, 1.0, IDLE, 0)
    assert activities.look(LIMIT, _kfd(), GPU) == Activity(0, 0, 2.1, 1.0, IDLE, 0)


def test_a_client_that_two_processes_share_counts_once() -> None:
    shared = _drm((7, 40, 3_000_000_000), (8, 40, 3_000_000_000))
    assert dict(_new().look(LIMIT, shared, GPU).engines)["gfx"] == 3.0


def test_evicted_bytes_are_the_clients_or_unknown_where_the_kernel_does_not_say() -> None:
    def evicted(*sizes: int | None) -> int | None:
        clients = [DrmClient(GPU.bdf, n, 0, evicted=size) for n, size in enumerate(sizes)]
        return _new().look(LIMIT, Processes({LIMIT.path: {7}}, {}, {7: clients}), GPU).evicted_bytes

    assert evicted(4096, None, 8192) == 12288
    assert evicted(None) is None


def test_another_gpus_and_another_containers_time_is_not_counted() -> None:
    other = Processes(
        {"poda/d": {9}, LIMIT.path: {7}},
        {},
        {
            7: [DrmClient("0000:43:00.0", 1, 0, engines=(("gfx", 10**9),))],
            9: [DrmClient(GPU.bdf, 2, 0, engines=(("gfx", 10**9),))],
        },
        {7: {"0000:43:00.0": KfdActivity(1, 1, 1, 1)}, 9: {GPU.bdf: KfdActivity(1, 1, 1, 1)}},
    )
    assert _new().look(LIMIT, other, GPU) == Activity(0, 0, 0.0, 0.0, IDLE, 0)


def test_a_reading_that_failed_once_is_not_counted_twice() -> None:
    activities = _new()
    for reading, total in (((7, 40, 10**9),), 1.0), ((), 1.0), (((7, 40, 2 * 10**9),), 2.0):
        found = activities.look(LIMIT, _drm(*reading), GPU)
        assert dict(found.engines)["gfx"] == total


def test_after_a_restart_of_the_enforcer_it_counts_from_there() -> None:
    """Prometheus takes the fall to 0 for the restart it is, and counts nothing twice."""
    activities = Activities()
    activities.keep([LIMIT])
    assert activities.look(LIMIT, _kfd(p7=KfdActivity(0, 9000, 0, 1)), GPU).evicted_seconds == 0.0
    found = activities.look(LIMIT, _kfd(p7=KfdActivity(0, 9500, 0, 1)), GPU)
    assert found.evicted_seconds == 0.5


def test_a_container_that_is_gone_is_forgotten() -> None:
    activities = _new()
    activities.keep([LIMIT])
    activities.look(LIMIT, _drm((7, 40, 10**9)), GPU)
    activities.keep([])
    assert dict(activities.look(LIMIT, _drm(), GPU).engines)["gfx"] == 0.0


@given(st.lists(st.dictionaries(st.integers(0, 9), st.integers(0, 1000), max_size=5), max_size=20))
def test_a_meter_never_falls(readings: list[dict[int, int]]) -> None:
    meter, last = Meter(), 0.0
    for reading in readings:
        total = meter.advance(dict(reading))
        assert total >= last
        last = total


def test_a_meter_does_not_remember_every_process_there_ever_was() -> None:
    meter = Meter()
    for pid in range(5000):
        meter.advance({pid: 1.0})
    assert meter.total == 5000
    assert len(meter.seen) < 1100
