# SPDX-License-Identifier: Apache-2.0
"""The container image: Debian packages, locked Python wheels and our own wheel, as an OCI archive.

No container engine and no base image take part, nothing of a package is run, and the same inputs
give the same bytes.
"""
