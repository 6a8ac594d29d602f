//! Is this host fit for this configuration? The state of a host as plain data, and findings as functions of it.
//!
//! May use: `config`, `sys`, `units`. `calls`, `tree` and `read` look at the host; `findings` and `text` are pure.
//! Never does: change anything on the host. A trial bind is made only when it is asked for, and undone at once.

pub mod calls;
pub mod drivers;
pub mod findings;
pub mod host;
pub mod lists;
pub mod read;
pub mod text;
pub mod tree;

pub use calls::{Asked, Calls};
pub use findings::{Finding, Level, judge, judge_of};
pub use host::HostState;
pub use read::read;
pub use tree::Tree;
