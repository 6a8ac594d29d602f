"""Where trials run: two interfaces of real boxes, or a veth pair in a network namespace made for the purpose."""

import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile

from . import frames, host

VETH_LABEL = "veth: software path, not a NIC"
INSIDE = "SLUICE_BENCH_INSIDE"
# Stolen CPU time above which a trial says nothing.
STEAL_PERCENT_MAX = 0.5
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def numbers(text):
    """A list of numbers; takes k and m."""
    factor = {"k": 1000, "m": 1000000}
    return [int(float(word.strip("km")) * factor.get(word[-1:], 1)) for word in text.split(",")]


def arguments(description):
    """The options that every script takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--veth", action="store_true", help="a veth pair in a namespace of its own in place of NICs; labelled so")
    add("--interface", default="", help="the interface that is captured on")
    add("--generator-interface", default="", help="the interface that is sent from (on the generator's host)")
    add("--generator", choices=["play", "trex"], default="play", help="sluice feed play, or TRex (bench/nic/trex)")
    add("--generator-host", default="", help="the generator box, reached by ssh; none: this host")
    add("--generator-cpu", type=int, default=0, help="the CPU that the generator is pinned to")
    add("--generator-sluice", default="sluice", help="the binary on the generator box")
    add("--generator-folder", default="/opt/sluice-bench", help="where a copy of bench/nic lies on the generator box")
    add("--trex", default="/opt/trex", help="where TRex lies on the generator box")
    add("--sluice", default=os.path.join(ROOT, "target/release/sluice"), help="the binary under test")
    add("--cpus", type=numbers, default=[1], help="CPUs of the capture's cores, the last one writes")
    add("--idle", choices=["park", "spin", "backoff"], default="park", help="what idle cores do")
    add("--zero-copy", choices=["require", "prefer", "off"], default="prefer", help="asked; what is got is recorded")
    add("--mode", choices=["native", "auto", "generic"], default="auto", help="where the XDP program is attached")
    add("--frames", type=int, default=16384, help="UMEM frames of each queue")
    add("--ring", type=int, default=4096, help="descriptors of the receive ring")
    add("--stores", type=int, default=1, help="stores that the flows are spread over, each with a core")
    add("--record", choices=["auto", "merged", "raw"], default="auto", help="raw where a frame is too short for a message")
    add("--store", default="", help="where the stores lie: a file system of the disk under test; none: beside --out")
    add("--memory", default="/dev/shm", help="where captures to play lie")
    add("--set-queues", action="store_true", help="may run `ethtool -L` on --interface; else its count stays")
    add("--seed", type=int, default=0, help="marks the frames, and orders what is shuffled; 0: chosen and recorded")
    add("--out", default="bench-nic-results", help="folder of the result file")
    add("--settle", type=float, default=0.5, help="seconds between the last frame and the stop")
    add("--segment", default="256MiB", help="bytes of a store's segment; two of each store are made ahead")
    add("--short", action="store_true", help="seconds in place of minutes, small numbers: shows that it works")
    return parser


def enter(parser):
    """Parses; with --veth goes on in a namespace of its own, which is gone with this process."""
    asked = parser.parse_args()
    asked.sluice = os.path.abspath(asked.sluice)
    if not os.access(asked.sluice, os.X_OK):
        parser.error(f"--sluice {asked.sluice}: no such program: build it with `cargo build --release`")
    if os.geteuid() != 0:
        parser.error("needs root (XDP, namespaces)")
    if asked.veth:
        if os.environ.get(INSIDE) != "1":
            os.environ[INSIDE] = "1"
            os.execvp("unshare", ["unshare", "--net", "--mount", "--", sys.executable, *sys.argv])
        # Interfaces of this namespace, not of the one that /sys was mounted in; the mount is this process's own.
        run("mount", "-t", "sysfs", "sluice-bench", "/sys")
        asked.interface, asked.generator_interface, asked.zero_copy = "rx0", "tx0", "off"
    elif not asked.interface or not asked.generator_interface:
        parser.error("name --interface and --generator-interface, or take --veth")
    if asked.generator_host and asked.veth:
        parser.error("--generator-host and --veth: a namespace has no other box")
    if asked.generator == "trex" and not asked.generator_host:
        parser.error("--generator trex needs --generator-host: TRex takes a port away from its own kernel")
    if asked.short:
        asked.segment, asked.settle = "16MiB", 0.2
    # SIGTERM unwinds like Ctrl-C, so that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return asked


def with_parent():
    """In a child: it does not outlive this process."""
    # prctl(PR_SET_PDEATHSIG, SIGKILL).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Box:
    """The pair of interfaces, a scratch folder, and the result that grows."""

    def __init__(self, asked, name):
        self.asked, self.name = asked, name
        self.seed = asked.seed or random.SystemRandom().randrange(1, 1 << 28)
        self.queues = 0
        os.makedirs(asked.out, exist_ok=True)
        self.scratch = tempfile.mkdtemp(prefix="sluice-bench-", dir=asked.store or asked.out)
        self.memory = tempfile.mkdtemp(prefix="sluice-bench-", dir=asked.memory)
        self.result = {
            "benchmark": name, "label": VETH_LABEL if asked.veth else "NIC", "began": host.now(),
            "arguments": vars(asked), "command_line": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "seed": self.seed,
            **host.commit(ROOT), "sluice": host.told(asked.sluice, "--version"), "host": host.facts(), "trials": [],
        }
        self.began = host.cpu_ticks()
        self.set_queues(1 if asked.veth else 0)
        self.result["interfaces"] = [host.nic(asked.interface)]
        if not asked.generator_host:
            self.result["interfaces"].append(host.nic(asked.generator_interface))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        for folder in (self.scratch, self.memory):
            shutil.rmtree(folder, ignore_errors=True)
        if kind is not None and not isinstance(error, SystemExit):
            self.result["failed"] = f"{kind.__name__}: {error}"
            self.write()

    def plan(self, sizes, flows=1, skew=False, count=0):
        """Frames to send, marked as this run's. TRex counts a sequence for each size."""
        by_size = self.asked.generator == "trex"
        return frames.Plan(sizes, flows, self.seed, skew, frames=max(1, int(count)), by_size=by_size)

    def set_queues(self, count):
        """Gives the captured interface `count` queues (0: as it is); whether it has them."""
        asked = self.asked
        if asked.veth:
            if count != self.queues:
                self._veth(count)
        elif count and count != self.nic_queues():
            if not asked.set_queues:
                return False
            run(host.tool("ethtool") or "ethtool", "-L", asked.interface, "combined", str(count))
        self.queues = count or self.nic_queues()
        return True

    def nic_queues(self):
        """Receive queues of the captured interface."""
        folder = f"/sys/class/net/{self.asked.interface}/queues"
        return sum(1 for name in os.listdir(folder) if name.startswith("rx-"))

    def _veth(self, count):
        subprocess.run(["ip", "link", "delete", "tx0"], capture_output=True, check=False)
        run("ip", "link", "set", "lo", "up")
        each = ["numrxqueues", str(count), "numtxqueues", str(count), "mtu", "9000"]
        run("ip", "link", "add", "tx0", *each, "type", "veth", "peer", "name", "rx0", *each)
        for end in ("tx0", "rx0"):
            with open(f"/proc/sys/net/ipv6/conf/{end}/disable_ipv6", "w", encoding="ascii") as file:
                file.write("1")
            # An MTU at which a frame fits one chunk, unless a trial asks for more.
            run("ip", "link", "set", end, "mtu", "1500", "addrgenmode", "none", "up")
            if host.tool("ethtool"):
                off = [word for name in ("tx", "gso", "tso", "gro") for word in (name, "off")]
                subprocess.run([host.tool("ethtool"), "-K", end, *off], capture_output=True, check=False)

    def set_mtu(self, frame_bytes):
        """An MTU that the longest frame fits: only of the pair that is ours."""
        if self.asked.veth:
            mtu = max(1500, frame_bytes - 18)
            for end in ("tx0", "rx0"):
                run("ip", "link", "set", end, "mtu", str(mtu))

    def add(self, trial):
        """Keeps a trial, good or bad, and shows it in a line."""
        self.result["trials"].append(trial)
        print(f"  {trial.get('line', trial.get('what', ''))}", flush=True)
        return trial

    def write(self):
        """Writes the result file and its hash; its path."""
        self.result["ended"] = host.now()
        self.result["steal_percent"] = round(host.steal_percent(self.began, host.cpu_ticks()), 3)
        stamp = self.result["began"].replace(":", "").replace("-", "")
        path = os.path.join(self.asked.out, f"{self.name}-{stamp}-{self.seed}.json")
        text = json.dumps(self.result, indent=1, default=str) + "\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        with open(path + ".sha256", "w", encoding="ascii") as file:
            file.write(f"{digest}  {os.path.basename(path)}\n")
        print(f"{self.result['label']}; result: {path}", flush=True)
        return path


def run(*command):
    """Runs a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"\"{' '.join(command)}\" failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
