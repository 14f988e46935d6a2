# SPDX-License-Identifier: Apache-2.0
"""What kubelet adds to a container at every start, from the file in which it keeps that.

kubelet asks Allocate once for a container and gives it the answer at each of its starts, also after
its own restart. The file is its own and no interface: what is not understood is not known.
Form: pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go, the same since 1.10 in what is read.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from deviceplugin.allocate import Answer, Mount
from deviceplugin.api import v1beta1_pb2 as pb
from deviceplugin.terms import is_gpu_resource

if TYPE_CHECKING:
    from pathlib import Path

FILE = "kubelet_internal_checkpoint"


class RecordError(Exception):
    """kubelet's record does not tell; the message says why, in one line."""


def recorded(directory: Path, pod_uid: str, container: str) -> list[Answer]:
    """What a container is given, an answer for each resource with GPUs that it asked for.

    ``directory`` is kubelet's ``device-plugins``. Raises RecordError.
    """
    path = directory / FILE
    try:
        entries = json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or []
        return [
            _answer(base64.b64decode(entry["AllocResp"], validate=True))
            for entry in entries
            if (entry["PodUID"], entry["ContainerName"]) == (pod_uid, container)
            and is_gpu_resource(entry["ResourceName"])
        ]
    except OSError as error:
        raise RecordError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise RecordError(f"{path}: expected kubelet's record, found {error!r}") from None


def _answer(message: bytes) -> Answer:
    given = pb.ContainerAllocateResponse.FromString(message)
    return Answer(
        envs=dict(given.envs),
        devices=tuple(device.host_path for device in given.devices),
        mounts=tuple(
            Mount(one.host_path, one.container_path, one.read_only) for one in given.mounts
        ),
        names=tuple(device.name for device in given.cdi_devices),
    )
