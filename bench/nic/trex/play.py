#!/usr/bin/env python3
"""Sends the frames of lab/frames.py from TRex (stateless), waits, and prints what was sent as one JSON object.

It runs on the generator box beside a TRex server (`./t-rex-64 -i`), with TRex's own Python client; the other scripts call
it by ssh. TRex's warning that its CPU is high comes before frames are late: above 80 % the trial is invalid.
"""

import argparse
import json
import os
import sys
import time

import streams

# Time between two looks at TRex: the length of a trial is known to so much.
LOOK_SECONDS = 0.01


def arguments():
    """What lab/generator.py says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--trex", default="/opt/trex", help="TRex's folder (/opt/trex)")
    parser.add_argument("--server", default="127.0.0.1", help="where the TRex server runs (127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="TRex's number of the port that sends (0)")
    parser.add_argument("--sizes", default="128", help="frame bytes with FCS, or imix (128)")
    parser.add_argument("--flows", type=int, default=1, help="flows (1)")
    parser.add_argument("--skew", action="store_true", help="80 %% of the frames in the first flow")
    parser.add_argument("--rounds", type=int, required=True, help="rounds of the pattern")
    parser.add_argument("--seed", type=int, required=True, help="marks the frames of this run")
    pace = parser.add_mutually_exclusive_group(required=True)
    pace.add_argument("--rate", type=float, help="frames a second, all streams together")
    pace.add_argument("--line-rate", action="store_true", help="as fast as the line takes it")
    return parser.parse_args()


def burst(api, rate):
    """An exact number of frames, at a part of the rate or of the line."""

    def mode(count, part):
        pace = {"pps": rate * part} if rate else {"percentage": 100.0 * part}
        return api.STLTXSingleBurst(total_pkts=count, **pace)

    return mode


def play(api, asked):
    """Sends everything; what TRex counted."""
    sizes = asked.sizes if asked.sizes == "imix" else [int(size) for size in asked.sizes.split(",")]
    plan = streams.frames.Plan(sizes, asked.flows, asked.seed, asked.skew, rounds=asked.rounds, by_size=True)
    client = api.STLClient(server=asked.server)
    client.connect()
    try:
        client.reset(ports=[asked.port])
        cores = max(1, client.get_server_system_info().get("dp_core_count_per_port", 1))
        client.add_streams(streams.streams(api, plan, burst(api, asked.rate), cores), ports=[asked.port])
        client.clear_stats()
        began, busiest = time.monotonic(), 0.0
        client.start(ports=[asked.port], force=True)
        while client.is_traffic_active(ports=[asked.port]):
            busiest = max(busiest, client.get_stats()["global"]["cpu_util"])
            time.sleep(LOOK_SECONDS)
        seconds = time.monotonic() - began
        stats = client.get_stats()
    finally:
        client.disconnect()
    sent = stats[asked.port]["opackets"]
    return {
        "sent": sent, "frames": plan.frames, "bytes": stats[asked.port]["obytes"], "seconds": seconds,
        "frames_per_second": sent / seconds, "cpu_percent": busiest, "finished": sent == plan.frames,
        "queue_full": stats["global"].get("queue_full", 0),
    }


def main():
    """Finds TRex's client, and plays."""
    asked = arguments()
    sys.path.insert(0, os.path.join(asked.trex, "automation/trex_control_plane/interactive"))
    from trex.stl import api  # TRex's own client, from its folder

    print(json.dumps(play(api, asked)))


if __name__ == "__main__":
    main()
