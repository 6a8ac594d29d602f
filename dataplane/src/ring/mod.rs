//! The ring: shared memory that a producer writes and many read, and identical copies of it on other hosts.
//!
//! May use: what lies below the jobs (`wire`, `sync`, `sys`, …); `mirror` is pure. Never does: use another job, or put a
//! queue between a ring and its copy.

pub mod blob;
pub mod consumer;
pub mod error;
mod flow;
pub mod follow;
#[cfg(feature = "mirror")]
pub mod inline;
pub mod inspect;
pub mod liveness;
#[cfg(feature = "mirror")]
pub mod mirror;
#[cfg(feature = "mirror")]
mod mirror_worker;
#[cfg(feature = "mirror")]
pub mod plan;
pub mod producer;
#[cfg(feature = "capture")]
pub mod publish;
pub mod raw;
#[cfg(feature = "mirror")]
mod serve_worker;
#[cfg(feature = "mirror")]
mod sockets;
#[cfg(feature = "mirror")]
pub mod stats;
#[cfg(feature = "mirror")]
pub mod step;
#[cfg(feature = "mirror")]
pub mod stress;
#[cfg(feature = "mirror")]
mod told;
mod view;
pub mod wait;
mod writer;

pub use blob::{BlobConsumer, BlobProducer, BlobRecord, BlobView};
pub use consumer::{ConsumerSettings, Received, RingConsumer, StartAt};
pub use error::RingError;
pub use liveness::Producer;
pub use producer::{InlineSender, Record, RingProducer, RingSettings, fills_lines};
pub use raw::{RawReader, RawWriter};
pub use wait::Wait;
