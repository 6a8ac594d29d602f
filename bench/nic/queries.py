#!/usr/bin/env python3
"""(e) Capture while it is queried and exported, past the first retention wrap: loss, and p50, p99, p99.9 of the queries.

The store is so small that retention deletes during the trial. Each sealed segment gets a second name before it can be
deleted, is exported and compared by value while the capture goes on: so every frame is judged, also the deleted ones.
"""

import os
import random
import re
import subprocess
import sys
import threading
import time

from lab import box, frames, search, trial

STATS = re.compile(r"opened in ([\d.]+) us; first record after ([\d.]+) us")


class Beside:
    """What runs beside the capture: queries, and the exporter of sealed segments."""

    def __init__(self, bench, plan, store, kept):
        self.bench, self.plan, self.store, self.kept = bench, plan, store, kept
        self.stop, self.latencies = threading.Event(), {"process": [], "opened": [], "first_record": []}
        self.found, self.damage, self.failed, self.linked = frames.Found(plan), [], [], set()
        self.random = random.Random(bench.seed)
        self.lock = threading.Lock()

    def link(self):
        """Gives what is sealed a second name."""
        folder = os.path.join(self.store, "store0")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.endswith(".tri") and name not in self.linked:
                try:
                    os.link(os.path.join(folder, name), os.path.join(self.kept, name))
                    self.linked.add(name)
                except FileNotFoundError:
                    self.failed.append(f"{name} was deleted before it could be read")

    def export_all(self):
        """Exports and compares what has a second name, oldest first, and lets it go."""
        for name in sorted(os.listdir(self.kept)):
            path = os.path.join(self.kept, name)
            found, told = trial.export(self.bench.asked.sluice, path, self.bench.memory, self.plan, self.merged)
            self.found.merge(found)
            self.damage += [told] if told else []
            os.remove(path)

    @property
    def merged(self):
        """How the store was recorded."""
        return trial.record_of(self.bench, self.plan) == "merged"

    def links(self):
        """Until the end: sealed segments get their second name soon."""
        while not self.stop.wait(0.01):
            self.link()

    def exports(self):
        """Until the end: a continuous export."""
        while not self.stop.wait(0.05):
            self.export_all()

    def queries(self):
        """Until the end: one record by sequence, of anything sent so far, a process each."""
        began = time.monotonic()
        while not self.stop.wait(self.bench.asked.query_pause):
            sent = int((time.monotonic() - began) * self.bench.asked.rate[0])
            wanted = str(self.random.randrange(1, max(2, min(sent, self.plan.frames))))
            command = [self.bench.asked.sluice, "store", "query", "--stats", "--sequence", wanted, "--limit", "1"]
            at = time.monotonic()
            done = subprocess.run([*command, os.path.join(self.store, "store0")], capture_output=True, text=True, check=False)
            took = (time.monotonic() - at) * 1e6
            told = STATS.search(done.stderr)
            with self.lock:
                if told:
                    self.latencies["process"].append(took)
                    self.latencies["opened"].append(float(told[1]))
                    self.latencies["first_record"].append(float(told[2]))
                elif len(self.failed) < 100:
                    self.failed.append(f"query of {wanted}: exit {done.returncode}: {done.stderr.strip()[:200]}")

    def threads(self):
        """All of them, started."""
        work = [self.links, self.exports] + [self.queries] * self.bench.asked.clients
        threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in threads:
            thread.start()
        return threads


def measure(bench, rate, seconds):
    """The trial, with what runs beside it."""
    asked = bench.asked
    plan = bench.plan([asked.size], count=rate * seconds)
    # A stored frame takes its bytes and a record's head; a third of what is sent fits.
    segment = max(1 << 20, int(plan.frames * (asked.size + 40) / 12) >> 12 << 12)
    extra = f'segment = "{segment}B"\nretain = "{4 * segment}B"\nblock = "128KiB"\nflush = "200ms"\n'
    folder = os.path.join(bench.scratch, "queries")
    store, kept = os.path.join(folder, "stores"), os.path.join(folder, "kept")
    os.makedirs(store)
    os.makedirs(kept)
    beside = Beside(bench, plan, store, kept)

    def during(_capture, sending):
        threads = beside.threads()
        while sending.runs():
            time.sleep(0.05)
        time.sleep(asked.settle)
        beside.stop.set()
        for thread in threads:
            thread.join()

    what = f"{asked.size} B, {asked.clients} clients and an export"
    out = trial.trial(bench, plan, rate, trial.Setting(what, during, extra_store=extra, store=store))
    # What was sealed at the end is still there; what was deleted has its second name.
    beside.link()
    beside.export_all()
    still = out["found"]
    out["still_in_store"], out["found"] = still, beside.found.report()
    out["lost_ratio"] = beside.found.missing() / plan.frames
    for row in out["books"]:
        if row["name"] == trial.STORED_ROW:
            row["right"] = {"found": beside.found.records}
            row["residue"] = row["left"] - beside.found.records
    out["damage"] += beside.damage
    out["wrapped"] = still["found"] < out["found"]["found"]
    out["query_latency_us"] = {name: search.percentiles(all_) for name, all_ in beside.latencies.items()}
    out["queries_failed"] = beside.failed
    return bench.add(trial.judge(out))


def main():
    parser = box.arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=box.numbers, default=[100000], help="frames/s; takes k and m")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long it sends")
    parser.add_argument("--size", type=int, default=128, help="bytes of a frame with its FCS")
    parser.add_argument("--clients", type=int, default=2, help="clients that query, each one query after another")
    parser.add_argument("--query-pause", type=float, default=0.002, help="seconds between two queries of a client")
    asked = box.enter(parser)
    if asked.short:
        asked.rate, asked.seconds, asked.clients, asked.size = [10000], 4.0, 1, 512
    with box.Box(asked, "queries") as bench:
        bench.set_mtu(asked.size)
        out = measure(bench, asked.rate[0], asked.seconds)
        bench.result["summary"] = {"wrapped": out["wrapped"], "query_latency_us": out["query_latency_us"]}
        print(f"retention wrapped: {out['wrapped']}; {out['query_latency_us']}")
        return trial.finish(bench)


if __name__ == "__main__":
    sys.exit(main())
