# SPDX-License-Identifier: Apache-2.0
"""The last snapshot over HTTP: as metrics and as a page. A request reads memory, never the kernel.

Written by hand instead of through prometheus_client's collectors, which need 100 ms for the 18000
samples of 640 slices where this needs a tenth: while it renders, the enforcer's loop waits.
"""
