//! Codecs over bytes: packets, feed protocols, capture files, store blocks, rings and their mirrors, ledger messages.
//!
//! May use: `units`.
//! Never does: open a socket or a file, read a clock, allocate per packet.

#[cfg(feature = "capture")]
pub mod block;
#[cfg(feature = "ring")]
pub mod feed_meta;
#[cfg(feature = "ledger-client")]
pub mod http;
#[cfg(feature = "capture")]
pub mod iextp;
#[cfg(feature = "ledger-client")]
pub mod ledger;
#[cfg(feature = "ring")]
pub mod mirror;
#[cfg(feature = "capture")]
pub mod moldudp64;
#[cfg(feature = "capture")]
pub mod packet;
#[cfg(feature = "capture")]
pub mod pcap;
#[cfg(feature = "ring")]
pub mod ring;
#[cfg(feature = "capture")]
pub mod segment;
#[cfg(feature = "ledger-client")]
pub mod websocket;
