//! `sluice doctor` over captured hosts: what it says is a golden, and nothing that a capture may hold makes it panic.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use proptest::prelude::*;
use serde_json::Value;
use sluice::config::{self, Config};
use sluice::doctor::findings::rules;
use sluice::doctor::text::text;
use sluice::doctor::{Asked, Calls, Level, Tree, judge, judge_of, read};

const PAGE: &str = include_str!("../../../docs/operating/doctor.md");
const HOSTS: [&str; 6] = ["ena", "i40e", "ice", "ixgbe", "mlx5", "virtio_net"];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/doctor")
}

/// The files of a fixture, `NAME.tree`: each begins with a line `=== name`.
fn files(name: &str) -> BTreeMap<String, String> {
    let path = folder().join(format!("{name}.tree"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts = text.strip_prefix("=== ").expect("begins with a name").split("\n=== ");
    let files = parts.map(|part| part.split_once('\n').unwrap_or((part, "")));
    files.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

fn lay_out(files: &BTreeMap<String, String>) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    root
}

fn doctor(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("doctor").args(args).stdin(Stdio::null()).output().expect("runs")
}

fn told(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn as_json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", told(output), String::from_utf8_lossy(&output.stderr));
    })
}

/// (id, level) of a host's findings.
fn levels(files: &BTreeMap<String, String>) -> Vec<(String, Level)> {
    let root = lay_out(files);
    let (config, calls) = loaded(root.path());
    let tree = Tree::captured(root.path(), calls.denied.iter().cloned());
    let host = read(&tree, &calls, &Asked::of(Some(&config)));
    judge(&host, Some(&config)).into_iter().map(|finding| (finding.id.to_owned(), finding.level)).collect()
}

fn loaded(root: &Path) -> (Config, Calls) {
    let config = config::load(&root.join("sluice.toml")).expect("a configuration");
    (config, Calls::load(root).expect("calls"))
}

#[test]
fn goldens_are_what_is_said_of_captured_hosts() {
    let write = std::env::var_os("SLUICE_WRITE_GOLDENS").is_some();
    for name in HOSTS {
        let root = lay_out(&files(name));
        let from = root.path().to_str().expect("UTF-8");
        let (text, json) = (doctor(&["--from", from]), doctor(&["--from", from, "--json"]));
        let json_text = format!("{:#}\n", as_json(&json));
        for (extension, said) in [("txt", told(&text)), ("json", json_text)] {
            let path = folder().join(format!("{name}.{extension}"));
            if write {
                std::fs::write(&path, said).expect("written");
                continue;
            }
            let wanted = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(said == wanted, "{}: \"cargo xtask golden --doctor\" writes it; said:\n{said}", path.display());
        }
        let fails = as_json(&json)["summary"]["fail"].as_u64().expect("a number");
        assert_eq!(text.status.code(), Some(i32::from(fails > 0)), "{name}: {fails} fail");
    }
}

#[test]
fn a_host_that_is_set_up_has_nothing_to_mend() {
    let bad: Vec<_> = levels(&files("ice")).into_iter().filter(|(_, level)| *level != Level::Ok).collect();
    assert_eq!(bad, []);
}

#[test]
fn every_rule_finds_something_somewhere() {
    let all: Vec<(String, Level)> = HOSTS.iter().flat_map(|name| levels(&files(name))).collect();
    // The first only informs; the others are tried below.
    let elsewhere = ["kernel.capabilities", "frame.gro", "kernel.af_xdp", "xdp.native"];
    for rule in rules() {
        let mut own = all.iter().filter(|(id, _)| id == rule.id).map(|(_, level)| *level);
        assert!(own.clone().any(|level| level == Level::Ok), "{}: never ok", rule.id);
        let bad = own.any(|level| level != Level::Ok);
        assert!(bad || elsewhere.contains(&rule.id), "{}: always ok", rule.id);
    }
}

