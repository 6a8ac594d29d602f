//! sluice: a thread-per-core, kernel-bypass dataplane for Linux.
//!
//! What it is for: capture of sequenced market-data feeds from the wire to a seekable store.
//! What it may use: the modules below, in one direction only (`cargo xtask tidy` holds it).
//! What it never does: touch a kernel interface outside `sys`, or hold unsafe code outside `sys` and `sync`.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod units;

#[cfg(feature = "capture")]
pub mod capture;
#[cfg(feature = "appliance")]
pub mod cli;
#[cfg(feature = "runtime")]
pub mod config;
#[cfg(feature = "appliance")]
pub mod doctor;
#[cfg(feature = "capture")]
pub mod feed;
#[cfg(feature = "ledger-client")]
pub mod ledger;
#[cfg(feature = "ring")]
pub mod ring;
#[cfg(feature = "runtime")]
pub mod runtime;
#[cfg(feature = "capture")]
pub mod store;
#[cfg(any(feature = "ring", feature = "runtime"))]
pub mod sync;
#[cfg(any(feature = "ring", feature = "runtime", feature = "ledger-client"))]
pub mod sys;
#[cfg(any(feature = "ring", feature = "capture", feature = "ledger-client"))]
pub mod wire;
