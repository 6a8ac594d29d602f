#!/usr/bin/env python3
"""Raw capture side by side on a veth pair: ours beside Debian's tools, shuffled, with an A/A control; and our stages alone.

Loss is counted by the sequence number in each frame, read back from the file that the tool left. Every trial is printed
as a line `trial {...}`; `cargo xtask bench peers` makes tables and plots of them.
"""

import array
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "nic"))
from lab import box, frames, generator, host, trial  # noqa: E402

SIZE = 128
# Frames that a tool's buffer must hold: the same memory for each, 64 MiB.
BUFFER_MIB = 64
READY_SECONDS = 10
# After the last frame: libpcap hands a block over that is not full after its read timeout, which is 1 s in tcpdump.
DRAIN_SECONDS = {"tcpdump": 1.2}
# CPU time of other programs during a trial, in percent of one CPU, above which it says nothing: an idle system has 1 to 5.
ELSEWHERE_PERCENT_MAX = 15
DRAIN_SECONDS_ELSE = 0.3


def say(kind, value):
    """One line for who reads this."""
    print(kind, json.dumps(value), flush=True)


class Foreign:
    """A tool of Debian's that writes a capture file."""

    def __init__(self, name, command, ready=None):
        self.name, self.make, self.ready = name, command, ready

    def start(self, setting):
        """Starts it on its CPU and waits until it listens: its packet socket is there."""
        self.path = os.path.join(setting.folder, "out.pcap")
        self.command = ["taskset", "-c", str(setting.cpu), *self.make(self.path, setting)]
        self.log = os.path.join(setting.folder, "log")
        before = packet_sockets()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=box.with_parent
            )
        deadline = time.monotonic() + READY_SECONDS
        while not (self.ready in host.text_of(self.log) if self.ready else packet_sockets() > before):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} does not start: {host.text_of(self.log)[-400:]}")
            time.sleep(0.01)
        time.sleep(0.1)

    def stop(self):
        """Ctrl-C, and what it wrote made durable. Its files."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        if not os.path.exists(self.path):
            raise RuntimeError(f"{self.name} left no file: {host.text_of(self.log)[-400:]}")
        sync(self.path)
        return [self.path]

    def kill(self):
        """Ends it at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Ours:
    """`sluice run`, with what a stage's configuration says."""

    def __init__(self, name, record="raw", feed="", store="", merged=False):
        self.name, self.record, self.feed, self.store, self.merged = name, record, feed, store, merged

    def start(self, setting):
        """Starts it."""
        asked = setting.bench.asked
        kept, asked.cpus = asked.cpus, [setting.cpu]
        scale = setting.scale
        asked.ring, asked.frames = 4096 * scale, 32768 * scale
        text = trial.configuration(setting.bench, setting.folder, setting.plan, self.record, STORE + self.store)
        text = text.replace('[[feed.side]]', self.feed.format(folder=setting.memory) + '[[feed.side]]', 1)
        self.capture = trial.Capture(setting.bench, text, setting.folder)
        self.command, asked.cpus, self.folder = self.capture.command, kept, setting.folder
        self.sluice, self.process = asked.sluice, self.capture.process

    def stop(self):
        """SIGTERM: it drains, seals and makes durable. The exported segments, for the count."""
        code, self.report = self.capture.stop()
        if code != 0:
            raise RuntimeError(f"{self.name} ended with {code}")
        return [os.path.join(self.folder, "store0")]

    def kill(self):
        """Ends it at once."""
        self.capture.kill()


STORE = 'segment = "128MiB"\nfsync = "seal"\n'


def packet_sockets():
    """Packet sockets in this namespace."""
    return len(host.text_of("/proc/net/packet").splitlines())


def sync(path):
    """fsync, inside the time that is measured."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def foreigners():
    """The tools that are here, tuned as their manuals say; and what is not here."""
    found, lacking, capture = [], {}, ["-i", "rx0"]

    def tcpdump(path, setting):
        buffer_kib = str(BUFFER_MIB * 1024 * setting.scale)
        return [host.tool("tcpdump"), *capture, "-n", "-Z", "root", "-B", buffer_kib, "-s", "0", "-w", path]

    def dumpcap(path, setting):
        return [host.tool("dumpcap"), *capture, "-q", "-P", "-B", str(BUFFER_MIB * setting.scale), "-s", "65535", "-w", path]

    def netsniff(path, setting):
        ring = ["--ring-size", f"{BUFFER_MIB * setting.scale}MiB"]
        return [host.tool("netsniff-ng"), "--in", "rx0", "--out", path, *ring, "-b", str(setting.cpu), "--silent"]

    def xdpdump(path, _setting):
        load = ["--load-xdp-program", "--use-pcap", "--perf-wakeup", "64"]
        return [host.tool("xdpdump"), *capture, *load, "-s", "65535", "-w", path]

    ask = {
        "tcpdump": (tcpdump, "listening on"), "dumpcap": (dumpcap, "File:"), "netsniff-ng": (netsniff, None),
        "xdpdump": (xdpdump, "listening on"),
    }
    for name, (command, ready) in ask.items():
        if host.tool(name):
            found.append(Foreign(name, command, ready))
        else:
            lacking[name] = "not installed"
    return found, lacking


class Setting:
    """One trial's place: CPUs, folder, file system, how many times the usual rings."""

    def __init__(self, bench, plan, folder, memory, swapped=False, scale=1):
        self.bench, self.plan, self.folder, self.memory, self.scale = bench, plan, folder, memory, scale
        cpus = sorted(os.sched_getaffinity(0))
        self.sender, self.cpu = (cpus[-1], cpus[0]) if swapped else (cpus[0], cpus[-1])


