#!/usr/bin/env python3
"""(d) One flow and many flows over 1, 2, 4 and 8 queues, evenly and 80 to 20: the highest rate without loss of each.

A feed is one group, one flow, one queue, one core: more queues do nothing for it. Both figures are published.
"""

import random
import sys

from lab import box, search, trial
from no_drop_rate import Search


def cells(asked):
    """(queues, flows, skew) of each cell."""
    for queues in asked.queues:
        yield queues, 1, False
        many = max(2, queues * asked.flows_per_queue)
        yield queues, many, False
        yield queues, many, True


def spread_of(out):
    """How the frames lay over the queues."""
    return [queue["received"] for queue in out.get("queues") or []]


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--queues", type=box.numbers, default=[1, 2, 4, 8], help="queue counts to try")
    parser.add_argument("--flows-per-queue", type=int, default=4, help="flows for each queue where there are many")
    parser.add_argument("--size", type=int, default=128, help="bytes of a frame with its FCS")
    parser.add_argument("--high", type=box.numbers, default=[1000000], help="the search's upper end, frames/s")
    parser.add_argument("--low", type=box.numbers, default=[10000], help="the search's lower end, frames/s")
    parser.add_argument("--resolution", type=float, default=0.02, help="how near, as a part of the rate")
    parser.add_argument("--trial", type=float, default=10.0, help="seconds of a trial")
    parser.add_argument("--repeats", type=int, default=10, help="repeats of each cell, shuffled")
    asked = box.enter(parser)
    if asked.short:
        asked.queues, asked.flows_per_queue, asked.repeats = [2], 2, 1
        asked.high, asked.low, asked.resolution, asked.trial = [4000], [2000], 0.6, 0.25
    with box.Box(asked, "flows") as bench:
        bench.set_mtu(asked.size)
        order = [cell for _ in range(asked.repeats) for cell in cells(asked)]
        random.Random(bench.seed).shuffle(order)
        found, spreads, skipped, top = {}, {}, [], 0
        for queues, flows, skew in order:
            name = f"{queues} queues, {flows} flow{'s' if flows > 1 else ''}{', 80 % in one' if skew else ''}"
            if not bench.set_queues(queues):
                skipped.append(name)
                continue
            finder = Search(bench, asked.size, flows, skew)
            # What sends does not depend on how many flows it sends.
            top = top or finder.top(asked.high[0])
            rate = search.halve(asked.low[0], top, asked.resolution, finder.passes(0.0, asked.trial, name))
            found.setdefault(name, []).append(rate)
            spreads[name] = spread_of(bench.result["trials"][-1])
        bench.result["summary"] = {
            name: {"ndr": search.spread(rates), "frames_by_queue": spreads[name]} for name, rates in sorted(found.items())
        }
        bench.result["skipped"] = sorted(set(skipped))
        for name, one in bench.result["summary"].items():
            print(f"{name}: NDR lowest {one['ndr']['lowest']} of {one['ndr']['runs']}; by queue {one['frames_by_queue']}")
        for name in bench.result["skipped"]:
            print(f"not measured: {name}: say --set-queues, or set them by `ethtool -L {asked.interface} combined N`")
        return trial.finish(bench)


if __name__ == "__main__":
    sys.exit(main())
