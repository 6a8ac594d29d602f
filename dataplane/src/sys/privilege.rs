//! Who the process is, and what it may do: becoming an unprivileged user, and giving up capabilities thread by thread.
//!
//! Capabilities belong to threads. Whoever prepares with them calls [`will_renounce`] first; every thread that is started from then
//! on calls [`renounce`] as soon as it has what it needs, and [`left`] tells whether one was forgotten.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::{Gid, Group, Uid, User};

/// A capability, by its number in `linux/capability.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Capability {
    /// Listen on a port below 1024.
    NetBindService = 10,
    /// Attach XDP programs; socket buffers above the host's limit.
    NetAdmin = 12,
    /// AF_XDP and AF_PACKET sockets.
    NetRaw = 13,
    /// Lock more memory than the limit.
    IpcLock = 14,
    /// Name a foreign XDP program, and take its place.
    SysAdmin = 21,
    /// Raise limits; pipes above the host's bound.
    SysResource = 24,
    /// What the verifier asks of an XDP program with pointer arithmetic.
    Perfmon = 38,
    /// Load programs and make maps.
    Bpf = 39,
}

/// What is needed until everything is open, and by nothing afterwards.
pub const TO_PREPARE: [Capability; 8] = [
    Capability::NetBindService,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::SysAdmin,
    Capability::SysResource,
    Capability::Perfmon,
    Capability::Bpf,
];

/// Whom to become.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user's name.
    pub name: String,
    /// The user.
    pub user: Uid,
    /// The first group.
    pub group: Gid,
}

/// Why it is not known whom to become.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No such user or group on this host.
    #[error("there is no {what} \"{name}\" on this host: make it (systemd-sysusers, useradd -r), or name another")]
    Unknown {
        /// `user` or `group`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The user data base did not answer.
    #[error("looking up {what} \"{name}\": {error}")]
    LookUp {
        /// `user` or `group`.
        what: &'static str,
        /// Its name.
        name: String,
        /// The system's word.
        error: io::Error,
    },
}

impl IdentityError {
    /// Whether it is about the group.
    pub fn is_group(&self) -> bool {
        let (IdentityError::Unknown { what, .. } | IdentityError::LookUp { what, .. }) = self;
        *what == "group"
    }
}

/// Looks a user and a group up by name; without a group it is the user's own.
///
/// # Errors
/// As [`IdentityError`].
pub fn identity(user: &str, group: Option<&str>) -> Result<Identity, IdentityError> {
    let unknown = |what, name: &str| IdentityError::Unknown { what, name: name.to_string() };
    let failed = |what, name: &str, error: nix::Error| {
        let (name, error) = (name.to_string(), error.into());
        IdentityError::LookUp { what, name, error }
    };
    let known = User::from_name(user).map_err(|error| failed("user", user, error))?;
    let known = known.ok_or_else(|| unknown("user", user))?;
    let group = match group {
        None => known.gid,
        Some(name) => {
            let group = Group::from_name(name).map_err(|error| failed("group", name, error))?;
            group.ok_or_else(|| unknown("group", name))?.gid
        }
    };
    Ok(Identity { name: known.name, user: known.uid, group })
}

/// The user and the group that this process runs as.
pub fn own() -> (u32, u32) {
    (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw())
}