def sequences(path, plan):
    """How many different frames of this run a pcap holds; by stride, so without a loop, where all have one length."""
    with open(path, "rb") as file:
        data = file.read()
    stride = frames.RECORD_HEAD_BYTES + SIZE - frames.FCS_BYTES
    body = memoryview(data)[len(frames.PCAP_HEAD) :]
    count = len(body) // stride
    whole = bytes(body[: count * stride])
    lengths = whole[8::stride].count(SIZE - frames.FCS_BYTES)
    if lengths != count or len(body) % stride:
        # A frame of the kernel's own is among them (IGMP).
        found = frames.Found(plan)
        found.take(data, False)
        return found.found()
    numbers = bytearray(8 * count)
    for byte in range(8):
        numbers[7 - byte :: 8] = whole[frames.RECORD_HEAD_BYTES + frames.SEQUENCE_AT + byte :: stride]
    return len(set(array.array("Q", bytes(numbers))))


def count(bench, paths, plan):
    """Different frames of the plan in what a tool left."""
    found = 0
    for path in paths:
        if not os.path.isdir(path):
            found += sequences(path, plan)
            continue
        out = os.path.join(bench.memory, "export.pcap")
        box.run(bench.asked.sluice, "store", "export", "--format", "pcap", "--out", out, path)
        found += sequences(out, plan)
        os.remove(out)
    if found > plan.frames:
        raise RuntimeError(f"{found} frames found of {plan.frames} sent")
    return found


def cpu_ns(process):
    """CPU time of all threads so far, the kernel's workers for them included (schedstat: in ns)."""
    folder, total = f"/proc/{process.pid}/task", 0
    for thread in os.listdir(folder):
        total += int((host.text_of(f"{folder}/{thread}/schedstat") or "0").split()[0])
    return total


def measure(tool, setting, rate):
    """One trial of one tool: what was lost, and what CPU time it took."""
    bench, plan = setting.bench, setting.plan
    bench.asked.generator_cpu = setting.sender
    sender = generator.make(bench)
    sender.plan, sender.capture = plan, setting.capture
    before = host.cpu_ticks()
    tool.start(setting)
    try:
        ready, busy, began = cpu_ns(tool.process), host.cpu_ticks(), time.monotonic()
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        sent = sender.start(rate).end(60)
        time.sleep(DRAIN_SECONDS.get(tool.name, DRAIN_SECONDS_ELSE))
        drained, play = cpu_ns(tool.process), resource.getrusage(resource.RUSAGE_CHILDREN)
        drained_ticks, at = host.cpu_ticks(), time.monotonic()
        load_seconds = at - began
        paths = tool.stop()
        stop_seconds = time.monotonic() - at
    finally:
        tool.kill()
    after = host.cpu_ticks()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The tool is reaped in between, so these are all of its time, from which its start is taken.
    whole_ns = 1e9 * ((ended.ru_utime + ended.ru_stime) - (play.ru_utime + play.ru_stime)) - ready
    player_ns = 1e9 * ((play.ru_utime + play.ru_stime) - (started.ru_utime + started.ru_stime))
    # What neither had is somebody else's (softirq time of the frames included, which is charged to whom it interrupts).
    elsewhere = (drained_ticks[1] - busy[1]) * 1e9 / os.sysconf("SC_CLK_TCK") - (drained - ready) - player_ns
    elsewhere_percent = 100 * elsewhere / (1e9 * load_seconds)
    found, steal = count(bench, paths, plan), host.steal_percent(before, after)
    tick = os.sysconf("SC_CLK_TCK")
    reasons = [sent["why"]] if not sent["valid"] else []
    if steal > box.STEAL_PERCENT_MAX:
        reasons.append(f"steal {steal:.2f} %")
    if elsewhere_percent > ELSEWHERE_PERCENT_MAX:
        reasons.append(f"other programs took {elsewhere_percent:.0f} % of a CPU")
    return {
        "tool": tool.name, "rate": rate, "sent": sent["sent"], "reached": sent.get("frames_per_second", 0), "found": found,
        "lost_ppm": 1e6 * (plan.frames - found) / plan.frames, "cpu_us_per_frame": (drained - ready) / 1e3 / plan.frames,
        "cpu_with_stop_us_per_frame": whole_ns / 1e3 / plan.frames, "busy_seconds": (after[1] - busy[1]) / tick,
        "stop_seconds": stop_seconds, "elsewhere_percent": elsewhere_percent,
        "steal_percent": steal, "veth_dropped": sent.get("dropped"),
        "valid": not reasons, "why": "; ".join(reasons), "command": tool.command,
    }


