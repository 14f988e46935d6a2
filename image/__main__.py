# SPDX-License-Identifier: Apache-2.0
"""``python -m image``."""

import sys

from image.build import main

sys.exit(main(sys.argv[1:]))
