//! The README's quick starts, word for word, in a namespace whose ports nobody else has.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::appliance::{until, workspace};
use crate::common::netns;

/// Longest time for one of them: each takes seconds.
const QUICK: Duration = Duration::from_secs(60);

/// The blocks that begin with ```` ```sh ```` below the heading.
fn blocks() -> Vec<String> {
    let readme = include_str!("../../../README.md");
    let (_, from) = readme.split_once("## Three quick starts").expect("the heading");
    let section = from.split("\n## ").next().expect("its text");
    let parts = section.split("```sh\n").skip(1);
    parts.map(|part| part.split("```").next().expect("a block").to_string()).collect()
}

#[test]
fn each_quick_start_of_the_readme_runs_as_it_stands() {
    netns::run(|| {
        let blocks = blocks();
        assert_eq!(blocks.len(), 3, "capture, ring, ledger");
        let folder = workspace();
        let sluice = std::path::Path::new(env!("CARGO_BIN_EXE_sluice"));
        let path =
            format!("{}:{}", sluice.parent().expect("a directory").display(), std::env::var("PATH").expect("set"));
        for block in blocks {
            let log = folder.path().join("log");
            let out = std::fs::File::create(&log).expect("writable");
            let mut child = Command::new("timeout")
                .args([&QUICK.as_secs().to_string(), "sh", "-eu", "-c", &block])
                .current_dir(folder.path())
                .env("PATH", &path)
                .env("SLUICE_LOG", "warn")
                .stdin(Stdio::null())
                .stdout(out.try_clone().expect("a second handle"))
                .stderr(out)
                .spawn()
                .expect("coreutils");
            let began = std::time::Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().expect("a child of ours") {
                    break status;
                }
                assert!(began.elapsed() < 2 * QUICK, "{block}");
                std::thread::sleep(Duration::from_millis(20));
            };
            let told = std::fs::read_to_string(&log).expect("readable");
            assert!(status.success(), "{status}:\n{block}\n{told}");
        }
        until("what the quick starts say is there", || {
            ["store", "dump/ledger-10.xdr", "plain"].iter().all(|name| folder.path().join(name).exists()).then_some(())
        });
    });
}
