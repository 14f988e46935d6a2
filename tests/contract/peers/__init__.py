# SPDX-License-Identifier: Apache-2.0
"""The device plugin's peers, in the real protocols: kubelet, API server, scheduler."""
