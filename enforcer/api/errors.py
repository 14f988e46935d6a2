# SPDX-License-Identifier: Apache-2.0
"""What the server's node raises; apart from the server, which needs grpc imported."""


class NotFoundError(Exception):
    """What was asked for does not exist; the message names it."""


class UntoldError(Exception):
    """What was asked about could not be looked at; the message says why. It may well exist."""
