//! The data-quality report of a real `sluice run` over files: on demand, at the end, and over two processes of one day.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sluice::capture::quality::parse_instant;
use sluice::cli::stat;
use sluice::feed::generate::{Product, Settings};
use sluice::feed::split::SideSplit;
use sluice::wire::iextp;
use sluice::wire::packet::{self, LinkType};

use crate::common::memory_queue::Scripted;
use crate::common::mirrors::{Sluice, tcp_address, until};
use crate::common::pipeline::{Sides, number, sides, write_pcap};

const MESSAGES: u64 = 20_000;

fn lossy() -> Sides {
    let side =
        |delay_ns| SideSplit { loss: 0.05, duplicate: 0.01, delay_ns, jitter_ns: 40_000, ..SideSplit::default() };
    sides(&Settings { idle_every: 0, ..Settings::new(Product::Deep, MESSAGES, 11) }, 11, &[side(0), side(15_000)])
}

/// Two files, a store, a directory for the reports; `more` is further TOML.
fn configuration(folder: &Path, made: &Sides, more: &str) -> std::path::PathBuf {
    let shown = folder.display();
    let mut text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[report]\ndir = \"{shown}/reports\"\n{more}\n\
         [[store]]\nname = \"main\"\npath = \"{shown}/store\"\ncore = \"all\"\nsegment = \"16MiB\"\ndirect = false\n\
         [[feed]]\nname = \"deep\"\nprotocol = \"iex-tp\"\ncore = \"all\"\nstore = \"main\"\n"
    );
    for (name, packets) in ["north", "south"].iter().zip(&made.packets) {
        let file = folder.join(format!("{name}.pcap"));
        write_pcap(&file, packets);
        let file = file.display();
        text += &format!("[[feed.side]]\nname = \"{name}\"\nsource = \"file\"\nfile = \"{file}\"\ncore = \"all\"\n");
    }
    let path = folder.join("sluice.toml");
    std::fs::write(&path, text).expect("writes");
    path
}

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The only report of the directory: its day and its JSON. (A test that runs over midnight sees two and says so.)
fn written(folder: &Path) -> (String, Value) {
    let names = std::fs::read_dir(folder.join("reports")).expect("reads").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        names.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let file = files.remove(0);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("reads")).expect("JSON");
    let text = std::fs::read_to_string(file.with_extension("txt")).expect("the text beside it");
    assert!(text.contains("feed deep (stamps: file)"), "{text}");
    (report["day"].as_str().expect("a day").to_string(), report)
}

#[test]
fn a_report_is_what_the_run_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = lossy();
    let config = configuration(folder.path(), &made, "[control]\nlisten = \"127.0.0.1:0\"");
    let config = config.to_str().expect("ASCII");
    let status = json(&sluice(&["run", config, "--json"]));
    let stream = &status["capture"]["feeds"][0]["report"]["streams"][0];
    let (day, report) = written(folder.path());
    let feed = &report["feeds"][0];
    for (ours, theirs) in [
        ("messages", "unique"),
        ("duplicates", "duplicate"),
        ("late_fills", "late_fill"),
        ("gap_messages", "gap"),
        ("offered", "offered"),
    ] {
        assert_eq!(feed[ours], stream[theirs], "{ours}");
    }
    assert_eq!(number(&feed["gaps"]), stream["gaps"].as_array().expect("ranges").len() as u64);
    assert!(number(&feed["gap_messages"]) > 0 && number(&feed["messages"]) < MESSAGES, "something was lost: {feed}");
    assert_eq!(number(&feed["stored"]), number(&feed["messages"]) + number(&feed["late_fills"]), "all is on disk");
    assert_eq!((&feed["held"], &feed["in_flight"]), (&0.into(), &0.into()), "it has drained");
    for (side, of) in feed["sides"].as_array().expect("sides").iter().zip(stream["sides"].as_array().expect("sides")) {
        for (ours, theirs) in
            [("lost", "lost"), ("recovered", "recovered"), ("first", "wins"), ("messages", "messages")]
        {
            assert_eq!(side[ours], of[theirs], "{ours} of {side}");
        }
    }
    assert_eq!(feed["sides"][1]["name"], "south");
    assert_eq!((&report["parts"][0]["end"], &report["clock"]["steps"]), (&"stopped".into(), &0.into()));
    // Files' stamps, of the first and the last segment that carried messages (heartbeats surround them).
    let carries = |packet: &&Scripted| {
        let view = packet::udp(&packet.frame, LinkType::Ethernet).expect("a UDP frame");
        iextp::parse(view.payload).expect("a segment").count > 0
    };
    let stamps = |side: &Vec<Scripted>| side.iter().filter(carries).map(|packet| packet.capture_ns).collect::<Vec<_>>();
    let stamps: Vec<Vec<i64>> = made.packets.iter().map(stamps).collect();
    let moment = |value: &Value| parse_instant(value.as_str().expect("text")).expect("a moment");
    let (first, last) = (moment(&feed["first"]), moment(&feed["last"]));
    assert!(stamps.iter().any(|side| side[0] == first), "{feed}");
    assert!(stamps.iter().any(|side| side[side.len() - 1] == last), "{feed}");

    // A second process on the same day: its part is added.
    let again = json(&sluice(&["run", config, "--json"]));
    assert_eq!(again["capture"]["feeds"][0]["report"]["streams"][0]["unique"], stream["unique"]);
    let (same, both) = written(folder.path());
    assert_eq!((&same, both["parts"].as_array().map(Vec::len)), (&day, Some(2)));
    assert_eq!(number(&both["feeds"][0]["messages"]), 2 * number(&feed["messages"]));

    // And what the command tells of it is what is in the file.
    assert_eq!(json(&sluice(&["report", config, "--day", &day, "--json"])), both);
    let text = sluice(&["report", config, "--day", &day]);
    assert!(String::from_utf8_lossy(&text.stdout).starts_with(&format!("data quality of {day}")));
    let missing = sluice(&["report", config, "--day", "2001-01-01"]);
    assert_eq!(missing.status.code(), Some(2));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains(&format!("there are 1 days from {day} to {day}")), "{said}");
}

