//! What this process takes of the host: memory, threads, descriptors, as the kernel tells it under /proc/self.

use std::io;

/// What the process takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes of memory that are resident.
    pub resident_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Most descriptors that it may have open.
    pub descriptors_max: u64,
    /// The user that it is.
    pub user_id: u64,
}

/// Asks the kernel.
///
/// # Errors
/// /proc is not there, or not as the kernel writes it.
pub fn usage() -> io::Result<Usage> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    // The directory that is read is open itself.
    let descriptors = std::fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64;
    let (descriptors_max, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    Ok(Usage {
        resident_bytes: 1024 * field(&status, "VmRSS:")?,
        threads: field(&status, "Threads:")?,
        descriptors,
        descriptors_max,
        user_id: field(&status, "Uid:")?,
    })
}

/// A user's name as the host's own list has it: whoever shows it waits for no directory service.
pub fn user_name(id: u64) -> Option<String> {
    name_in(&std::fs::read_to_string("/etc/passwd").ok()?, id)
}

fn name_in(passwd: &str, id: u64) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        // name:password:id:…
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_string())
    })
}

fn field(status: &str, name: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_whitespace().next()).and_then(|word| word.parse().ok());
    value.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/status has no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_list() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nsluice:x:998:997::/nonexistent:/usr/sbin/nologin\n";
        assert_eq!([0, 998, 1].map(|id| name_in(list, id)), [Some("root".into()), Some("sluice".into()), None]);
        assert_eq!(usage().expect("/proc").user_id, u64::from(nix::unistd::getuid().as_raw()));
    }

    #[test]
    fn what_is_taken_shows() {
        let before = usage().expect("/proc");
        let held: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").expect("opens")).collect();
        let memory = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = usage().expect("/proc");
        // Other tests run beside this one, and open and free as they like.
        assert!(
            after.descriptors >= before.descriptors.saturating_sub(20) + held.len() as u64 - 20,
            "{before:?} {after:?}"
        );
        assert!(after.resident_bytes > memory.len() as u64, "{after:?}");
        assert!(before.threads >= 1 && before.descriptors_max >= before.descriptors);
        assert!(field("Name:\tx\nVmRSS:\t  12 kB\n", "VmRSS:").is_ok_and(|kib| kib == 12));
        assert!(field("Name:\tx\n", "VmRSS:").is_err());
    }
}
