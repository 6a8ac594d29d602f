"""TRex stateless profile: the mix 28 x 64, 16 x 570, 4 x 1518 at a constant rate, without end.

`start -f imix.py -p 0 -t rate=1000000,flows=1,seed=1`
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import streams  # noqa: E402
from trex_stl_lib import api  # noqa: E402


class Profile:
    """What TRex asks for."""

    def get_streams(self, direction=0, **given):
        """A stream for each flow and size."""
        del direction
        asked = streams.tunables(given, rate=1e6, flows=1, seed=1)
        plan = streams.frames.Plan("imix", asked["flows"], asked["seed"], rounds=1, by_size=True)
        return streams.streams(api, plan, lambda _count, part: api.STLTXCont(pps=asked["rate"] * part))


def register():
    """TRex's way in."""
    return Profile()
