"""TRex stateless profile: a feed's shape: bursts at a high rate, silence between them, one flow unless said otherwise.

`start -f feed.py -p 0 -t rate=5000000,burst=2000,pause_us=10000,size=170,flows=1,bursts=1000,seed=1`: bursts of 2,000 frames
at 5 million a second, every 10 ms. What a real feed's bursts look like is in the feed's own capture: play that too.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import streams  # noqa: E402
from trex_stl_lib import api  # noqa: E402


class Profile:
    """What TRex asks for."""

    def get_streams(self, direction=0, **given):
        """A stream for each flow; each sends its part of every burst."""
        del direction
        asked = streams.tunables(given, rate=5e6, burst=2000, pause_us=10000.0, size=170, flows=1, bursts=1000, seed=1)
        plan = streams.frames.Plan([asked["size"]], asked["flows"], asked["seed"], rounds=1, by_size=True)

        def mode(_count, part):
            return api.STLTXMultiBurst(
                pps=asked["rate"] * part, pkts_per_burst=max(1, int(asked["burst"] * part)), ibg=asked["pause_us"],
                count=asked["bursts"],
            )

        return streams.streams(api, plan, mode)


def register():
    """TRex's way in."""
    return Profile()
