//! Made-up ledgers as a source: the peer's generator, paced.

use super::ahead::{Ahead, Laid, Maker};
use super::paced::Paced;
use super::{Source, SourceError};
use crate::ledger::chunker::Layout;
use crate::ledger::synthetic::{Shape, Synthetic, generate};

/// A run of made-up ledgers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyntheticSettings {
    /// The first ledger.
    pub start: u32,
    /// How many; 0 is without end.
    pub count: u32,
    /// Bytes of each.
    pub bytes: u64,
    /// What they hold.
    pub shape: Shape,
    /// How long the emission of one takes, ns.
    pub window_ns: i64,
    /// From the beginning of one to that of the next, ns.
    pub interval_ns: i64,
}

struct Generator(Synthetic);

impl Maker for Generator {
    fn next(&mut self, layout: &Layout) -> Result<Option<Laid>, String> {
        let Some(sequence) = self.0.next_sequence() else { return Ok(None) };
        let (shape, bytes) = self.0.shape();
        let mut laying = layout.begin(bytes);
        generate(sequence, shape, bytes, |part| laying.push(part));
        Ok(Some(Laid { sequence, bytes, chunks: laying.finish() }))
    }
}

/// A source of made-up ledgers. Begins to make the first at once, on a thread.
///
/// # Errors
/// A size or a range that cannot be streamed; no thread.
pub fn open(settings: &SyntheticSettings, layout: Layout) -> Result<Box<dyn Source>, SourceError> {
    let SyntheticSettings { start, count, bytes, shape, window_ns, interval_ns } = *settings;
    let run = Synthetic::new(start, count, bytes, shape).map_err(|error| SourceError(error.to_string()))?;
    let ahead = Ahead::start("synthetic", Generator(run), layout)?;
    Ok(Box::new(Paced::new(description(shape, bytes), ahead, window_ns, interval_ns)))
}

/// What it calls itself.
pub fn description(shape: Shape, bytes: u64) -> String {
    let shape = match shape {
        Shape::Noise => "noise",
        Shape::Compressible => "compressible",
    };
    format!("synthetic {shape} {bytes}")
}
