# SPDX-License-Identifier: Apache-2.0
"""The local API of the enforcer: gRPC over a root-owned unix socket."""