#[test]
fn one_change_is_one_finding() {
    for (file, from, to, id, level) in [
        ("proc/net/protocols", "XDP ", "XXX ", "kernel.af_xdp", Level::Fail),
        ("calls.json", "\"native\": true", "\"native\": false", "xdp.native", Level::Fail),
        ("calls.json", "\"zero_copy\"\n", "\"copy\"\n", "xdp.zero_copy", Level::Fail),
        (
            "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor",
            "performance",
            "powersave",
            "cpu.governor",
            Level::Warn,
        ),
        ("sys/bus/pci/devices/0000:17:00.0/numa_node", "0", "-1", "numa.nic", Level::Ok),
        ("proc/irq/121/effective_affinity_list", "0", "2", "irq.map", Level::Warn),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512", "127", "memory.huge_pages", Level::Warn),
        ("proc/sys/kernel/io_uring_disabled", "0", "2", "kernel.io_uring", Level::Fail),
        ("proc/self/status", "list:\t0-7", "list:\t0-4", "cpu.allowed", Level::Fail),
    ] {
        let mut files = files("ice");
        let text = files.get_mut(file).unwrap_or_else(|| panic!("no {file}"));
        assert!(text.contains(from), "{file}: {text}");
        *text = text.replace(from, to);
        let ids: BTreeSet<(String, Level)> =
            levels(&files).into_iter().filter(|(_, level)| *level != Level::Ok).collect();
        let wanted = if level == Level::Ok { BTreeSet::new() } else { BTreeSet::from([(id.to_owned(), level)]) };
        assert_eq!(ids, wanted, "{file}: {from:?} -> {to:?}");
    }
    let mut generic = files("ice");
    let config = generic.get_mut("sluice.toml").expect("a configuration");
    *config = config.replace("mode = \"native\"", "mode = \"generic\"");
    let calls = generic.get_mut("calls.json").expect("calls");
    let gro = "\"rx-gro\": {\n        \"on\": false";
    assert!(calls.contains(gro), "{calls}");
    *calls = calls.replace(gro, "\"rx-gro\": {\n        \"on\": true");
    assert!(levels(&generic).contains(&("frame.gro".to_owned(), Level::Warn)));
}

#[test]
fn ledgers_that_only_their_count_bounds_are_no_warning_and_no_key_of_a_store_is_named() {
    let mut files = files("virtio_net");
    let config = files.get_mut("sluice.toml").expect("a configuration");
    *config = config.replace("retention_bytes = \"10GB\"", "retention = 5000\nsegment_bytes = \"64MiB\"");
    let root = lay_out(&files);
    let text = told(&doctor(&["--from", root.path().to_str().expect("UTF-8")]));
    let line = text.lines().find(|line| line.contains("disk.space ledger.serve")).expect("judged");
    let wanted = "ok    disk.space ledger.serve: 858 MiB free of 55 GiB; retention = 5000 ledgers bounds it, retention_bytes does not";
    assert_eq!(line.trim(), wanted);
}

#[test]
fn what_was_not_readable_is_said_and_is_not_ok() {
    let root = lay_out(&files("virtio_net"));
    let found = as_json(&doctor(&["--from", root.path().to_str().expect("UTF-8"), "--json"]));
    let findings = found["findings"].as_array().expect("findings");
    let unread: Vec<&Value> = findings.iter().filter(|finding| finding["needs_root"] == true).collect();
    let ids: Vec<&str> = unread.iter().filter_map(|finding| finding["id"].as_str()).collect();
    assert_eq!(ids, ["irq.irqbalance", "kernel.unprivileged_bpf"]);
    for finding in unread {
        assert_eq!(finding["level"], "warn");
        assert!(finding["seen"].as_str().is_some_and(|seen| seen.contains("not readable without root")), "{finding}");
    }
}

/// Programs that a command may begin with.
const PROGRAMS: &str = "apt bpftool cat chronyc df dmesg echo ethtool findmnt for ip journalctl lspci modinfo mount phc2sys \
                        sluice sluice-tune sudo swapoff sysctl systemctl timedatectl ulimit";

