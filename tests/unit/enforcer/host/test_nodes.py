# SPDX-License-Identifier: Apache-2.0
"""Files that are none of the driver's; its own are opened in the VM."""

import pytest

from enforcer.host import nodes


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/nowhere/kfd", "cannot open: No such file or directory"),
        ("/dev", "cannot open: Is a directory"),
        ("/dev/null", "opens, but does not tell its version: Inappropriate ioctl for device"),
    ],
)
def test_a_file_without_the_driver_behind_it_is_of_no_use(path: str, error: str) -> None:
    assert nodes.test_device(path) == error
