"""TRex stateless profile: frames of one size at a constant rate, without end.

`start -f cbr.py -p 0 -t rate=1000000,size=128,flows=1,seed=1`
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import streams  # noqa: E402
from trex_stl_lib import api  # noqa: E402


class Profile:
    """What TRex asks for."""

    def get_streams(self, direction=0, **given):
        """A stream for each flow."""
        del direction
        asked = streams.tunables(given, rate=1e6, size=128, flows=1, seed=1)
        plan = streams.frames.Plan([asked["size"]], asked["flows"], asked["seed"], rounds=1, by_size=True)
        return streams.streams(api, plan, lambda _count, part: api.STLTXCont(pps=asked["rate"] * part))


def register():
    """TRex's way in."""
    return Profile()
