//! What the kernel tells of the host by calls, not files: clock discipline, file systems, NIC clocks, addresses. It only
//! asks: nothing here changes anything.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock;

/// How long a NIC's clock is watched: at 12.8 ns a tick taken for a nanosecond the rate is off by a factor, so that any
/// time that is long against a read (1 to 50 µs over PCIe) will do.
const CLOCK_WATCH: Duration = Duration::from_millis(50);
/// Kinds of clock identifiers that are descriptors (`CLOCKFD`, linux/posix-timers.h).
const CLOCK_FD: libc::clockid_t = 3;
const TIME_ERROR: i32 = 5;
const STA_PLL: i32 = 0x0001;
const STA_INS: i32 = 0x0010;
const STA_DEL: i32 = 0x0020;
const STA_UNSYNC: i32 = 0x0040;
const STA_NANO: i32 = 0x2000;

/// The kernel's first two numbers; `None` where they cannot be read.
pub fn kernel() -> Option<(u32, u32)> {
    numbers(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether this host has a NUMA node of this number.
pub fn has_numa_node(node: u32) -> bool {
    Path::new(&format!("/sys/devices/system/node/node{node}")).exists()
}

/// The state of the wall clock (adjtimex).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct WallClock {
    /// Somebody disciplines it.
    pub synchronised: bool,
    /// By how much it is still to be slewed, ns.
    pub offset_ns: i64,
    /// The largest error that its keeper admits, µs.
    pub error_us_max: i64,
    /// The error that its keeper expects, µs.
    pub error_us: i64,
    /// Correction of its rate, parts per billion.
    pub rate_ppb: i64,
    /// TAI − UTC, seconds; 0: nobody has set it.
    pub tai_offset_s: i32,
    /// A leap second is announced for the end of the day.
    pub leap: bool,
}

/// The state of the wall clock.
///
/// # Errors
/// The kernel's: a sandbox may forbid the call.
pub fn wall_clock() -> io::Result<WallClock> {
    // SAFETY: an all-zero timex is a valid value (modes = 0 only reads).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a valid, exclusive pointer for the duration of the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    let unit_ns = if timex.status & STA_NANO != 0 { 1 } else { 1_000 };
    Ok(WallClock {
        synchronised: state != TIME_ERROR && timex.status & STA_UNSYNC == 0,
        // Without the kernel's own loop the field is what the last one left.
        offset_ns: if timex.status & STA_PLL != 0 { timex.offset.saturating_mul(unit_ns) } else { 0 },
        error_us_max: timex.maxerror,
        error_us: timex.esterror,
        // 16 bits behind the point, in parts per million.
        rate_ppb: timex.freq.saturating_mul(1_000) >> 16,
        tai_offset_s: timex.tai,
        leap: timex.status & (STA_INS | STA_DEL) != 0,
    })
}

/// The host's own name; empty where it cannot be read.
pub fn name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

/// A NIC's clock against the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NicClock {
    /// How much faster than CLOCK_MONOTONIC it ran while it was watched, parts per million.
    pub rate_ppm: i64,
    /// It minus CLOCK_REALTIME, ns.
    pub minus_utc_ns: i64,
}

/// Watches `/dev/ptpN` for 50 ms.
///
/// # Errors
/// The kernel's; the device is root's on most hosts.
pub fn nic_clock(index: u32) -> io::Result<NicClock> {
    let device = std::fs::File::open(format!("/dev/ptp{index}"))?;
    let clock = !(device.as_raw_fd() as libc::clockid_t) << 3 | CLOCK_FD;
    let (first, first_at) = read_between(clock)?;
    clock::sleep(CLOCK_WATCH);
    let (second, second_at) = read_between(clock)?;
    let elapsed = (second_at - first_at).max(1);
    let rate_ppm = ((second - first - elapsed) as i128 * 1_000_000 / i128::from(elapsed)) as i64;
    Ok(NicClock { rate_ppm, minus_utc_ns: second - second_at - (clock::utc_ns() - clock::monotonic_ns()) })
}

/// A clock's time, and CLOCK_MONOTONIC in the middle of its reading, ns.
fn read_between(clock: libc::clockid_t) -> io::Result<(i64, i64)> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let before = clock::monotonic_ns();
    // SAFETY: `time` is a valid, exclusive pointer for the duration of the call.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let after = clock::monotonic_ns();
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let ns = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
    Ok((ns, before + (after - before) / 2))
}

/// Alignment that O_DIRECT asks for on a regular file, bytes (memory and offset: the larger). `None` where the file
/// system has no direct I/O or does not tell.
///
/// # Errors
/// The kernel's.
pub fn direct_alignment(file: &Path) -> io::Result<Option<u32>> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(file.as_os_str().as_bytes())?;
    let mut told = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: `path` is a terminated string and `told` room for one statx, both for the duration of the call.
    let result = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_DIOALIGN, told.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before, and filled by the call that succeeded.
    let told = unsafe { told.assume_init() };
    let has = told.stx_mask & libc::STATX_DIOALIGN != 0;
    Ok((has && told.stx_dio_offset_align != 0).then(|| told.stx_dio_mem_align.max(told.stx_dio_offset_align)))
}

/// IPv4 addresses of an interface of the calling thread's namespace.
///
/// # Errors
/// The kernel's.
pub fn ipv4_addresses(interface: &str) -> io::Result<Vec<Ipv4Addr>> {
    let all = nix::ifaddrs::getifaddrs()?.filter(|entry| entry.interface_name == interface);
    Ok(all.filter_map(|entry| Some(entry.address?.as_sockaddr_in()?.ip())).collect())
}

/// Names of the interfaces of the calling thread's namespace, sorted.
///
/// # Errors
/// The kernel's.
pub fn interface_names() -> io::Result<Vec<String>> {
    let mut names: Vec<String> = nix::ifaddrs::getifaddrs()?.map(|entry| entry.interface_name).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_read_and_nodes_that_are_not_there_are_known() {
        assert_eq!((numbers("6.18.5-amd64"), numbers("6.6\n"), numbers("x")), (Some((6, 18)), Some((6, 6)), None));
        assert!(kernel().expect("Linux") >= (5, 0));
        assert!(!has_numa_node(70_000));
    }

    #[test]
    fn the_host_tells_clock_and_addresses() {
        let clock = wall_clock().expect("reading needs no privilege");
        assert_eq!(clock.tai_offset_s, clock::tai_offset_seconds());
        assert!(interface_names().expect("answers").contains(&"lo".to_owned()));
        assert!(ipv4_addresses("no-such-interface").expect("answers").is_empty());
    }

    #[test]
    fn direct_io_is_asked_of_a_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let told = direct_alignment(file.path()).expect("asked");
        assert!(told.is_none_or(u32::is_power_of_two), "{told:?}");
        assert!(direct_alignment(Path::new("/no-such-file")).is_err());
    }
}
