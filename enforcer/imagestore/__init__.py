# SPDX-License-Identifier: Apache-2.0
"""Where the node's container runtime keeps the files of an image, asked of the runtime itself."""
