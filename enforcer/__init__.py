# SPDX-License-Identifier: Apache-2.0
"""The privileged side of Ringfence, and the view of one node that all its parts share."""
