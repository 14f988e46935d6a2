# SPDX-License-Identifier: Apache-2.0
"""Readers of one node. Each takes its root as an argument; only here are host paths named."""
