#!/usr/bin/env python3
"""(f) Faults under load, each with the ledger that is expected of it: what was promised is there, what is lost is told.

kill -9 and restart; disk full; one side dead; the capture stopped for 2 s (SIGSTOP: the fill ring runs dry); a noisy
neighbour on its CPU; a step of the host's clock, only with --clock-step. A power cut is in the runbook: nobody but a
person can do it.
"""

import os
import signal
import subprocess
import sys
import time

from lab import box, generator, host, trial

# What `flush` and `fsync_interval` of the trial's store are, and what a loaded machine may add to them.
DURABLE_SECONDS = 0.4
SLACK_SECONDS = 1.0
KILL_SECONDS_MIN = 4
FULL_FRAME_BYTES = 1024
FLUSH = 'segment = "32MiB"\nblock = "128KiB"\nflush = "200ms"\nfsync_interval = "200ms"\n'


def expected(what, holds, **numbers):
    """One line of a fault's ledger."""
    return {"what": what, "holds": bool(holds), **numbers}


def all_told(out, _found, _report):
    """Every frame that is missing stands in some counter, and in one only."""
    told = sum(out["lost_where"].values())
    missing = out["found"]["missing"]
    return [expected("missing frames = losses told by the counters", missing == told, missing=missing, told=out["lost_where"])]


def stopped(bench, plan, rate):
    """SIGSTOP for so long: rings and fill ring run dry, and the loss is told."""
    seconds = bench.asked.stop_seconds

    def during(capture, _sending):
        time.sleep(plan.frames / rate / 4)
        capture.signal(signal.SIGSTOP)
        time.sleep(seconds)
        capture.signal(signal.SIGCONT)
        return {"stopped_seconds": seconds}

    return trial.trial(bench, plan, rate, trial.Setting("SIGSTOP", during, all_told, FLUSH))


def noisy(bench, plan, rate):
    """Busy loops on the capture's CPUs."""

    def during(_capture, sending):
        spin = [sys.executable, "-c", "while True: pass"]
        loops = [
            subprocess.Popen(["taskset", "-c", str(cpu), *spin], preexec_fn=box.with_parent) for cpu in bench.asked.cpus
        ]
        while sending.runs():
            time.sleep(0.02)
        for loop in loops:
            loop.kill()
            loop.wait()
        return {"loops": len(loops)}

    return trial.trial(bench, plan, rate, trial.Setting("noisy neighbour", during, all_told, FLUSH))


def stepped(bench, plan, rate):
    """The wall clock jumps forward and back again, by as much as passed on the monotonic one."""
    step = bench.asked.clock_step

    def during(_capture, _sending):
        time.sleep(plan.frames / rate / 3)
        time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + step)
        try:
            time.sleep(plan.frames / rate / 3)
        finally:
            time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) - step)
        return {"step_seconds": step}

    def ledger(out, found, _report):
        return all_told(out, found, _report) + [expected("no frame is lost by the step", out["found"]["missing"] == 0)]

    return trial.trial(bench, plan, rate, trial.Setting("clock step", during, ledger, FLUSH))


def full(bench, plan, rate):
    """The store's file system is smaller than what is sent: a memory file system of our own, so no real disk is filled."""
    folder = os.path.join(bench.scratch, "full")
    os.makedirs(folder)
    # Long frames fill it sooner; it holds a third of them, and a few segments.
    plan = bench.plan([FULL_FRAME_BYTES], count=plan.frames)
    size = max(8, plan.frames * plan.mean_frame_bytes() / 3 / (1 << 20))
    box.run("mount", "-t", "tmpfs", "-o", f"size={int(size)}m", "sluice-bench", folder)

    def ledger(out, found, report):
        causes = [store["lost_by_cause"] for store in report.get("stores", [])]
        lost = sum(cause.get("no_space", 0) for cause in causes)
        told = [expected("the store says what had no space", lost > 0, no_space=lost)]
        last = max((at for _, at, _ in found.ranges(1)), default=0)
        told.append(expected("what is there begins at the first frame", last > 1, first_missing=last))
        return all_told(out, found, report) + told

    try:
        store = os.path.join(folder, "stores")
        settings = 'segment = "2MiB"\nblock = "128KiB"\nflush = "200ms"\n'
        return trial.trial(bench, plan, rate, trial.Setting("disk full", None, ledger, settings, store))
    finally:
        box.run("umount", folder)


