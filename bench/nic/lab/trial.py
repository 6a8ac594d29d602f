"""One trial: start the capture, send, drain, read back what was sealed, compare by value, balance the books."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import time

from . import frames, generator, host
from .box import STEAL_PERCENT_MAX, with_parent

PATIENCE_SECONDS = 60
# Items of a feed's links.
LINK = 4096
STORED_ROW = "stored by the books = found by re-reading"


def configuration(box, store, plan, record, extra_store="", interfaces=None):
    """The TOML of a capture: a feed for each flow, stores and cores as asked."""
    asked, cpus = box.asked, box.asked.cpus
    interfaces = interfaces or [asked.interface]
    receive = cpus[:-1] or cpus
    # Links of many feeds are shorter, and a queue's frames at least what its rings and links can hold.
    link = LINK if plan.flows == 1 else LINK // 4
    held = max(asked.frames, 2 * asked.ring + 2 * link * plan.flows)
    text = ""
    for cpu in dict.fromkeys(cpus):
        text += f'[[core]]\nname = "cpu{cpu}"\ncpu = {cpu}\nidle = "{asked.idle}"\n'
    for name in interfaces:
        cores = ", ".join(f'"cpu{cpu}"' for cpu in receive)
        text += f'[[interface]]\nname = "{name}"\ncores = [{cores}]\nzero_copy = "{asked.zero_copy}"\n'
        text += f'mode = "{asked.mode}"\nframes = {held}\nring = {asked.ring}\n'
    stores = min(asked.stores, plan.flows)
    for flow in range(plan.flows):
        text += f'[[feed]]\nname = "flow{flow}"\nprotocol = "moldudp64"\ncore = "cpu{receive[flow % len(receive)]}"\n'
        text += f'store = "store{flow % stores}"\nrecord = "{record}"\nlink = {link}\n'
        for side, name in enumerate(interfaces):
            text += f'[[feed.side]]\nname = "{"AB"[side]}"\ninterface = "{name}"\n'
            text += f'groups = ["{frames.group(flow)}:{frames.PORT}"]\n'
    for index in range(stores):
        path, cpu = os.path.join(store, f"store{index}"), cpus[-1 - index % len(cpus)]
        text += f'[[store]]\nname = "store{index}"\npath = "{path}"\ncore = "cpu{cpu}"\n'
        text += extra_store or f'segment = "{asked.segment}"\n'
    return text + '[control]\nlisten = "127.0.0.1:0"\n'


class Capture:
    """`sluice run` at work."""

    def __init__(self, box, text, folder, name="run"):
        self.box, self.folder = box, folder
        self.report_path = os.path.join(folder, f"{name}-report.json")
        self.log_path = os.path.join(folder, f"{name}.log")
        config = os.path.join(folder, f"{name}.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        self.command = [box.asked.sluice, "run", config, "--report", self.report_path]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=with_parent,
                env={**os.environ, "SLUICE_LOG": "info"},
            )
        self._await("running; stop with")

    def _await(self, words):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in host.text_of(self.log_path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"sluice run does not start: {host.text_of(self.log_path)[-2000:]}")
            time.sleep(0.02)

    def signal(self, number):
        """Sends it a signal."""
        self.process.send_signal(number)

    def cpu_seconds(self):
        """User and system time so far, the kernel's workers for it included (proc(5): fields 14 and 15)."""
        fields = host.text_of(f"/proc/{self.process.pid}/stat").rsplit(")", 1)[-1].split()
        tick = os.sysconf("SC_CLK_TCK")
        return (int(fields[11]) + int(fields[12])) / tick if len(fields) > 12 else 0.0

    def stop(self):
        """Asks it to drain; its exit code and its last status."""
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        text = host.text_of(self.report_path)
        return code, json.loads(text) if text else {}

    def kill(self):
        """kill -9."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def export(sluice, segment, folder, plan, merged):
    """One segment read back: exported as a capture by a process of its own, and compared. For a pool of processes."""
    out = os.path.join(folder, os.path.basename(segment) + ".pcap")
    done = subprocess.run(
        [sluice, "store", "export", "--format", "pcap", "--out", out, segment], capture_output=True, text=True, check=False
    )
    found = frames.Found(plan)
    if os.path.exists(out):
        with open(out, "rb") as file:
            found.take(file.read(), merged)
        os.remove(out)
    told = "" if done.returncode == 0 else f"{os.path.basename(segment)}: exit {done.returncode}: {done.stderr.strip()}"
    return found, told


def read_back(box, store, plan, record):
    """Everything in the sealed stores, by value."""
    segments = [
        os.path.join(folder, name) for folder, _, names in os.walk(store) for name in sorted(names) if name.endswith(".tri")
    ]
    whole, damage = frames.Found(plan), []
    jobs = [(box.asked.sluice, segment, box.memory, plan, record == "merged") for segment in sorted(segments)]
    if len(jobs) <= 1:
        parts = [export(*job) for job in jobs]
    else:
        with concurrent.futures.ProcessPoolExecutor(min(len(jobs), os.cpu_count() or 1)) as pool:
            parts = list(pool.map(export, *zip(*jobs)))
    for part, told in parts:
        whole.merge(part)
        damage += [told] if told else []
    return whole, damage


def verify(box, store):
    """`store verify` of every store: checksums and order."""
    out = {}
    for name in sorted(os.listdir(store)):
        done = subprocess.run(
            [box.asked.sluice, "store", "verify", "--json", os.path.join(store, name)],
            capture_output=True, text=True, check=False,
        )
        out[name] = {"exit": done.returncode, "told": (done.stdout or done.stderr).strip()[:2000]}
    return out


def total(items, name):
    """A sum over a list of objects."""
    return sum(int(item.get(name) or 0) for item in items)


def conservation(sent, links, report, found, record, wire=True, store=True):
    """The books from the generator to the re-read store: identities, each with its residue. All must be 0.

    `wire`: one process saw everything that was sent. `store`: one process wrote everything that was read back.
    """
    capture = report.get("capture", {})
    programs = [program["frames"] for program in capture.get("xdp", [])]
    seen = sum(sum(program.values()) for program in programs)
    received_by_nic = links["rx"]
    rows = []

    def row(name, left, right):
        rows.append({"name": name, "left": left, "right": right, "residue": left - sum(right.values())})

    if wire:
        row("tx = nic_rx + nic_drop", sent, {"nic_rx": received_by_nic, "nic_drop": links["dropped"]})
        row("nic_rx = seen by the XDP program", received_by_nic, {"xdp": seen})
    for identity in capture.get("conservation", []):
        right = {str(name): value for name, value in identity["right"]}
        row(f"{identity['of']}: {identity['name']}", identity["left"][1], right)
    if store and record == "merged":
        row(STORED_ROW, total(report.get("stores", []), "stored"), {"found": found.records})
    return rows


def explained(report, links):
    """Frames of which some counter says where they were lost (frames of one message each)."""
    capture, stores = report.get("capture", {}), report.get("stores", [])
    queues, feeds = capture.get("queues", []), capture.get("feeds", [])
    return {
        "nic_drop": links["dropped"], "rx_dropped": total(queues, "rx_dropped"), "rx_ring_full": total(queues, "rx_ring_full"),
        "link_full": total(queues, "link_full"), "store_lost": total(stores, "lost"),
        "not_handed": total(feeds, "lost_link_full") + total(feeds, "lost_copy_pool"),
    }


def links_between(box, before, after):
    """What the interfaces counted in a trial: frames in, frames dropped on the way in."""
    rx = host.difference(before["rx"], after["rx"])
    tx = host.difference(before["tx"], after["tx"])
    dropped = tx.get("tx_dropped", 0) if box.asked.veth else 0
    dropped += sum(rx.get(name, 0) for name in ("rx_missed_errors", "rx_fifo_errors", "rx_over_errors", "rx_crc_errors"))
    return {"rx": rx.get("rx_packets", 0), "dropped": dropped, "rx_all": rx, "tx_all": tx}


def counters(box):
    """The interfaces' counters now."""
    local = not box.asked.generator_host
    return {
        "rx": host.statistics(box.asked.interface), "nic": host.nic_statistics(box.asked.interface),
        "tx": host.statistics(box.asked.generator_interface) if local else {}, "softnet": host.softnet_dropped(),
    }


