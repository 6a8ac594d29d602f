"""What sends: `sluice feed play` here or on another box, or TRex on another box. Each says what it sent."""

import json
import os
import shlex
import subprocess
import time

from . import host
from .box import with_parent

# The pace counts as kept from here on; below it the trial says nothing about the rate that was asked for.
PACE_KEPT = 0.99


class Play:
    """`sluice feed play`. The capture is written where it is played; the generator's CPU is pinned."""

    def __init__(self, box, interface):
        self.box, self.asked, self.interface, self.plan, self.capture = box, box.asked, interface, None, None

    def prepare(self, plan):
        """Writes the capture."""
        if self.plan is not None and plan.__dict__ == self.plan.__dict__:
            return
        self.forget()
        self.plan = plan
        if not self.asked.generator_host:
            self.capture = os.path.join(self.box.memory, f"play-{self.interface}.pcap")
            plan.write(self.capture)
            return
        self.capture = f"{self.asked.memory}/sluice-bench-{self.box.seed}-{self.interface}.pcap"
        script = os.path.join(self.asked.generator_folder, "lab/frames.py")
        command = self._there(["python3", script, *plan_arguments(plan), "--out", self.capture])
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"writing the capture on {self.asked.generator_host} failed: {done.stderr}")

    def _there(self, command):
        return ["ssh", self.asked.generator_host, shlex.join(command)] if self.asked.generator_host else command

    def command(self, rate):
        """The command line at `rate` frames a second; None: as fast as it goes."""
        there = self.asked.generator_host
        sluice = self.asked.generator_sluice if there else self.asked.sluice
        pace = ["--rate", str(rate)] if rate else ["--flat-out"]
        play = [sluice, "feed", "play", self.capture, "--interface", self.interface, *pace, "--json"]
        return self._there(["taskset", "-c", str(self.asked.generator_cpu), *play])

    def start(self, rate):
        """Begins to send."""
        command = self.command(rate)
        return Sending(command, rate)

    def forget(self):
        """Removes the capture."""
        if self.capture and not self.asked.generator_host and os.path.exists(self.capture):
            os.remove(self.capture)
        elif self.capture:
            subprocess.run(self._there(["rm", "-f", self.capture]), check=False)
        self.capture = self.plan = None


class Trex:
    """TRex through its own client, on the generator box; it counts its CPU itself."""

    def __init__(self, box, interface):
        self.asked, self.interface, self.plan = box.asked, interface, None

    def prepare(self, plan):
        """Nothing lies on a disk."""
        self.plan = plan

    def command(self, rate):
        """The command line at `rate` frames a second; None: at line rate."""
        script = os.path.join(self.asked.generator_folder, "trex/play.py")
        play = ["python3", script, "--trex", self.asked.trex, "--port", self.interface]
        play += [*plan_arguments(self.plan), *(["--rate", str(rate)] if rate else ["--line-rate"])]
        return ["ssh", self.asked.generator_host, shlex.join(play)]

    def start(self, rate):
        """Begins to send."""
        return Sending(self.command(rate), rate)

    def forget(self):
        """Nothing to remove."""


def plan_arguments(plan):
    """The plan as frames.py and trex/play.py take it."""
    sizes = "imix" if plan.is_imix else ",".join(map(str, plan.sizes))
    skew = ["--skew"] if plan.skew else []
    return ["--sizes", sizes, "--flows", str(plan.flows_asked), *skew, "--rounds", str(plan.rounds), "--seed", str(plan.seed)]


class Sending:
    """A generator at work."""

    def __init__(self, command, rate):
        self.command, self.rate = command, rate
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=with_parent,
        )

    def runs(self):
        """Whether it still sends."""
        return self.process.poll() is None

    def end(self, patience_seconds):
        """Waits for its end; what it sent."""
        try:
            out, error = self.process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, error = self.process.communicate()
            return {"sent": 0, "valid": False, "why": f"did not end within {patience_seconds:.0f} s", "told": error}
        if self.process.returncode != 0:
            return {"sent": 0, "valid": False, "why": f"exit code {self.process.returncode}: {error.strip()}"}
        return judge(json.loads(out), self.rate)

    def kill(self):
        """Ends it at once."""
        if self.runs():
            self.process.kill()
            self.process.communicate()


def judge(report, rate):
    """Whether the generator did what it was asked to: a trial that it spoilt says nothing."""
    reasons = []
    if rate and report["frames_per_second"] < PACE_KEPT * rate and report["seconds"] > 0.05:
        reasons.append(f"{report['frames_per_second']:.0f} frames/s reached of {rate} asked")
    if report.get("cpu_percent", 0) >= 80:
        reasons.append(f"generator CPU {report['cpu_percent']:.1f} %, must be below 80")
    if not report.get("finished", True):
        reasons.append("it did not send all frames")
    return {**report, "valid": not reasons, "why": "; ".join(reasons)}


def make(box, interface=None):
    """The generator that was asked for; `interface` where it is not the usual one."""
    kind = Trex if box.asked.generator == "trex" else Play
    return kind(box, interface or box.asked.generator_interface)


def ceiling(box, plan):
    """Into a sink as fast as it goes: (frames a second, what happened). The sink is the interface with nobody on it."""
    generator = make(box)
    generator.prepare(plan)
    before = host.statistics(box.asked.interface)
    report = generator.start(None).end(120)
    time.sleep(0.2)
    grown = host.difference(before, host.statistics(box.asked.interface))
    generator.forget()
    report["sink"] = grown
    return report.get("frames_per_second", 0.0), report