/// Whether this process runs as that user.
pub fn is(identity: &Identity) -> bool {
    nix::unistd::geteuid() == identity.user
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Becomes `identity` in every thread, none of which may have given anything up before (the C library ends a process whose threads
/// would not all become the same). The calling thread keeps those of `kept` that it has; every other thread loses all.
///
/// # Errors
/// As `setgroups`, `setresgid`, `setresuid`, `capset`; the process may then be neither the one nor the other and must end.
pub fn become_user(identity: &Identity, kept: &[Capability]) -> io::Result<()> {
    let name = CString::new(identity.name.as_str())?;
    control(libc::PR_SET_KEEPCAPS, 1)?;
    nix::unistd::initgroups(&name, identity.group)?;
    nix::unistd::setresgid(identity.group, identity.group, identity.group)?;
    nix::unistd::setresuid(identity.user, identity.user, identity.user)?;
    control(libc::PR_SET_KEEPCAPS, 0)?;
    let kept = kept.iter().fold(0, |mask, &capability| mask | 1 << capability as u32);
    set(kept & own_permitted()?)?;
    // A change of user hides /proc/self from the process itself: it could not count its own descriptors.
    control(libc::PR_SET_DUMPABLE, 1)
}

static RENOUNCES: AtomicBool = AtomicBool::new(false);

/// Whether [`will_renounce`] was called.
pub fn renounces() -> bool {
    RENOUNCES.load(Ordering::Relaxed)
}

/// From now on threads give up what they do not need any more, and programs that are started get nothing. There is no way back.
///
/// # Errors
/// As `prctl`.
pub fn will_renounce() -> io::Result<()> {
    RENOUNCES.store(true, Ordering::Relaxed);
    clear_ambient()?;
    control(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// The calling thread gives up all of its capabilities for good, where [`will_renounce`] was called: ambient ones too, which would
/// pass to the programs that it starts, and those programs gain none by being executed.
///
/// # Errors
/// As `capset`; it refuses nobody who only gives up.
pub fn renounce() -> io::Result<()> {
    if renounces() { renounce_now() } else { Ok(()) }
}

/// As [`renounce`], whoever was asked before.
///
/// # Errors
/// As [`renounce`].
pub fn renounce_now() -> io::Result<()> {
    clear_ambient()?;
    control(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    set(0)
}

fn clear_ambient() -> io::Result<()> {
    control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)
}

/// A thread that still has capabilities.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Privileged {
    /// Its name.
    pub thread: String,
    /// Its effective, permitted and ambient ones, as bits.
    pub capabilities: u64,
}

/// The threads of this process that have any capability left. The kernel's own workers of an io_uring are not among them: they keep
/// what their maker had, but do each request with the rights of whoever asked for it.
///
/// # Errors
/// As reading `/proc/self/task`.
pub fn left() -> io::Result<Vec<Privileged>> {
    let mut left = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        // A thread that ended meanwhile has none.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        let privileged = privileged(&status);
        if privileged.capabilities != 0 && !privileged.thread.starts_with("iou-") {
            left.push(privileged);
        }
    }
    Ok(left)
}

/// Reads `/proc/PID/task/TID/status`.
fn privileged(status: &str) -> Privileged {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let bits = |name: &str| field(name).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let capabilities = bits("CapEff:") | bits("CapPrm:") | bits("CapAmb:");
    Privileged { thread: field("Name:").unwrap_or_default().to_string(), capabilities }
}

/// Makes a directory with those above it, each that was not there for `owner`.
///
/// # Errors
/// As `mkdir` and `chown`.
pub fn make_directory(path: &Path, owner: &Identity) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_directory(above, owner)?;
    }
    fs::DirBuilder::new().mode(0o750).create(path)?;
    std::os::unix::fs::chown(path, Some(owner.user.as_raw()), Some(owner.group.as_raw()))
}

/// Whether this process may make files in a directory, as it is now; else whose it is.
///
/// # Errors
/// The owner's user number and the mode.
pub fn may_write(directory: &Path) -> Result<(), (u32, u32)> {
    let access = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
    if nix::unistd::eaccess(directory, access).is_ok() {
        return Ok(());
    }
    let owner = fs::metadata(directory).map(|metadata| (metadata.uid(), metadata.mode() & 0o7777));
    Err(owner.unwrap_or_default())
}

/// Who a user is to a directory: judged by owner and mode, for one that this process is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights {
    user: u32,
    groups: Vec<u32>,
}

impl Rights {
    /// A user's, without any capability.
    pub fn of(identity: &Identity) -> Rights {
        let name = CString::new(identity.name.as_str()).unwrap_or_default();
        let groups = nix::unistd::getgrouplist(&name, identity.group).unwrap_or_else(|_| vec![identity.group]);
        Rights { user: identity.user.as_raw(), groups: groups.into_iter().map(Gid::as_raw).collect() }
    }

    /// This process's, once it has no capability left.
    pub fn own() -> Rights {
        let (user, group) = own();
        let groups = nix::unistd::getgroups().unwrap_or_default();
        Rights { user, groups: groups.into_iter().map(Gid::as_raw).chain([group]).collect() }
    }

