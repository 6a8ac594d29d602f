//! How busy the machine is, and what of it its host took away.

/// The load average over a minute; infinitely much where it cannot be read.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(f64::INFINITY)
}

/// (stolen, all) ticks of 10 ms of all CPUs so far (proc(5): user, nice, system, idle, iowait, irq, softirq, steal; what follows is
/// contained in user).
pub fn cpu_times() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).filter_map(|tick| tick.parse().ok()).collect();
    (ticks.get(7).copied().unwrap_or(0), ticks.iter().take(8).sum())
}

/// Per cent of the CPU time between two looks that the host took.
pub fn steal_between(before: (u64, u64), after: (u64, u64)) -> f64 {
    let all = after.1.saturating_sub(before.1).max(1);
    after.0.saturating_sub(before.0) as f64 * 100.0 / all as f64
}
