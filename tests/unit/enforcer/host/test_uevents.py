# SPDX-License-Identifier: Apache-2.0
import pytest

from enforcer.host.uevents import Uevent, uevent

DRM = {
    "ACTION": "change",
    "DEVPATH": "/devices/pci0000:00/0000:03:00.0/drm/card1",
    "SUBSYSTEM": "drm",
    "WEDGED": "none",
}
PCI = {
    "ACTION": "bind",
    "DEVPATH": "/devices/pci0000:00/0000:0C:00.0",
    "SUBSYSTEM": "pci",
    "DRIVER": "amdgpu",
    "PCI_SLOT_NAME": "0000:0C:00.0",
}


def test_a_reset_of_a_gpu_is_seen_with_its_method() -> None:
    assert uevent(DRM) == Uevent("change", "drm", DRM["DEVPATH"], "0000:03:00.0", "none")


def test_who_is_to_blame_for_a_hang_is_told_where_the_kernel_does() -> None:
    event = uevent({**DRM, "WEDGED": "rebind,bus-reset", "PID": "4711", "TASK": "python3"})
    assert event is not None
    assert (event.wedged, event.task) == ("rebind,bus-reset", "python3[4711]")


def test_a_gpu_behind_bridges_is_the_last_of_its_path() -> None:
    path = "/devices/pci0000:00/0000:00:01.1/0000:01:00.0/0000:03:00.0/drm/renderD128"
    event = uevent({**DRM, "DEVPATH": path})
    assert event is not None
    assert event.bdf == "0000:03:00.0"


def test_a_partitions_platform_device_has_no_address() -> None:
    event = uevent({**DRM, "DEVPATH": "/devices/platform/amdgpu_xcp_1/drm/card3"})
    assert event is not None
    assert event.bdf is None


def test_a_bound_gpu_is_seen_with_its_address_in_lower_case() -> None:
    assert uevent(PCI) == Uevent("bind", "pci", PCI["DEVPATH"], "0000:0c:00.0")


def test_an_unbind_which_no_longer_names_the_driver_is_seen() -> None:
    unbind = {key: value for key, value in PCI.items() if key != "DRIVER"}
    assert uevent({**unbind, "ACTION": "unbind"}) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"SUBSYSTEM": "block"},
        {"SUBSYSTEM": "pci", "DRIVER": "nvme"},
        {"ACTION": "explode"},
        {"DEVPATH": None},
        {"SUBSYSTEM": None},
    ],
)
def test_other_events_are_passed_over(change: dict[str, object]) -> None:
    assert uevent({**DRM, **change}) is None


def test_a_message_without_keys_is_passed_over() -> None:
    assert uevent({}) is None


def test_a_tasks_name_cannot_end_a_line() -> None:
    found = uevent({**DRM, "PID": "7", "TASK": "a\nb\x1b[2J"})
    assert found is not None
    assert found.task == "a?b?[2J[7]"
