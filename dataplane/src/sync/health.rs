//! Health: the closed set of reasons, and the signs by which a job says of itself that something is wrong now.
//!
//! A sign is of one instant and holds no clock. Whether it lasts long enough to be a reason is decided by whoever looks
//! (`runtime::health`), so that a job only reads its counters.

/// What a reason means for whoever asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Data is being lost, or nothing comes: `/healthz` answers 503.
    Unhealthy,
    /// It is not started yet, or is about to end: `/readyz` answers 503.
    NotReady,
    /// Worth a look by day: shown, and nothing more.
    Shown,
}

impl Level {
    /// As text and JSON say it.
    pub fn label(self) -> &'static str {
        match self {
            Level::Unhealthy => "unhealthy",
            Level::NotReady => "not_ready",
            Level::Shown => "shown",
        }
    }
}

const SECOND: i64 = 1_000_000_000;

/// One reason's properties, as a row of the table that `docs/operating/monitor.md` repeats.
struct Row {
    label: &'static str,
    level: Level,
    /// How long its sign must last before it is a reason, ns.
    after_ns: i64,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident: $label:literal, $level:ident, $after_seconds:literal;)*) => {
        /// Why the process is not healthy, or not ready: the labels of the metric, the log and the JSON.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum HealthReason {
            $($(#[$doc])* $variant,)*
        }

        const ROWS: &[Row] =
            &[$(Row { label: $label, level: Level::$level, after_ns: $after_seconds * SECOND },)*];

        impl HealthReason {
            /// Every reason.
            pub const ALL: &'static [HealthReason] = &[$(HealthReason::$variant,)*];
        }
    };
}

reasons! {
    /// The gate is not open yet.
    Starting: "starting", NotReady, 0;
    /// The stop has begun.
    Draining: "draining", NotReady, 0;
    /// A core makes no round; half of the bound at which the process ends (given with the sign).
    CoreSlow: "core_slow", Unhealthy, 5;
    /// No side of a captured feed is live. The feed's own `side_timeout` has passed already.
    SidesSilent: "sides_silent", Unhealthy, 1;
    /// One side is not live, another is: nothing is lost yet.
    SideSilent: "side_silent", Shown, 1;
    /// Frames were lost on this host, before an arbiter saw them.
    FramesLost: "frames_lost", Unhealthy, 0;
    /// Arbitrated messages could not be handed to the store or the ring.
    MessagesLost: "messages_lost", Unhealthy, 0;
    /// The conservation table does not balance while nothing moves: a defect of this program.
    Residue: "residue", Unhealthy, 10;
    /// The store's file system is full.
    StoreFull: "store_full", Unhealthy, 0;
    /// Records could not be stored.
    StoreLosing: "store_losing", Unhealthy, 0;
    /// Writes, syncs or seals failed for good.
    StoreFailing: "store_failing", Unhealthy, 0;
    /// A mirror has no session with its source.
    MirrorDisconnected: "mirror_disconnected", Unhealthy, 10;
    /// A mirror's source is silent, or says that its producer is gone.
    MirrorStale: "mirror_stale", Unhealthy, 5;
    /// A mirror had to leave records out.
    MirrorGaps: "mirror_gaps", Unhealthy, 0;
    /// There is no ring to serve.
    ServeWithoutRing: "serve_without_ring", Unhealthy, 10;
    /// The served ring's producer is gone or stalls.
    ProducerGone: "producer_gone", Unhealthy, 5;
    /// The ledgers' source has not begun, or a relay does not know its upstream's run.
    LedgerNotBegun: "ledger_not_begun", NotReady, 0;
    /// The ledgers' source has failed.
    LedgerFailed: "ledger_failed", Unhealthy, 0;
    /// The ledgers' source has come to its end.
    LedgerEnded: "ledger_ended", Shown, 0;
    /// No new ledger came for too long (given with the sign).
    LedgerSilent: "ledger_silent", Unhealthy, 60;
    /// A relay has no connection to its upstream.
    RelayDisconnected: "relay_disconnected", Unhealthy, 30;
    /// Ledgers were lost to retention, or could not be written.
    LedgerLosing: "ledger_losing", Unhealthy, 0;
}

impl HealthReason {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its label.
    pub fn label(self) -> &'static str {
        self.row().label
    }

    /// What it means for whoever asks.
    pub fn level(self) -> Level {
        self.row().level
    }

    /// How long its sign must last before it is a reason, ns, where the sign says nothing else.
    pub fn after_ns(self) -> i64 {
        self.row().after_ns
    }
}

/// How a sign is to be read over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// It is so now.
    Holds,
    /// It is so for as long as this number stays what it is.
    Still(u64),
    /// A count of what must not happen, from 0: it is so when the count has grown.
    Grows(u64),
}

/// One sign of trouble.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sign {
    /// The reason that it may become.
    pub reason: HealthReason,
    /// What it is about; with the reason it is the sign's identity.
    pub subject: String,
    /// One line for the operator, without a number that changes.
    pub what: String,
    /// How it is to be read over time.
    pub shape: Shape,
    /// How long it must last before it is a reason, ns.
    pub after_ns: i64,
}

impl Sign {
    /// A sign of `subject`.
    pub fn new(reason: HealthReason, shape: Shape, subject: impl Into<String>, what: impl Into<String>) -> Sign {
        Sign { reason, subject: subject.into(), what: what.into(), shape, after_ns: reason.after_ns() }
    }

    /// The same with another duration.
    #[must_use]
    pub fn after(mut self, after_ns: i64) -> Sign {
        self.after_ns = after_ns;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_label_of_its_own() {
        let mut labels: Vec<&str> = HealthReason::ALL.iter().map(|reason| reason.label()).collect();
        assert!(labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')));
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), HealthReason::ALL.len());
        assert_eq!(HealthReason::SidesSilent.label(), "sides_silent");
        assert_eq!(HealthReason::SideSilent.level(), Level::Shown);
    }
}
