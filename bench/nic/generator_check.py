#!/usr/bin/env python3
"""(a) The generator check: 110 % of the target into a sink; the generator must have a fifth of its power left.

The sink is the captured interface with nobody on it: its own counters say what came. TRex tells its CPU; for
`sluice feed play`, which spins between frames, the share is the asked rate of the rate that it reaches flat out.
"""

import sys
import time

from lab import box, generator, host


def check(bench, plan, rate):
    """One check at 110 % of `rate`."""
    asked = bench.asked
    top, flat = generator.ceiling(bench, plan)
    wanted = int(rate * 1.1)
    sender = generator.make(bench)
    sender.prepare(plan)
    before = host.statistics(asked.interface)
    ticks = host.cpu_ticks()
    sent = sender.start(wanted).end(60 + 3 * plan.frames / wanted)
    time.sleep(asked.settle)
    steal = host.steal_percent(ticks, host.cpu_ticks())
    grown = host.difference(before, host.statistics(asked.interface))
    sender.forget()
    share = sent.get("cpu_percent", 100.0 * wanted / top if top else 100.0)
    arrived = grown.get("rx_packets", 0)
    lost = sent["sent"] - arrived
    reasons = [sent["why"]] if not sent["valid"] else []
    if share >= 80:
        reasons.append(f"the generator is at {share:.0f} % of its power, must be below 80")
    if lost:
        reasons.append(f"{lost} of {sent['sent']} frames did not reach the sink")
    if steal > box.STEAL_PERCENT_MAX:
        reasons.append(f"steal {steal:.2f} %")
    verdict = "valid" if not reasons else "INVALID: " + "; ".join(reasons)
    return {
        "what": "generator check", "rate": rate, "asked": wanted, "ceiling": top, "flat_out": flat, "generator": sent,
        "sink": grown, "arrived": arrived, "generator_percent": share, "steal_percent": steal, "valid": not reasons,
        "invalid_because": "; ".join(reasons),
        "line": f"{wanted} frames/s into the sink, ceiling {top:.0f}, {arrived} of {sent['sent']} arrived: {verdict}",
    }


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=box.numbers, default=[100000], help="the target, frames/s; takes k and m")
    parser.add_argument("--size", type=int, default=128, help="bytes of a frame with its FCS")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long it sends at 110 %%")
    asked = box.enter(parser)
    if asked.short:
        asked.seconds, asked.rate = 0.5, [10000]
    with box.Box(asked, "generator-check") as bench:
        bench.set_mtu(asked.size)
        for rate in asked.rate:
            plan = bench.plan([asked.size], count=rate * 1.1 * asked.seconds)
            bench.add(check(bench, plan, rate))
        bench.result["valid"] = all(trial["valid"] for trial in bench.result["trials"])
        bench.write()
        return 0 if bench.result["valid"] else 1


if __name__ == "__main__":
    sys.exit(main())
