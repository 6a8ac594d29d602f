#!/usr/bin/env python3
"""(c) The burst ladder (RFC 2544 section 26.4): 100 to 1,000,000 frames back to back, at the line's or generator's full rate.

The longest rung without loss in every repeat is the figure; the loss on each rung is beside it.
"""

import sys

from lab import box, search, trial

LADDER = "100,200,500,1k,10k,100k,1m"


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="64,128,512,1518", help="frame bytes with FCS, or imix")
    parser.add_argument("--ladder", type=box.numbers, default=box.numbers(LADDER), help="frames of each burst")
    parser.add_argument("--repeats", type=int, default=10, help="bursts on each rung")
    asked = box.enter(parser)
    if asked.short:
        asked.sizes, asked.ladder, asked.repeats = "128", [100, 1000], 2
    with box.Box(asked, "burst-ladder") as bench:
        summary = {}
        for size in asked.sizes.split(","):
            chosen = size if size == "imix" else [int(size)]
            bench.set_mtu(1518 if size == "imix" else int(size))
            rungs, longest, unbroken = [], 0, True
            for rung in asked.ladder:
                losses = []
                for _ in range(asked.repeats):
                    plan = bench.plan(chosen, count=rung)
                    setting = trial.Setting(f"{size}, burst of {plan.frames}")
                    out = search.valid(lambda plan=plan, how=setting: bench.add(trial.trial(bench, plan, None, how)))
                    losses.append(None if out is None else out["found"]["missing"])
                whole = all(loss == 0 for loss in losses)
                unbroken = unbroken and whole
                longest = rung if unbroken else longest
                rungs.append({"burst": rung, "lost": search.spread(losses), "whole_in_all": whole})
            summary[size] = {"longest_without_loss": longest, "rungs": rungs}
            print(f"{size}: longest burst without loss in {asked.repeats} of {asked.repeats}: {longest} frames")
        bench.result["summary"] = summary
        return trial.finish(bench)


if __name__ == "__main__":
    sys.exit(main())
