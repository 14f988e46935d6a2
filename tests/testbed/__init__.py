# SPDX-License-Identifier: Apache-2.0
"""A node without a GPU: kernels, a simulated amdgpu driver and a VM that runs them."""
