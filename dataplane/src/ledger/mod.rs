//! Ledgers, forwarded while they are still being emitted: the stream's messages, its client, and what a server keeps.
//!
//! May use: what lies below the jobs (`wire`, `sys`, …); the protocol's machines are pure. Never does: use another job, or let
//! a subscriber, a disk or an encoder hold a source back.
