//! What a feed means: gap detection, arbitration, splitting, generating, message decoding.
//!
//! May use: `wire`, `units`. Pure: bytes and `now` go in, events come out.
//! Never does: open a socket or a file, read a clock, start a thread.

pub mod arbiter;
pub mod gap;
pub mod generate;
pub mod handoff;
pub mod histogram;
pub mod intervals;
pub mod messages;
pub mod publish;
pub mod rows;
pub mod runs;
pub mod split;
pub mod truth;
pub mod window;
