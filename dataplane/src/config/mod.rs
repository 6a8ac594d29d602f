//! The TOML: one struct per section, loading, and the checks across sections.
//!
//! May use: `units`. Never does: touch the host.

mod capture;
mod check;
mod check_ledger;
mod check_ring;
mod check_shared;
mod diff;
mod ledger;
pub mod limits;
mod load;
mod mistakes;
mod process;
mod quantity;
mod report;
mod ring;
#[cfg(feature = "appliance")]
pub mod schema;
mod sockets;
mod warn;

pub use capture::{
    AttachMode, COPY_FRAME_BYTES, Control, Core, Feed, FeedProtocol, Fsync, Idle, Interface, Promiscuous, Record, Side,
    SourceKind, Stamp, StartAt, Store, Through, ZeroCopy,
};
pub use check::{Finding, UMEM_BYTES_MAX, WINDOW_BYTES_PER_MESSAGE, check, frames_needed, queue_frames_min};
pub use check_ledger::is_retention;
pub use check_ring::warn;
pub use diff::{Change, changes};
pub use ledger::{Compress, Ledger, LedgerServe, LedgerSource, LedgerSpin, LedgerSync, LedgerTrial, Listen};
pub use load::{Config, ConfigError, load, parse};
pub use process::Process;
pub use quantity::{Bytes, Span, parse_bytes, parse_duration, parse_rate};
pub use report::{LogFormat, Report, TimeOfDay};
pub use ring::{Linger, Mirror, MirrorStart, Ring, Serve};
pub use sockets::{Socket, Transport, sockets};
pub use warn::{has_work, warn_whole};
