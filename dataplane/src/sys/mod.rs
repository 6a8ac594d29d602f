//! The only module that talks to the kernel: memory, sockets, BPF, io_uring, files, clocks.
//!
//! May use: `units`. Unsafe code is allowed here (and in `sync`), each block with its `SAFETY:` conditions.
//! Never does: know what the bytes mean.
#![allow(unsafe_code)]

pub mod bpf;
pub mod clock;
pub mod cpu;
pub mod file;
pub mod frames;
mod netlink;
pub mod nic;
pub mod packet_tx;
pub mod signal;
pub mod socket;
pub mod uring;
pub mod xsk;
