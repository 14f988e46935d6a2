# SPDX-License-Identifier: Apache-2.0
"""The kernel side: BPF objects, and their loader through libbpf."""
