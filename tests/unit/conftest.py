# SPDX-License-Identifier: Apache-2.0
"""Properties are tested on machines that do other things as well."""

from hypothesis import settings

settings.register_profile("whatever it takes", deadline=None)
settings.load_profile("whatever it takes")