def killed(bench, plan, rate):
    """kill -9 in the middle, and a new start on the same store: what was durable is there, the hole is one."""
    # Long enough before the kill that something must be durable.
    plan = bench.plan([bench.asked.size], count=max(plan.frames, KILL_SECONDS_MIN * rate))
    store = os.path.join(bench.scratch, "killed")
    os.makedirs(store)
    at = {}

    def during(capture, _sending):
        time.sleep(plan.frames / rate / 2)
        at["killed"] = time.monotonic()
        capture.kill()
        text = host.text_of(capture.command[2])
        again = trial.Capture(bench, text, capture.folder, "again")
        at["running"] = time.monotonic()
        return {"capture": again, "down_seconds": at["running"] - at["killed"]}

    def ledger(out, found, _report):
        ranges = found.ranges()
        half = plan.frames // 2
        durable = half - (DURABLE_SECONDS + SLACK_SECONDS) * rate
        back = half + (out["down_seconds"] + SLACK_SECONDS) * rate
        lines = [expected("what is missing is one range", len(ranges) == 1, ranges=ranges)]
        if len(ranges) == 1:
            _, first, last = ranges[0]
            lines.append(expected("what was durable is there", first > durable, first_missing=first, durable=durable))
            lines.append(expected("what came after the start is there", last < back, last_missing=last, bound=back))
        return lines

    setting = trial.Setting("kill -9", during, ledger, FLUSH, store, wire=False, books=False)
    return trial.trial(bench, plan, rate, setting)


def one_side(bench, plan, rate):
    """Two sides on two interfaces; one falls silent in the middle. Not a frame is lost, not one is stored twice."""
    asked = bench.asked
    if not asked.interface_b:
        why = "name --interface-b and --generator-interface-b"
        return {"what": "one side dead", "skipped": why, "line": f"one side dead: skipped: {why}"}

    # Side B has the first half only: it falls silent by itself.
    second = generator.make(bench, asked.generator_interface_b)
    second.prepare(bench.plan([asked.size], count=plan.frames // 2))

    def during(_capture, _sending):
        return {"side_b": second.start(rate).end(60 + plan.frames / rate)}

    def ledger(out, _found, report):
        feed = report["capture"]["feeds"][0]
        sides = [side["messages"] for side in report["capture"]["sides"] if side["feed"] == feed["feed"]]
        return [
            expected(
                "nothing is missing but what was lost on side A on the way in",
                out["found"]["missing"] <= sum(out["lost_where"].values()), sides=sides, told=out["lost_where"],
            ),
            expected("side B came in and fell silent", 0 < sides[1] < sides[0], sides=sides),
        ]

    interfaces = [asked.interface, asked.interface_b]
    setting = trial.Setting("one side dead", during, ledger, FLUSH, wire=False, interfaces=interfaces)
    out = trial.trial(bench, plan, rate, setting)
    second.forget()
    return out


FAULTS = {"kill": killed, "full": full, "side": one_side, "stop": stopped, "noisy": noisy, "clock": stepped}


def second_pair(asked):
    """The veth pair of side B."""
    if asked.veth:
        box.run("ip", "link", "add", "tx1", "type", "veth", "peer", "name", "rx1")
        for end in ("tx1", "rx1"):
            with open(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6", "w", encoding="ascii") as file:
                file.write("1")
            box.run("ip", "link", "set", end, "addrgenmode", "none", "up")
        asked.interface_b, asked.generator_interface_b = "rx1", "tx1"


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=box.numbers, default=[100000], help="frames/s; takes k and m")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long it sends for each fault")
    parser.add_argument("--size", type=int, default=128, help="bytes of a frame with its FCS")
    parser.add_argument("--stop-seconds", type=float, default=2.0, help="how long SIGSTOP lasts")
    parser.add_argument("--clock-step", type=float, default=0.0, help="seconds that the wall clock is set forward; 0: not")
    parser.add_argument("--interface-b", default="", help="side B's interface")
    parser.add_argument("--generator-interface-b", default="", help="where side B is sent from")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which, separated by commas")
    asked = box.enter(parser)
    if asked.short:
        asked.rate, asked.seconds, asked.stop_seconds = [10000], 2.4, 0.4
    names = [name for name in asked.faults.split(",") if name != "clock" or asked.clock_step]
    with box.Box(asked, "faults") as bench:
        bench.set_mtu(asked.size)
        second_pair(asked)
        rate = asked.rate[0]
        plan = bench.plan([asked.size], count=rate * asked.seconds)
        for name in names:
            bench.add(FAULTS[name](bench, plan, rate))
        bench.result["summary"] = {
            out["what"]: out.get("skipped") or ("as expected" if out["sound"] else out["unsound_because"])
            for out in bench.result["trials"]
        }
        return trial.finish(bench)


if __name__ == "__main__":
    sys.exit(main())
