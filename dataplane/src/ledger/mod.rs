//! Ledgers, forwarded while they are still being emitted: the stream's messages, its client, and its server.
//!
//! May use: what lies below the jobs (`wire`, `sys`, …); the protocol's machines are pure. Never does: use another job, or let
//! a subscriber, a disk or an encoder hold a source back.

#[cfg(feature = "ledger")]
pub mod archive;
pub mod assemble;
pub mod bearer;
#[cfg(feature = "ledger")]
pub mod bench;
#[cfg(feature = "ledger")]
pub mod chunker;
pub mod client;
pub mod client_tls;
#[cfg(feature = "ledger")]
pub mod codec;
#[cfg(feature = "ledger")]
pub mod compress;
pub mod dump;
#[cfg(feature = "ledger")]
pub mod encode_worker;
#[cfg(feature = "ledger")]
pub mod event;
#[cfg(feature = "ledger")]
pub mod export;
#[cfg(feature = "ledger")]
mod fanout;
#[cfg(feature = "ledger")]
pub mod fanout_worker;
#[cfg(feature = "ledger")]
pub mod files;
pub mod follow;
#[cfg(feature = "ledger")]
pub mod galexie;
#[cfg(feature = "ledger")]
pub mod header;
#[cfg(feature = "ledger")]
pub mod hub;
#[cfg(feature = "ledger")]
pub mod import;
#[cfg(feature = "ledger")]
pub mod keeper;
pub mod line;
#[cfg(feature = "ledger")]
pub mod load;
pub mod merge;
#[cfg(feature = "ledger")]
pub mod message;
#[cfg(feature = "ledger")]
pub mod order;
#[cfg(feature = "ledger")]
pub mod pacing;
#[cfg(feature = "ledger")]
pub mod place;
#[cfg(feature = "ledger")]
pub mod plan;
#[cfg(feature = "ledger")]
pub mod pool;
pub mod query;
#[cfg(feature = "ledger")]
pub mod relay_worker;
#[cfg(feature = "ledger")]
pub mod reload;
#[cfg(feature = "ledger")]
pub mod retention;
pub mod rpc;
#[cfg(feature = "ledger")]
pub mod session;
#[cfg(feature = "ledger")]
pub mod share;
mod socket;
#[cfg(feature = "ledger")]
pub mod source;
#[cfg(feature = "ledger")]
pub mod source_worker;
#[cfg(feature = "ledger")]
pub mod stats;
#[cfg(feature = "ledger-async")]
pub mod stream;
#[cfg(feature = "ledger")]
pub mod synthetic;
#[cfg(all(feature = "ledger", feature = "ledger-tls"))]
pub mod tls;
#[cfg(feature = "ledger")]
pub mod tokens;
pub mod unpack;
pub mod url;
#[cfg(all(feature = "ledger", feature = "ledger-tls"))]
pub mod validity;
#[cfg(feature = "check-xdr")]
pub mod xdr;

#[cfg(all(test, feature = "ledger"))]
mod stream_tests;