def record_of(box, plan):
    """What the feed records: raw frames where some are too short to be a segment."""
    if box.asked.record != "auto":
        return box.asked.record
    return "raw" if plan.is_bare() else "merged"


class Setting:
    """What a trial does beside sending and receiving.

    `during(capture, sending)` runs beside the load; what it returns goes into the result, a "capture" in it is the process
    that runs from then on, "also_sent" frames came from elsewhere. `expect(out, found, report)` lists what must hold.
    """

    def __init__(self, what="", during=None, expect=None, extra_store="", store=None, wire=True, books=True, interfaces=None):
        self.what, self.during, self.expect, self.extra_store = what, during, expect, extra_store
        self.store, self.wire, self.books, self.interfaces = store, wire, books, interfaces


def trial(box, plan, rate, setting=None):
    """Runs one trial and judges it."""
    setting = setting or Setting()
    record, number = record_of(box, plan), len(box.result["trials"])
    folder = os.path.join(box.scratch, f"trial{number}")
    store = setting.store or os.path.join(folder, "stores")
    for path in (folder, store):
        os.makedirs(path, exist_ok=True)
    box.generator = getattr(box, "generator", None) or generator.make(box)
    box.generator.prepare(plan)
    text = configuration(box, store, plan, record, setting.extra_store, setting.interfaces)
    ran = run_load(box, plan, rate, setting, (text, folder))
    checked = verify(box, store)
    found, damage = read_back(box, store, plan, record)
    report, links = ran.pop("report"), ran["links"]
    books = conservation(ran["generator"]["sent"], links, report, found, record, setting.wire, setting.books)
    capture = report.get("capture", {})
    out = {
        "what": setting.what, "rate": rate, "frames": plan.frames, "pattern": pattern_of(plan), "record": record, "toml": text,
        "found": found.report(), "lost_ratio": found.missing() / max(1, plan.frames), "books": books, "verify": checked,
        "damage": damage, "lost_where": explained(report, links), "interfaces": capture.get("interfaces"),
        "queues": capture.get("queues"), "stores": report.get("stores"), **ran,
    }
    out["expected"] = setting.expect(out, found, report) if setting.expect else []
    if setting.store is None:
        shutil.rmtree(folder, ignore_errors=True)
    return judge(out)


