//! `[process]`: who the appliance is once everything is open.

use serde::{Deserialize, Serialize};

/// `[process]`: the process itself.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "appliance", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Started as root: the user to become. Left out: it stays root, without capabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The group, if it is not the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Keep the pools in memory.
    pub lock_memory: bool,
}

impl Default for Process {
    fn default() -> Self {
        Process { user: None, group: None, lock_memory: true }
    }
}
