//! Every file of config/ is one that `sluice check` finds nothing in, and that `--explain` draws as its golden says.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every file of config/, in the order of their names.
pub fn files() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
    let entries = std::fs::read_dir(&folder).expect("config/").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    let read = |path: PathBuf| (path.clone(), std::fs::read_to_string(path).expect("reads"));
    paths.into_iter().map(read).collect()
}

/// What the examples name, made in a folder: keys, a certificate, tokens, a ledger node that does nothing.
fn site(folder: &Path) {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        std::fs::write(&path, text).expect("writes");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("sets");
        path
    };
    let pair = rcgen::KeyPair::generate().expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["box.example".to_string()]).expect("a name");
    let certificate = certificate.self_signed(&pair).expect("signed");
    write("etc/sluice/ledger.crt", &certificate.pem());
    write("etc/sluice/ledger.key", &pair.serialize_pem());
    write("etc/sluice/ledger.tokens", "0123456789abcdef0123456789abcdef\n");
    write("etc/sluice/upstream.token", "0123456789abcdef\n");
    write("etc/sluice/ring.key", "0123456789abcdef\n");
    write(
        "etc/stellar/captive-core.cfg",
        "NETWORK_PASSPHRASE = \"Made Up Network ; 2026\"\n[[VALIDATORS]]\nNAME = \"one\"\n",
    );
    let core = write("bin/stellar-core", "#!/bin/sh\n");
    std::fs::set_permissions(core, std::fs::Permissions::from_mode(0o700)).expect("sets");
}

/// A file's text with its paths in the folder.
fn moved(text: &str, folder: &Path) -> String {
    let folder = folder.display();
    text.replace("\"/etc/", &format!("\"{folder}/etc/")).replace("\"/var/", &format!("\"{folder}/var/"))
}

#[test]
fn every_example_passes_check() {
    let folder = tempfile::tempdir().expect("a folder");
    site(folder.path());
    for (path, text) in files() {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let config = folder.path().join(&name);
        std::fs::write(&config, moved(&text, folder.path())).expect("writes");
        let output = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["check", &config.to_string_lossy()])
            .env("PATH", folder.path().join("bin"))
            // A host without authorities of its own would refuse wss://.
            .env("SSL_CERT_FILE", folder.path().join("etc/sluice/ledger.crt"))
            .output()
            .expect("runs");
        let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{name}: {told}");
        let last = out.lines().last().unwrap_or_default();
        let right = ["nothing that run would refuse", "the file is right; "];
        assert!(right.iter().any(|right| last.contains(right)), "{name}: {out}");
        // What is left to tell is of this machine.
        let of_check = |line: &&str| line.starts_with("here: ") || line.starts_with("warning: ");
        for line in out.lines().filter(of_check) {
            let of_the_host = [
                "cpu: is",
                "cpu: are",
                "spin",
                "source_core: is the fan-out's core",
                "interface",
                "numa_node",
                "free_min",
            ];
            assert!(of_the_host.iter().any(|part| line.contains(part)), "{name}: {line}");
        }
        let changed: Vec<_> =
            ["var", "sluice-data", "store"].iter().filter(|made| folder.path().join(made).exists()).collect();
        assert!(changed.is_empty(), "{name}: a look changes nothing, but {changed:?} is there");
    }
}

#[test]
fn each_kind_of_site_has_its_example_and_says_what_its_host_must_have() {
    let files = files();
    let names: Vec<String> =
        files.iter().map(|(path, _)| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect();
    let sites = [
        "all-on-one-host",
        "capture-100g",
        "capture-10g",
        "default",
        "demo-all",
        "demo-mirror",
        "demo",
        "first-start",
        "ledger-node",
        "ledger-relay",
        "ring-hub",
        "ring-mirror",
        "ring-source",
    ];
    assert_eq!(names, sites);
    for ((path, text), name) in files.iter().zip(&names) {
        let is_example = !["default", "first-start"].contains(&name.as_str()) && !name.starts_with("demo");
        assert!(!is_example || text.contains("\n# The host: "), "{}", path.display());
    }
    let page = include_str!("../../../docs/operating/configure.md");
    for name in sites {
        assert!(page.contains(&format!("config/{name}.toml")), "configure.md does not name {name}");
    }
}

/// `cargo xtask golden --explain` writes them anew.
#[test]
fn each_example_is_drawn_as_its_golden_says() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/explain");
    for (path, text) in files() {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let config = sluice::config::parse(&text).expect("parses");
        let drawing = sluice::cli::explain::explain(&config);
        let golden = goldens.join(format!("{name}.txt"));
        if std::env::var_os("SLUICE_WRITE_GOLDENS").is_some() {
            std::fs::write(&golden, &drawing).expect("writes");
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(drawing, wanted, "{}: \"cargo xtask golden --explain\" writes it anew", golden.display());
        for core in &config.cores {
            assert!(drawing.contains(&format!("core {} (cpu {}", core.name, core.cpu)), "{drawing}");
        }
    }
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

/// What the XDP program has room for is what `check` allows.
#[test]
fn the_groups_of_an_interface_are_the_programs() {
    let most = sluice_bpf_common::GROUPS_MAX as usize;
    let text = include_str!("../../../config/demo.toml");
    let with = |ports: usize| {
        let groups: Vec<String> = (1..=ports).map(|port| format!("\"239.192.0.1:{port}\"")).collect();
        let text = text.replacen("\"239.192.0.1:10378\"", &groups.join(", "), 1);
        sluice::config::check(&sluice::config::parse(&text).expect("parses"))
    };
    // One entry is the address's own.
    assert_eq!(with(most - 1), []);
    assert_eq!(with(most).len(), 1);
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
