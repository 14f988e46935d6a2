# SPDX-License-Identifier: Apache-2.0
"""The kubelet device plugin: registration, and Allocate as the scheduler decided."""
