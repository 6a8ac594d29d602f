//! Lock-free parts and what is read from them: counters, metrics, the parked flag of a core, the protocols of the
//! shared-memory ring; and asking for memory ahead.
//!
//! May use: `units`. Unsafe code is allowed here (and in `sys`), each block with its `SAFETY:` conditions.
//! Never does: call the kernel.
#![allow(unsafe_code)]

#[cfg(feature = "runtime")]
pub mod counters;
#[cfg(feature = "ring")]
pub mod gate;
#[cfg(feature = "runtime")]
pub mod health;
#[cfg(feature = "runtime")]
pub mod latest;
#[cfg(feature = "runtime")]
pub mod metrics;
#[cfg(feature = "runtime")]
pub mod parked;
#[cfg(feature = "ledger")]
pub mod prefetch;
#[cfg(feature = "ring")]
pub mod registry;
#[cfg(feature = "ring")]
pub mod slots;
#[cfg(feature = "ring")]
pub mod word;
