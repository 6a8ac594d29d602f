//! Every file of config/ is one that `check` finds nothing in, and that `--explain` can draw.

use std::path::Path;

#[test]
fn every_example_is_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("config/") {
        let path = entry.expect("an entry").path();
        let config = sluice::config::load(&path).expect("parses");
        let findings = sluice::config::check(&config);
        assert!(findings.is_empty(), "{}: {findings:?}", path.display());
        let drawing = sluice::cli::explain::explain(&config);
        for core in &config.cores {
            assert!(drawing.contains(&format!("core {} ", core.name)), "{drawing}");
        }
        seen += 1;
    }
    assert!(seen >= 3, "{seen} files in {}", folder.display());
}

/// What the format holds at most is what `check` allows at most.
#[test]
fn the_largest_block_is_the_formats() {
    let text = include_str!("../../../config/demo.toml");
    let with = |bytes: u64| {
        let text = text.replace("segment = \"64MiB\"", &format!("segment = \"4GiB\"\nblock = \"{bytes}B\""));
        sluice::config::check(&sluice::config::parse(&text).expect("parses"))
    };
    let largest = sluice::wire::block::BLOCK_BYTES_MAX as u64;
    assert_eq!(with(largest), []);
    assert_eq!(with(largest + 4_096).len(), 1);
}

/// What the ledger protocol holds is what `check` allows.
#[test]
fn the_bounds_of_ledgers_are_the_protocols() {
    use sluice::ledger::share::FLOWS_MAX;
    use sluice::wire::ledger::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LEDGER_BYTES_MAX, SEQUENCE_MAX};
    let refused = |line: &str| {
        let text = format!("[[core]]\nname = \"c\"\ncpu = 0\n[ledger.serve]\ncore = \"c\"\n{line}");
        let findings = sluice::config::check(&sluice::config::parse(&text).expect("parses"));
        findings.iter().map(|finding| finding.key.clone()).collect::<Vec<_>>()
    };
    for (key, least, most) in [
        ("chunk_size", CHUNK_BYTES_MIN as u64, CHUNK_BYTES_MAX as u64),
        ("synthetic_size", 1, LEDGER_BYTES_MAX),
        ("start_ledger", 0, u64::from(SEQUENCE_MAX)),
        ("flows_max", 1, u64::from(FLOWS_MAX)),
        ("source = \"follow\"\nupstream = \"ws://a\"\nupstream_flows", 1, sluice::ledger::merge::FLOWS_MAX as u64),
    ] {
        for right in [least, most] {
            assert_eq!(refused(&format!("{key} = {right}")), Vec::<String>::new(), "{key}");
        }
        for wrong in [least.checked_sub(1), Some(most + 1)].into_iter().flatten() {
            let name = key.lines().last().unwrap_or(key);
            assert_eq!(refused(&format!("{key} = {wrong}")), [format!("ledger.serve: {name}")], "{wrong}");
        }
    }
}
