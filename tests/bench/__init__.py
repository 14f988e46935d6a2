# SPDX-License-Identifier: Apache-2.0
"""What Ringfence costs, as ratios within one run."""
