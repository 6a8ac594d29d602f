//! Commands whose output nobody takes: a pipe that its reader has closed (`| head`), and a full disk.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sluice::feed::generate::{Product, Settings};
use sluice::feed::split::SideSplit;
use sluice::store::{RecordMeta, SyncSettings, SyncStore};
use sluice::units::{Side, StreamId};
use sluice::wire::segment::{Protocol, SessionId, SessionKey};

use crate::common::pipeline::{sides, write_pcap};

fn sluice(args: &[&str], out: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).stdout(out).stderr(Stdio::piped()).spawn().expect("starts").wait_with_output().expect("ends")
}

/// A pipe that nobody reads any more.
fn closed() -> Stdio {
    let (_, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("the device").into()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A store, two captures of one feed, and a configuration that runs over them into a store of its own.
fn things(folder: &Path) -> [String; 4] {
    let [store, config, north, south] =
        ["store", "sluice.toml", "north.pcap", "south.pcap"].map(|name| folder.join(name).display().to_string());
    let mut written = SyncStore::create(Path::new(&store), SyncSettings::default()).expect("a store");
    let session = SessionId(*b"000000000A");
    let key = SessionKey { protocol: Protocol::MoldUdp64, protocol_id: 0, channel: 0, session };
    written.stream_begin(StreamId(0), &key, 0);
    for sequence in 1..=9 {
        written.append(&RecordMeta::message(StreamId(0), Side(0), sequence, 1), b"a message").expect("appended");
    }
    written.close().expect("closed");
    let side = |delay_ns| SideSplit { delay_ns, ..SideSplit::default() };
    let made = sides(&Settings::new(Product::Deep, 2_000, 3), 3, &[side(0), side(15_000)]);
    let mut text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[control]\nlisten = \"127.0.0.1:0\"\n\
         [[store]]\nname = \"main\"\npath = \"{}\"\ncore = \"all\"\nsegment = \"16MiB\"\ndirect = false\n\
         [[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"all\"\nstore = \"main\"\n",
        folder.join("run").display()
    );
    for (file, packets) in [&north, &south].iter().zip(&made.packets) {
        write_pcap(Path::new(file), packets);
        text += &format!("[[feed.side]]\nname = \"{}\"\nsource = \"file\"\nfile = \"{file}\"\ncore = \"all\"\n", {
            Path::new(file).file_stem().expect("a name").display()
        });
    }
    std::fs::write(&config, text).expect("writes");
    [store, config, north, south]
}

#[test]
fn a_closed_pipe_ends_a_command_quietly_and_a_full_disk_is_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let [store, config, north, south] = &things(folder.path());
    let commands: [&[&str]; 10] = [
        &["store", "query", store],
        &["store", "info", store],
        &["store", "verify", store],
        &["feed", "decode", "--protocol", "iex-tp", north],
        &["feed", "gaps", north],
        &["feed", "arbitrate", north, south],
        &["check", config],
        &["check", "--schema"],
        &["run", "--explain", config],
        &["__reference", "cli"],
    ];
    for args in commands {
        let output = sluice(args, closed());
        assert_eq!((output.status.code(), told(&output).as_str()), (Some(0), ""), "{args:?}");
        let output = sluice(args, full());
        assert_eq!(output.status.code(), Some(4), "{args:?}: {}", told(&output));
        assert_eq!(told(&output), "sluice: stdout: No space left on device (os error 28)\n", "{args:?}");
    }
}

#[test]
fn a_run_drains_and_reports_though_nobody_reads_its_books() {
    let folder = tempfile::tempdir().expect("a folder");
    let [_, config, ..] = &things(folder.path());
    let report = folder.path().join("report.json").display().to_string();
    let run = folder.path().join("run").display().to_string();
    for (out, exit, last) in [(closed(), 0, None), (full(), 4, Some("sluice: stdout: No space left"))] {
        let output = sluice(&["run", config, "--report", &report], out);
        assert_eq!(output.status.code(), Some(exit), "{}", told(&output));
        assert!(!told(&output).contains("internal error"), "{}", told(&output));
        assert!(last.is_none_or(|last| told(&output).lines().last().is_some_and(|line| line.starts_with(last))));
        let status = std::fs::read_to_string(&report).expect("a report");
        let status: serde_json::Value = serde_json::from_str(&status).expect("a status");
        assert_eq!(status["capture"]["residue"], 0);
        std::fs::remove_file(&report).expect("removed");
        let verified = sluice(&["store", "verify", &run, "--json"], Stdio::piped());
        assert_eq!(verified.status.code(), Some(0), "{}", told(&verified));
        std::fs::remove_dir_all(&run).expect("removed");
    }
}
