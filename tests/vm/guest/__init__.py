# SPDX-License-Identifier: Apache-2.0
"""What runs inside the virtual node: real containers, the real daemons, a real kernel."""