#[test]
fn a_command_is_one_and_what_is_none_is_advice() {
    for name in HOSTS {
        let root = lay_out(&files(name));
        let (config, calls) = loaded(root.path());
        let tree = Tree::captured(root.path(), calls.denied.iter().cloned());
        let host = read(&tree, &calls, &Asked::of(Some(&config)));
        for finding in judge_of(&host, Some(&config), "/etc/sluice/sluice.toml") {
            let (command, advice) = (&finding.command, &finding.advice);
            if finding.level == Level::Ok {
                assert_eq!((command.as_str(), advice.as_str()), ("", ""), "{finding:?}");
                continue;
            }
            assert!(command.is_empty() != advice.is_empty(), "one of both: {finding:?}");
            let program = command.split_whitespace().next();
            assert!(
                program.is_none_or(|program| PROGRAMS.split(' ').any(|known| known == program)),
                "{command:?} is no command"
            );
            assert!(!command.contains("CONFIG") && !advice.contains("CONFIG"), "{finding:?}");
        }
    }
    // What is to be changed in the configuration names its file.
    let mut files = files("ice");
    let config = files.get_mut("sluice.toml").expect("a configuration");
    *config = config.replacen("cpu = ", "cpu = 1", 1);
    let root = lay_out(&files);
    let path = root.path().join("sluice.toml");
    let path = path.to_str().expect("UTF-8");
    let found = as_json(&doctor(&["--from", root.path().to_str().expect("UTF-8"), path, "--json"]));
    let findings = found["findings"].as_array().expect("findings");
    let absent = findings.iter().find(|finding| finding["id"] == "cpu.allowed").expect("a CPU that is not there");
    let advice = absent["advice"].as_str().expect("text");
    assert!(advice.starts_with(&format!("in {path}: set cpu to one of them in [[core]] \"")), "{absent}");
    assert_eq!(absent["command"], "");
}

#[test]
fn a_clock_that_does_not_answer_is_said_by_each_of_its_rules() {
    let mut files = files("ice");
    let calls = files.get_mut("calls.json").expect("calls");
    let begin = calls.find("\"wall\": {").expect("the clock");
    let end = begin + calls[begin..].find("\n }").expect("its end") + 3;
    calls.replace_range(begin..end, "\"wall\": {\"Err\": \"denied\"}");
    let levels = levels(&files);
    for id in ["clock.discipline", "clock.tai_offset", "clock.leap"] {
        assert!(levels.contains(&(id.to_owned(), Level::Warn)), "{id}: {levels:?}");
    }
}

#[test]
fn every_rule_and_every_report_is_on_the_page() {
    let headings: BTreeSet<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let ids: BTreeSet<&str> = rules().map(|rule| rule.id).collect();
    assert_eq!(headings, ids);
    for report in 1..=70 {
        assert!(PAGE.contains(&format!("\n| {report} | ")), "report {report} is not in the table");
    }
    for (line, cell) in PAGE
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|line| line.split('`').skip(1).step_by(2).map(move |cell| (line, cell)))
    {
        let (topic, _) = cell.split_once('.').unwrap_or(("", ""));
        let names_a_rule = rules().any(|rule| rule.topic() == topic) && !cell.contains([' ', '/', '=']);
        assert!(!names_a_rule || ids.contains(cell), "{cell} is no rule: {line}");
    }
}

#[test]
fn a_capture_says_what_the_host_said() {
    let to = tempfile::tempdir().expect("a folder");
    let to = to.path().join("capture");
    let to = to.to_str().expect("UTF-8");
    let live = doctor(&["--capture", to, "--json"]);
    assert!(matches!(live.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&live.stderr));
    assert_eq!(as_json(&live), as_json(&doctor(&["--from", to, "--json"])));
    let again = doctor(&["--capture", to]);
    assert_eq!(again.status.code(), Some(2), "it would mix two hosts");
}

