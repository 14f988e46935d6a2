# SPDX-License-Identifier: Apache-2.0
"""Tests with a real kubelet, API server and container runtime on the virtual node."""
