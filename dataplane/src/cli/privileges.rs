//! What `sluice run` may do, and until when: with privilege everything is opened, and before the gate opens nothing is left of it
//! (docs/design/0048-privilege.md).

use super::{Failure, log, places};
use crate::config::Config;
use crate::sys::privilege::{self, Identity};

/// Becomes the user that the configuration names, with what is needed to open everything; to be called before any thread is started.
///
/// # Errors
/// A user that is not there, that this process may not become, or whose directories are another's.
pub fn prepare(config: &Config) -> Result<(), Failure> {
    privilege::raise_limits();
    if let Some(identity) = to_become(config)? {
        for place in places::made(config) {
            privilege::make_directory(&place.directory, &identity).map_err(|error| {
                let (key, directory) = (&place.key, place.directory.display());
                Failure::host(format!(
                    "config {key}: {directory} cannot be made: {error}; make it and give it to user {}, or name another",
                    identity.name
                ))
            })?;
        }
        privilege::become_user(&identity, &privilege::TO_PREPARE).map_err(|error| {
            Failure::host(format!(
                "config process: user: \"{0}\" cannot be become: {error}; root needs CAP_SETUID, CAP_SETGID and CAP_SETPCAP for it: allow them, or start it as {0}",
                identity.name
            ))
        })?;
        tracing::info!(user = identity.name, uid = identity.user.as_raw(), gid = identity.group.as_raw(), "user");
    }
    privilege::will_renounce().map_err(|error| Failure::host(format!("clearing the ambient capabilities: {error}")))?;
    writable(config)
}

/// Locks what is there, and gives up every capability; to be called when everything is open.
///
/// # Errors
/// A thread that has one left, or a directory that only privilege could have written to.
pub fn give_up(config: &Config) -> Result<(), Failure> {
    if config.process.lock_memory
        && let Err(error) = privilege::lock_memory()
    {
        tracing::warn!(
            "memory is not locked: {error}; raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in the unit), or say process.lock_memory = false"
        );
    }
    privilege::renounce().map_err(|error| Failure::host(format!("giving up capabilities: {error}")))?;
    // The log's thread gives up with its next line.
    log::flush();
    let left = privilege::left().map_err(|error| Failure::host(format!("/proc/self/task: {error}")))?;
    if let Some(thread) = left.first() {
        return Err(Failure::host(format!(
            "thread \"{}\" still has capabilities {:#x}: this is a bug; please report it",
            thread.thread, thread.capabilities
        )));
    }
    if privilege::is_root() {
        tracing::warn!("runs as root, without capabilities: set process.user, or User= in the unit");
    }
    writable(config)
}

fn to_become(config: &Config) -> Result<Option<Identity>, Failure> {
    let Some(user) = &config.process.user else { return Ok(None) };
    let identity = privilege::identity(user, config.process.group.as_deref())
        .map_err(|error| Failure::host(format!("process: {error}")))?;
    if privilege::is_root() {
        return Ok(Some(identity));
    }
    match privilege::is(&identity) {
        true => Ok(None),
        false => Err(Failure::host(format!(
            "process.user = \"{user}\": only root can become another user: start it as root or as {user}, or leave the key out"
        ))),
    }
}

fn writable(config: &Config) -> Result<(), Failure> {
    for place in places::written(config).iter().filter(|place| place.directory.is_dir()) {
        if let Err((owner, mode)) = privilege::may_write(&place.directory) {
            let user = privilege::own().0.to_string();
            let what = places::words(&place.directory, &user, owner, mode);
            return Err(Failure::host(format!("config {}: {what}", place.key)));
        }
    }
    Ok(())
}