    /// Whether it may reach a directory and make files in it; else whose is what is in the way. A list of rights (ACL) that goes
    /// beyond the mode is taken to allow it.
    ///
    /// # Errors
    /// The owner's user number and the mode.
    pub fn may_write(&self, directory: &Path) -> Result<(), (u32, u32)> {
        let path = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_path_buf());
        for (depth, at) in path.ancestors().enumerate() {
            let Ok(metadata) = fs::metadata(at) else { continue };
            let needed = if depth == 0 { 0o3 } else { 0o1 };
            if !self.may(&metadata, needed) && !super::file::has_access_list(at) {
                return Err((metadata.uid(), metadata.mode() & 0o7777));
            }
        }
        Ok(())
    }

    fn may(&self, metadata: &fs::Metadata, needed: u32) -> bool {
        let bits = match (metadata.uid() == self.user, self.groups.contains(&metadata.gid())) {
            (true, _) => metadata.mode() >> 6,
            (false, true) => metadata.mode() >> 3,
            (false, false) => metadata.mode(),
        };
        bits & needed == needed
    }
}

/// Takes away the bound on locked memory and raises that on descriptors, as far as this process may.
pub fn raise_limits() {
    raise(libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY);
    raise(libc::RLIMIT_NOFILE, 0);
}

/// The bound goes to `hard_max` where that is allowed, else to the hard bound that there is.
fn raise(resource: libc::__rlimit_resource_t, hard_max: libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
        return;
    }
    let hard = limit.rlim_max;
    for max in [hard.max(hard_max), hard] {
        limit = libc::rlimit { rlim_cur: max, rlim_max: max };
        // SAFETY: as above.
        if unsafe { libc::setrlimit(resource, &raw const limit) } == 0 {
            return;
        }
    }
}

/// Keeps in memory what is there now, and of what is mapped now every page once it is touched. What is mapped later is not locked:
/// with `MCL_FUTURE` a thread could not even be started under a limit of 8 MiB.
///
/// # Errors
/// As `mlockall`: the limit, RLIMIT_MEMLOCK.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: no pointer is passed.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_ONFAULT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn control(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: none of the options used here takes a pointer.
    match unsafe { libc::prctl(option, value, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    /// 0: the calling thread.
    pid: i32,
}

/// `struct __user_cap_data_struct`; version 3 takes two, for 64 bits.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

fn own_permitted() -> io::Result<u64> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: the kernel reads the header and writes two data blocks, as version 3 says.
    match unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } {
        0 => Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread has these, effective and permitted, and none is passed on.
fn set(capabilities: u64) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let half = |bits: u64| Data { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [half(capabilities), half(capabilities >> 32)];
    // SAFETY: the kernel reads the header and two data blocks, as version 3 says.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_status_tells_what_it_has_left() {
        let status = "Name:\tsluice-rx\nUmask:\t0022\nCapInh:\t0000000000000001\nCapPrm:\t000000c000003000\n\
                      CapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000400\n";
        let bits = 1_u64 << 39 | 1 << 38 | 1 << 13 | 1 << 12 | 1 << 10;
        assert_eq!(privileged(status), Privileged { thread: "sluice-rx".into(), capabilities: bits });
        assert_eq!(privileged("Name:\tx\n").capabilities, 0);
    }

    #[test]
    fn a_thread_gives_up_its_own_and_no_other_threads() {
        let before = own_permitted().expect("capget");
        let after = std::thread::spawn(|| {
            renounce_now().expect("gives up");
            own_permitted().expect("capget")
        });
        assert_eq!(after.join().expect("ends"), 0);
        assert_eq!(own_permitted().expect("capget"), before);
    }

    #[test]
    fn whoever_is_not_there_is_named() {
        let unknown = identity("nobody-of-this-name", None).expect_err("no such user");
        assert!(unknown.to_string().contains("no user \"nobody-of-this-name\""), "{unknown}");
        let root = identity("root", None).expect("everybody has root");
        assert!(root.user.is_root() && root.group.as_raw() == 0);
        let unknown = identity("root", Some("no-such-group")).expect_err("no such group");
        assert!(unknown.to_string().contains("no group"), "{unknown}");
    }

    #[test]
    fn a_directory_that_is_not_ones_own_is_told_with_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(may_write(folder.path()), Ok(()));
        let own = Identity { name: "own".into(), user: Uid::current(), group: Gid::current() };
        let deep = folder.path().join("a/b/c");
        make_directory(&deep, &own).expect("made");
        make_directory(&deep, &own).expect("is there");
        assert_eq!(fs::metadata(&deep).expect("there").mode() & 0o777, 0o750);
        assert_eq!(may_write(&folder.path().join("none")), Err((0, 0)));
    }
}
