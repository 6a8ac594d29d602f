#!/usr/bin/env python3
"""(b) The highest rate without loss (NDR, RFC 2544 section 26.1) and with at most 0.5 % (PDR), by halving.

For each frame size: a generator check that bounds the search, the search, a final trial, a soak at 95 %; again and
again, in shuffled order of the sizes. The lowest of the repeats is what may be claimed.
"""

import random
import sys

from generator_check import check
from lab import box, search, trial

PDR_RATIO = 0.005
SOAK_PART = 0.95


def shape(text):
    """128, or imix."""
    return text if text == "imix" else [int(text)]


class Search:
    """Trials of one frame size."""

    def __init__(self, bench, size, flows=1, skew=False):
        self.bench, self.size, self.flows, self.skew = bench, size, flows, skew
        self.shown = size if size == "imix" else f"{size} B"

    def run(self, rate, seconds, what):
        """One trial, kept."""
        plan = self.bench.plan(shape(self.size), self.flows, self.skew, rate * seconds)
        out = trial.trial(self.bench, plan, rate, trial.Setting(f"{self.shown}, {what}"))
        return self.bench.add(out)

    def passes(self, ratio, seconds, what):
        """A test of a rate for `search.halve`."""

        def at(rate):
            out = search.valid(lambda: self.run(rate, seconds, what))
            return None if out is None else out["lost_ratio"] <= ratio

        return at

    def top(self, rate):
        """The rate up to which the generator has a fifth of its power left."""
        plan = self.bench.plan(shape(self.size), self.flows, self.skew, rate)
        found = self.bench.add({**check(self.bench, plan, rate), "of": self.shown})
        return min(rate, int(0.8 * found["ceiling"] / 1.1))


def repeat(bench, finder, top, low, number):
    """One repeat: NDR with its final trial and soak, and PDR."""
    asked, out = bench.asked, {"repeat": number}
    for name, ratio in (("ndr", 0.0), ("pdr", PDR_RATIO)):
        rate = search.halve(low, top, asked.resolution, finder.passes(ratio, asked.trial, name))
        tried = rate
        # A rate that passes briefly and fails in the long trial is no result: down in steps, until one holds.
        while name == "ndr" and rate:
            final = search.valid(lambda rate=rate: finder.run(rate, asked.final, "final"))
            if final is None or final["lost_ratio"] == 0:
                rate = None if final is None else rate
                break
            rate = int(rate * SOAK_PART) if rate * SOAK_PART >= low else 0
        out[name], out[f"{name}_searched"] = rate, tried
    if out["ndr"]:
        soak = finder.run(int(out["ndr"] * SOAK_PART), asked.soak, "soak at 95 %")
        out["soak"] = {name: soak[name] for name in ("valid", "lost_ratio", "frames", "rate")}
    return out


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="64,128,256,512,1024,1280,1518,9000,imix", help="frame bytes with FCS")
    parser.add_argument("--flows", type=int, default=1, help="flows, each with a group and a feed of its own")
    parser.add_argument("--high", type=box.numbers, default=[1000000], help="the search's upper end, frames/s")
    parser.add_argument("--low", type=box.numbers, default=[10000], help="the search's lower end, frames/s")
    parser.add_argument("--resolution", type=float, default=0.01, help="how near, as a part of the rate")
    parser.add_argument("--trial", type=float, default=10.0, help="seconds of a trial of the search")
    parser.add_argument("--final", type=float, default=60.0, help="seconds of the final trial")
    parser.add_argument("--soak", type=float, default=1800.0, help="seconds of the soak")
    parser.add_argument("--repeats", type=int, default=10, help="repeats; fewer than 10 are no result to publish")
    asked = box.enter(parser)
    if asked.short:
        asked.sizes, asked.high, asked.low, asked.resolution = "128", [20000], [5000], 0.5
        asked.trial, asked.final, asked.soak, asked.repeats = 0.2, 0.3, 0.3, 1
    with box.Box(asked, "no-drop-rate") as bench:
        sizes = asked.sizes.split(",")
        sizes = [size if size == "imix" else int(size) for size in sizes]
        found = {str(size): [] for size in sizes}
        shuffled, tops = random.Random(bench.seed), {}
        for number in range(asked.repeats):
            for size in shuffled.sample(sizes, len(sizes)):
                bench.set_mtu(1518 if size == "imix" else size)
                finder = Search(bench, size, asked.flows)
                tops[size] = tops.get(size) or finder.top(asked.high[0])
                found[str(size)].append(repeat(bench, finder, tops[size], asked.low[0], number))
        bench.result["repeats"] = found
        bench.result["summary"] = {
            size: {name: search.spread([one[name] for one in all_]) for name in ("ndr", "pdr")}
            for size, all_ in found.items()
        }
        for size, both in bench.result["summary"].items():
            for name, one in both.items():
                shown = f"lowest {one['lowest']}, median {one['median']}, highest {one['highest']} of {one['runs']} runs"
                print(f"{size}: {name.upper()} {shown}")
        return trial.finish(bench)


if __name__ == "__main__":
    sys.exit(main())
