# SPDX-License-Identifier: Apache-2.0
"""BCC programs for live debugging on a node; compiled there and then."""
