# SPDX-License-Identifier: Apache-2.0
"""The image as a whole."""
