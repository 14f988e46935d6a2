# SPDX-License-Identifier: Apache-2.0
"""The README followed on a machine on which nothing of ours ever was."""
