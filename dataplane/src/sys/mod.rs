//! The only module that talks to the kernel: memory, sockets, BPF, io_uring, files, clocks.
//!
//! May use: `units`. Unsafe code is allowed here (and in `sync`), each block with its `SAFETY:` conditions.
//! Never does: know what the bytes mean.
#![allow(unsafe_code)]

#[cfg(feature = "capture")]
pub mod bpf;
pub mod clock;
#[cfg(feature = "runtime")]
pub mod cpu;
#[cfg(feature = "capture")]
pub mod ethtool;
#[cfg(feature = "runtime")]
pub mod file;
#[cfg(feature = "capture")]
pub mod frames;
#[cfg(feature = "ring")]
pub mod futex;
#[cfg(feature = "runtime")]
pub mod host;
#[cfg(feature = "capture")]
mod netlink;
#[cfg(feature = "ledger")]
pub mod netns;
#[cfg(feature = "capture")]
pub mod nic;
#[cfg(feature = "runtime")]
pub mod own;
#[cfg(feature = "capture")]
pub mod packet_tx;
#[cfg(any(feature = "runtime", feature = "ledger-client"))]
pub mod poll;
#[cfg(feature = "runtime")]
pub mod privilege;
#[cfg(feature = "ledger")]
pub mod process;
#[cfg(any(feature = "mirror", feature = "ledger-client"))]
pub mod random;
#[cfg(any(feature = "mirror", feature = "ledger"))]
pub mod resolve;
#[cfg(feature = "ring")]
pub mod shm;
#[cfg(feature = "runtime")]
pub mod signal;
#[cfg(feature = "capture")]
pub mod socket;
#[cfg(any(feature = "runtime", feature = "ledger-client"))]
pub mod tcp;
#[cfg(feature = "mirror")]
pub mod udp;
#[cfg(feature = "runtime")]
pub mod uring;
#[cfg(feature = "ledger")]
pub mod wait;
#[cfg(feature = "capture")]
pub mod xsk;
