"""What takes too long for each change: `make soak`."""

import os

SOAKING = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
"""Whether there is time: tests marked `more_in_soak` try all of what they try a part of otherwise."""