#[test]
fn usage_errors_are_told_from_findings() {
    for args in [
        &["--from", "/no-such-folder"][..],
        &["/no-such-file.toml"],
        &["--from", "/", "--capture", "/"],
        &["--from", "/", "--trial-bind"],
        &["--nonsense"],
    ] {
        assert_eq!(doctor(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn an_unprivileged_user_is_told_what_there_is() {
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_sluice")]);
        command
    } else {
        Command::new(env!("CARGO_BIN_EXE_sluice"))
    };
    let output = command.args(["doctor", "--json"]).current_dir("/").stdin(Stdio::null()).output().expect("setpriv");
    if matches!(output.status.code(), Some(126 | 127)) {
        return crate::common::skip("the binary lies where only root can run it", false);
    }
    let found = as_json(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{found}");
    let findings = found["findings"].as_array().expect("findings");
    assert!(findings.len() > 10, "{found}");
}

/// What may be done to a file of a capture.
#[derive(Clone, Debug)]
enum Harm {
    Cut(usize),
    Put(String),
    Take,
    Deny,
}

fn harm() -> impl Strategy<Value = Harm> {
    let words =
        ["", "-1", "99999999999999999999", "0-99999", "4,,-", "\u{fffd}", "[", "max", "0x10", "\n\n: : :", "\0"];
    prop_oneof![
        (0_usize..200).prop_map(Harm::Cut),
        proptest::sample::select(words.to_vec()).prop_map(|word| Harm::Put(word.to_owned())),
        "\\PC{0,40}".prop_map(Harm::Put),
        Just(Harm::Take),
        Just(Harm::Deny),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn garbled_captures_are_judged_without_a_panic(
        host in proptest::sample::select(&HOSTS[..]),
        harms in proptest::collection::vec((any::<proptest::sample::Index>(), harm()), 1..40),
    ) {
        let mut files = files(host);
        let names: Vec<String> = files.keys().filter(|name| name.contains('/')).cloned().collect();
        let mut denied = Vec::new();
        for (index, harm) in harms {
            let name = index.get(&names);
            let Some(text) = files.get_mut(name) else { continue };
            match harm {
                Harm::Cut(at) => *text = text.chars().take(at).collect(),
                Harm::Put(word) => *text = word,
                Harm::Take => drop(files.remove(name)),
                Harm::Deny => denied.push(name.clone()),
            }
        }
        let root = lay_out(&files);
        let (config, calls) = loaded(root.path());
        let host = read(&Tree::captured(root.path(), denied), &calls, &Asked::of(Some(&config)));
        for config in [Some(&config), None] {
            let findings = judge(&host, config);
            prop_assert!(!text(&findings).is_empty());
            prop_assert!(findings.iter().all(|finding| !finding.needs_root || finding.level == Level::Warn));
        }
    }

    #[test]
    fn garbled_calls_are_refused_or_judged(
        host in proptest::sample::select(&HOSTS[..]),
        numbers in proptest::collection::vec((any::<proptest::sample::Index>(), "-?[0-9]{1,10}"), 1..30),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut files = files(host);
        let calls = files["calls.json"].clone();
        // Numbers in place of numbers: what is left is still the calls' shape.
        let places: Vec<usize> = calls.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
        let mut chosen: BTreeMap<usize, String> = BTreeMap::new();
        for (index, number) in numbers {
            chosen.insert(*index.get(&places), number);
        }
        let mut text = calls.clone();
        for (at, number) in chosen.iter().rev() {
            text.replace_range(*at..at + 1, number);
        }
        if let Some(cut) = cut {
            text.truncate(cut.index(text.len()));
        }
        files.insert("calls.json".into(), text);
        let root = lay_out(&files);
        let config = config::load(&root.path().join("sluice.toml")).expect("a configuration");
        if let Ok(calls) = Calls::load(root.path()) {
            let host = read(&Tree::captured(root.path(), []), &calls, &Asked::of(Some(&config)));
            prop_assert!(!judge(&host, Some(&config)).is_empty());
        }
    }
}