#[test]
fn a_running_appliance_tells_its_report_and_a_killed_one_leaves_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let control = tcp_address();
    // A server of ledgers beside the files keeps the process alive after their end.
    let more = format!(
        "[control]\nlisten = \"{control}\"\n[ledger.serve]\ncore = \"all\"\nlisten = \"{}\"\ndata_dir = \"{}/ledgers\"\nsegment_bytes = \"16MiB\"\n",
        tcp_address(),
        folder.path().display()
    );
    let config = configuration(folder.path(), &lossy(), &more);
    let config = config.to_str().expect("ASCII");
    let running = Sluice::start(&["run", config]);
    let address: SocketAddr = control.parse().expect("an address");
    let told = until("all messages", || {
        let told: Value = serde_json::from_str(&stat::get(address, "/report").ok()?).ok()?;
        let feed = &told["feeds"][0];
        // Its last packets are with the arbiter, but not yet on the disk.
        let all = number(&feed["messages"]) > 0 && feed["held"] == 0 && feed["messages"] == feed["stored"];
        all.then_some(told)
    });
    assert_eq!(told["parts"][0]["end"], "running");
    let by_command = json(&sluice(&["report", config, "--json"]));
    assert_eq!(by_command["feeds"][0]["messages"], told["feeds"][0]["messages"]);
    // Killed, it leaves what it had written: whole, and as much as a minute old.
    let file = until("a file", || {
        std::fs::read_dir(folder.path().join("reports"))
            .ok()?
            .flatten()
            .find(|entry| entry.path().extension().is_some_and(|extension| extension == "txt"))
    });
    running.kill();
    assert!(file.path().exists());
    let (_, left) = written(folder.path());
    assert_eq!((&left["parts"][0]["end"], left["parts"].as_array().map(Vec::len)), (&"running".into(), Some(1)));
    let after = Sluice::start(&["run", config]);
    until("it is back", || stat::get(address, "/report").ok());
    assert_eq!(after.terminate(), Some(0));
    let (_, report) = written(folder.path());
    let ends: Vec<&Value> = report["parts"].as_array().expect("parts").iter().map(|part| &part["end"]).collect();
    assert_eq!(ends, ["broken_off", "stopped"]);
    assert_eq!(report["parts"][0]["feeds"], left["parts"][0]["feeds"], "what was written stays");
}

#[test]
fn an_appliance_without_feeds_is_told_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let control = tcp_address();
    let text = format!(
        "[[core]]\nname = \"all\"\ncpu = 0\n[control]\nlisten = \"{control}\"\n[ledger.serve]\ncore = \"all\"\nlisten = \"{}\"\n\
         data_dir = \"{}/ledgers\"\nsegment_bytes = \"16MiB\"\n",
        tcp_address(),
        folder.path().display()
    );
    let config = folder.path().join("sluice.toml");
    std::fs::write(&config, text).expect("writes");
    let running = Sluice::start(&["run", config.to_str().expect("ASCII")]);
    let address: SocketAddr = control.parse().expect("an address");
    until("it runs", || stat::get(address, "/readyz").ok());
    let told = sluice(&["report", "--control", &control]);
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(said.contains(&format!("the appliance at {control} has no feed to report on")), "{said}");
    assert_eq!(told.status.code(), Some(2));
    assert_eq!(running.terminate(), Some(0));
    let gone = sluice(&["report", "--control", &control]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no appliance answers at"), "{gone:?}");
    assert_eq!(gone.status.code(), Some(4));
}