def one(bench, tool, plan, capture, rate, labels, place=None, **how):
    """One trial in a fresh folder; a tool that fails says why, and is no figure."""
    folder = os.path.join(place or bench.memory, "trial")
    os.makedirs(folder)
    try:
        setting = Setting(bench, plan, folder, bench.memory, **how)
        setting.capture = capture
        out = measure(tool, setting, rate)
    except (RuntimeError, OSError) as error:
        out = {"tool": tool.name, "rate": rate, "valid": False, "why": str(error)}
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)
    say("trial", {**labels, **out, "command": " ".join(out.get("command", []))})


def captures(bench, rates, seconds, bare):
    """A capture for each rate, written once."""
    out = {}
    for rate in rates:
        plan = frames.Plan([SIZE], 1, bench.seed, frames=int(rate * seconds), bare=bare)
        path = os.path.join(bench.memory, f"{'bare' if bare else 'feed'}-{rate}.pcap")
        plan.write(path)
        out[rate] = (plan, path)
    return out


def raw(bench, asked, shuffled):
    """Table (a): raw capture only. Ours stands in it twice, as two tools: the A/A control."""
    tools, lacking = foreigners()
    tools += [Ours("sluice"), Ours("sluice again")]
    say("about", {"lacking": lacking, "versions": {tool.name: version(bench, tool.name) for tool in tools}})
    played = captures(bench, asked.rates, asked.seconds, True)
    jobs = [(tool, rate, number) for number in range(asked.rounds) for rate in asked.rates for tool in tools]
    # Within a round all is shuffled; rounds follow one another, so that drift is in all.
    jobs.sort(key=lambda job: (job[2], shuffled.random()))
    for tool, rate, number in jobs:
        one(bench, tool, *played[rate], rate, {"table": "raw", "case": "base", "round": number})
    middle = asked.rates[len(asked.rates) // 2]
    cases = [("swapped CPUs", {"swapped": True}), ("doubled buffers", {"scale": 2}), ("disk", {"place": bench.scratch})]
    again = [(case, tool, number) for number in range(asked.refutations) for case in cases for tool in tools]
    again.sort(key=lambda job: (job[2], shuffled.random()))
    for (case, how), tool, number in again:
        one(bench, tool, *played[middle], middle, {"table": "raw", "case": case, "round": number}, **how)


def version(bench, name):
    """A tool's version, as it says itself."""
    path = bench.asked.sluice if name.startswith("sluice") else host.tool(name)
    return (host.told(path, "--version").splitlines() or [""])[0]


STAGES = [
    Ours("raw frames", "raw"),
    Ours("arbiter and index", "merged"),
    Ours("arbiter, index, published ring", "merged", feed='publish = "{folder}/ring"\n'),
    Ours("raw frames and merged", "both"),
]


def stages(bench, asked, shuffled):
    """Table (b): our whole pipeline alone, stage by stage: what each of them costs."""
    rate = asked.rates[len(asked.rates) // 2]
    plan, capture = captures(bench, [rate], asked.seconds, False)[rate]
    for number in range(asked.rounds):
        for stage in shuffled.sample(STAGES, len(STAGES)):
            one(bench, stage, plan, capture, rate, {"table": "stages", "case": "base", "round": number})


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rates", type=box.numbers, default=[100000, 200000, 400000], help="frames/s")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each trial sends")
    parser.add_argument("--rounds", type=int, default=10, help="repeats of each cell")
    parser.add_argument("--refutations", type=int, default=2, help="repeats of each refutation")
    parser.add_argument("--tables", default="raw,stages", help="which")
    asked = box.enter(parser)
    with box.Box(asked, "peers-capture") as bench:
        plan = frames.Plan([SIZE], 1, bench.seed, frames=int(asked.rates[-1] * asked.seconds))
        top, _ = generator.ceiling(bench, plan)
        kept = [rate for rate in asked.rates if rate <= 0.8 * top]
        say("about", {"ceiling": top, "left_out_rates": [rate for rate in asked.rates if rate not in kept], "seed": bench.seed})
        asked.rates = kept
        if not kept:
            raise RuntimeError(f"no rate lies below 80 % of the generator's ceiling of {top:.0f} frames/s")
        shuffled = random.Random(bench.seed)
        for table in asked.tables.split(","):
            {"raw": raw, "stages": stages}[table](bench, asked, shuffled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
