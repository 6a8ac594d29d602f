//! Sources of frames behind one interface: capture files, memory, live libpcap (AF_XDP is `sys::xsk`).
//!
//! May use: `wire`, `sys`, `units`. Never does: interpret what is above the frame.

pub mod af_xdp;
pub mod file;
#[cfg(feature = "libpcap")]
pub mod libpcap_queue;
#[cfg(feature = "libpcap")]
pub mod live;
