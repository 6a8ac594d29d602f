//! Codecs over bytes: packets, feed protocols, capture files, store blocks.
//!
//! May use: `units`.
//! Never does: open a socket or a file, read a clock, allocate per packet.

pub mod block;
pub mod iextp;
pub mod moldudp64;
pub mod packet;
pub mod pcap;
pub mod segment;
