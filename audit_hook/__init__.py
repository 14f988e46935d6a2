# SPDX-License-Identifier: Apache-2.0
"""The in-process side: an LD_AUDIT auditor and an HSA tools library, in C, and their checks."""
