# SPDX-License-Identifier: Apache-2.0
"""kubelet's device plugin API, v1beta1."""
