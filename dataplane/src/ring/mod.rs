//! The ring: shared memory that a producer writes and many read, and identical copies of it on other hosts.
//!
//! May use: what lies below the jobs (`wire`, `sync`, `sys`, …); `mirror` is pure. Never does: use another job, or put a
//! queue between a ring and its copy.

#[cfg(feature = "mirror")]
pub mod mirror;
