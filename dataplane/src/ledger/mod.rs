//! Ledgers, forwarded while they are still being emitted: the stream's messages, its client, and what a server keeps.
//!
//! May use: what lies below the jobs (`wire`, `sys`, …); the protocol's machines are pure. Never does: use another job, or let
//! a subscriber, a disk or an encoder hold a source back.

pub mod assemble;
pub mod chunker;
pub mod client;
pub mod compress;
pub mod dump;
pub mod follow;
pub mod hub;
pub mod keeper;
pub mod message;
pub mod order;
pub mod pacing;
pub mod query;
pub mod retention;
pub mod rpc;
pub mod session;
pub mod synthetic;
pub mod url;

#[cfg(test)]
mod stream_tests;
