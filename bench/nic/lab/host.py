"""Facts about this host that bear on a result: what a reader needs to judge it, or to repeat it."""

import datetime
import os
import platform
import subprocess

# What of a NIC is published: driver and firmware, offloads, channels, rings, coalescing, RSS, rules, private flags.
ETHTOOL = ("-i", "-k", "-l", "-g", "-c", "-x", "-n", "--show-priv-flags", "-a", "--show-fec")


def text_of(path):
    """A file's text, or nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def told(*command):
    """What a command prints, or why it could not be asked."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not to be had: {error}"
    return (done.stdout or done.stderr).strip()


def tool(name):
    """A program's path; root's tools lie where a user's PATH does not look."""
    for folder in os.environ.get("PATH", "").split(":") + ["/usr/sbin", "/sbin"]:
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


def now():
    """The time, UTC."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def nic(interface):
    """Everything that is asked about an interface."""
    device = f"/sys/class/net/{interface}"
    facts = {
        "name": interface, "mtu": text_of(f"{device}/mtu"), "speed_mbit": text_of(f"{device}/speed"),
        "numa_node": text_of(f"{device}/device/numa_node"),
        "pci": os.path.basename(os.path.realpath(f"{device}/device")) if os.path.exists(f"{device}/device") else "",
        "pcie_width": text_of(f"{device}/device/current_link_width"),
        "pcie_speed": text_of(f"{device}/device/current_link_speed"), "link": told("ip", "-d", "link", "show", interface),
    }
    if tool("ethtool"):
        facts["ethtool"] = {option: told(tool("ethtool"), option, interface) for option in ETHTOOL}
    irqs = f"{device}/device/msi_irqs"
    numbers = sorted(os.listdir(irqs)) if os.path.isdir(irqs) else []
    facts["irqs"] = {irq: text_of(f"/proc/irq/{irq}/effective_affinity_list") for irq in numbers}
    return facts


def facts():
    """The machine."""
    cpu = text_of("/proc/cpuinfo").split("\n\n")[0]
    field = {line.split(":")[0].strip(): line.split(":", 1)[1].strip() for line in cpu.splitlines() if ":" in line}
    weak = "/sys/devices/system/cpu/vulnerabilities"
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq"
    return {
        "kernel": platform.release(), "kernel_build": platform.version(), "cmdline": cmdline(),
        "cpu": field.get("model name", ""), "family_model": f"{field.get('cpu family')}/{field.get('model')}",
        "microcode": field.get("microcode", ""), "cpus": os.cpu_count(), "numa": told("lscpu", "-e=CPU,NODE,CORE,SOCKET"),
        "governor": text_of(f"{frequency}/scaling_governor") or "none (no cpufreq)",
        "driver": text_of("/sys/devices/system/cpu/cpuidle/current_driver"),
        "turbo_off": text_of("/sys/devices/system/cpu/intel_pstate/no_turbo"),
        "bios": " ".join(text_of(f"/sys/class/dmi/id/{name}") for name in ("bios_vendor", "bios_version", "bios_date")),
        "product": text_of("/sys/class/dmi/id/product_name"),
        "mitigations": {name: text_of(f"{weak}/{name}") for name in sorted(os.listdir(weak))} if os.path.isdir(weak) else {},
        "clocksource": text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "irqbalance": told("pgrep", "-a", "irqbalance"), "memory_kb": text_of("/proc/meminfo").split("\n")[0],
        "thp": text_of("/sys/kernel/mm/transparent_hugepage/enabled"),
    }


def cmdline():
    """The kernel's command line, without what follows its own arguments."""
    return text_of("/proc/cmdline").split(" -- ")[0]


def commit(folder):
    """The commit that the scripts are of, and whether they were changed."""
    head = told("git", "-C", folder, "rev-parse", "HEAD")
    changed = bool(told("git", "-C", folder, "status", "--porcelain", "--untracked-files=no"))
    return {"commit": head, "changed": changed}


def cpu_ticks():
    """(stolen, busy, all) ticks of all CPUs since the start."""
    ticks = [int(part) for part in text_of("/proc/stat").split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def steal_percent(before, after):
    """The part of the CPU time between two looks that the host took away."""
    return 100.0 * (after[0] - before[0]) / max(1, after[2] - before[2])


def softnet_dropped():
    """Frames dropped at the softnet backlog, all CPUs."""
    return sum(int(line.split()[1], 16) for line in text_of("/proc/net/softnet_stat").splitlines())


def statistics(interface):
    """The interface's own counters."""
    folder = f"/sys/class/net/{interface}/statistics"
    return {name: int(text_of(f"{folder}/{name}") or 0) for name in sorted(os.listdir(folder))}


def nic_statistics(interface):
    """The driver's counters (`ethtool -S`) that are not 0."""
    if not tool("ethtool"):
        return {}
    out = {}
    for line in told(tool("ethtool"), "-S", interface).splitlines():
        name, _, value = line.strip().rpartition(":")
        if value.strip().isdigit() and int(value):
            out[name] = int(value)
    return out


def difference(before, after):
    """What counters grew by; only those that did."""
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
