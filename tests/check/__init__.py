# SPDX-License-Identifier: Apache-2.0
"""What `make check` looks at besides the linters: each module is one check, run with -m."""
