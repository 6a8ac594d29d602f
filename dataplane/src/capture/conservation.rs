//! The conservation table: identities whose terms are counted by different workers, each with its residue.

use serde::Serialize;

/// Frames between the XDP program and a queue's worker.
pub const REDIRECTED: &str = "redirected = received + rx_dropped + rx_ring_full";
/// Frames that a queue's worker took.
pub const RECEIVED: &str = "received = data segments + heartbeats + raw-only + link_full";
/// Messages between the queues and an arbiter.
pub const PASSED_ON: &str = "messages passed on by the queues = messages taken by the arbiter";
/// Messages between an arbiter and its streams.
pub const TAKEN: &str = "messages taken by the arbiter = Σ over streams";
/// Every message that came, of a stream.
pub const COUNTS: &str = "Σ counts = unique + duplicate + late_fill + late + rejected + held + pending";
/// Every sequence number, of a stream.
pub const FRONTIER: &str = "frontier − base = unique + late_fill + gap + held + missing";
/// Messages between an arbiter and its ring.
pub const PUBLISHED: &str = "unique = published + publish_refused";
/// Messages between an arbiter and its store.
pub const HANDED: &str = "handed to the store = taken by the store";
/// Messages between an arbiter and the disk.
pub const STORED: &str = "unique + late_fill = stored + store_lost + in_flight";

/// One identity: `left` must equal the sum of `right`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Identity {
    /// What it is about: a queue, a feed, a stream, a store.
    pub of: String,
    /// The identity in words.
    pub name: &'static str,
    /// The left side: (term, value).
    pub left: (&'static str, u64),
    /// The right side.
    pub right: Vec<(&'static str, u64)>,
    /// Left − right; 0 when drained.
    pub residue: i64,
}

impl Identity {
    /// Computes the residue.
    pub fn new(of: String, name: &'static str, left: (&'static str, u64), right: Vec<(&'static str, u64)>) -> Identity {
        let sum: u64 = right.iter().map(|(_, value)| value).sum();
        let residue = left.1.wrapping_sub(sum) as i64;
        Identity { of, name, left, right, residue }
    }
}

/// Σ of the residues' magnitudes: the metric that must be 0.
pub fn residue(table: &[Identity]) -> u64 {
    table.iter().map(|identity| identity.residue.unsigned_abs()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_item_shows_with_its_sign() {
        let row =
            |left, right| Identity::new("q".into(), "n", ("received", left), vec![("passed", right), ("dropped", 1)]);
        assert_eq!(row(10, 9).residue, 0);
        assert_eq!(row(10, 8).residue, 1);
        assert_eq!(row(10, 10).residue, -1);
        assert_eq!(residue(&[row(10, 8), row(10, 10)]), 2);
    }
}