def run_load(box, plan, rate, setting, where):
    """The part of a trial in which frames fly."""
    text, folder = where
    capture, sending, extra = Capture(box, text, folder), None, {}
    try:
        before, ticks = counters(box), host.cpu_ticks()
        sending = box.generator.start(rate)
        if setting.during:
            extra = setting.during(capture, sending) or {}
        capture = extra.pop("capture", capture)
        sent = sending.end(PATIENCE_SECONDS + 3 * (plan.frames / rate if rate else 60))
        time.sleep(box.asked.settle)
        cpu_seconds = capture.cpu_seconds()
        code, report = capture.stop()
    finally:
        if sending:
            sending.kill()
        extra.get("capture", capture).kill()
        capture.kill()
    steal = host.steal_percent(ticks, host.cpu_ticks())
    after = counters(box)
    return {
        "generator": {**sent, "command": sending.command}, "capture_command": capture.command, "exit": code,
        "report": report, "links": links_between(box, before, after), "cpu_seconds": cpu_seconds,
        "nic_counters": host.difference(before["nic"], after["nic"]), "steal_percent": round(steal, 3),
        "softnet_dropped": after["softnet"] - before["softnet"], **extra,
    }


def pattern_of(plan):
    """The plan in short."""
    sizes = "imix" if plan.is_imix else plan.sizes
    return {"sizes": sizes, "flows": plan.flows, "skew": plan.skew, "rounds": plan.rounds}


def judge(out):
    """Valid (it says something about the rate), sound (the books balance, nothing was changed), and why not."""
    reasons = [out["generator"]["why"]] if not out["generator"]["valid"] else []
    if out["steal_percent"] > STEAL_PERCENT_MAX:
        reasons.append(f"steal {out['steal_percent']:.2f} % is above {STEAL_PERCENT_MAX}")
    out["residue"] = sum(abs(row["residue"]) for row in out["books"])
    wrong = [row for row in out["books"] if row["residue"]]
    unsound = [f"{row['name']}: residue {row['residue']}" for row in wrong]
    unsound += [f"{out['found'][name]} frames {name}" for name in ("wrong", "foreign", "duplicate") if out["found"][name]]
    unsound += [f"store {name}: verify exit {told['exit']}" for name, told in out["verify"].items() if told["exit"] != 0]
    unsound += out["damage"] + [f"not as expected: {one['what']}" for one in out["expected"] if not one["holds"]]
    if out["exit"] != 0:
        unsound.append(f"sluice run ended with {out['exit']}")
    out.update(valid=not reasons, invalid_because="; ".join(reasons), sound=not unsound, unsound_because="; ".join(unsound))
    reached = out["generator"].get("frames_per_second", 0)
    lost = out["found"]["missing"]
    out["line"] = (
        f"{out['what'] or 'trial'}: {out['rate'] or 'line rate'} asked, {reached:.0f} frames/s sent, {out['frames']} frames, "
        f"{lost} lost ({1e6 * out['lost_ratio']:.1f} ppm)"
        + ("" if out["valid"] else f"; INVALID: {out['invalid_because']}")
        + ("" if out["sound"] else f"; FAILED: {out['unsound_because']}")
    )
    return out


def finish(box):
    """Writes the result; the exit code: 1 when a trial's books do not balance or a frame was changed."""
    failed = [trial for trial in box.result["trials"] if trial.get("sound") is False]
    box.result["sound"] = not failed
    box.write()
    for trial_ in failed:
        print(f"FAILED: {trial_['line']}")
    return 1 if failed else 0
