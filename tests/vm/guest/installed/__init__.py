# SPDX-License-Identifier: Apache-2.0
"""The node as `helm install` makes it: the built image, run as the rendered chart says."""
