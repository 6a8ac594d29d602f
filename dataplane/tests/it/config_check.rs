//! `sluice check` and `sluice run` on files that are wrong: all of it at once, in the same words, with exit code 2; what a running
//! process takes is what was summed before; a failed source ends with 4 wherever it runs.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");

fn sluice(arguments: &[&str]) -> Output {
    Command::new(SLUICE).args(arguments).output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A capture that is right.
const CAPTURE: &str = r#"
[[core]]
name = "rx"
cpu = 0
[[core]]
name = "disk"
cpu = 1
[[interface]]
name = "eth1"
cores = ["rx"]
[[feed]]
name = "deep"
protocol = "iex-tp"
core = "rx"
store = "main"
[[feed.side]]
name = "A"
interface = "eth1"
groups = ["233.215.21.4:10378"]
[[store]]
name = "main"
path = "DIR/main"
core = "disk"
"#;

#[test]
fn what_is_no_text_in_toml_is_told_as_such() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("session.pcapng");
    std::fs::write(&capture, [0x0a, 0x0d, 0x0d, 0x0a, 0xff, 0xfe]).expect("writes");
    let (capture, directory) = (capture.to_str().expect("ASCII"), folder.path().to_str().expect("ASCII"));
    for (arguments, wanted) in [
        (["run", capture], "name the configuration, which is a text in TOML"),
        (["check", directory], "name the configuration in it, a file in TOML"),
        (["stat", &format!("--from={capture}")], "give a status, as run --report writes it"),
    ] {
        let output = sluice(&arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(
            told.contains(arguments[1].trim_start_matches("--from=")) && told.trim_end().ends_with(wanted),
            "{told}"
        );
    }
}

const RINGS: &str = r#"
[[core]]
name = "c"
cpu = 0
[[ring.serve]]
name = "a"
core = "c"
ring = "/dev/shm/a"
bind = "0.0.0.0:7400"
[[ring.serve]]
name = "b"
core = "c"
ring = "/dev/shm/b"
bind = "[::]:7401"
[[ring.mirror]]
name = "m"
core = "c"
source = "10.0.0.1:7400"
ring = "/dev/shm/m"
"#;

const LEDGERS: &str = r#"
[[core]]
name = "c"
cpu = 0
[ledger.serve]
core = "c"
data_dir = "DIR/ledgers"
"#;

struct Broken {
    name: &'static str,
    text: String,
    /// A part of each finding, in order.
    findings: Vec<&'static str>,
}

fn broken(name: &'static str, base: &str, changes: &[(&str, &str)], findings: &[&'static str]) -> Broken {
    let mut text = base.to_string();
    for (from, to) in changes {
        assert!(text.contains(from), "{name}: {from}");
        text = text.replacen(from, to, 1);
    }
    Broken { name, text, findings: findings.to_vec() }
}

fn table() -> Vec<Broken> {
    [captures(), rings(), access(), sources_of_ledgers()].into_iter().flatten().collect()
}

fn captures() -> Vec<Broken> {
    vec![
        broken(
            "a capture with five mistakes",
            CAPTURE,
            &[
                ("cpu = 1", "cpu = 0"),
                ("cores = [\"rx\"]", "cores = [\"no\"]\nring = 100"),
                ("store = \"main\"", "store = \"other\""),
                ("233.215.21.4:10378", "233.215.21.4"),
                ("core = \"disk\"", "core = \"disk\"\nblock = \"1KiB\""),
            ],
            &[
                "core \"disk\": cpu: 0 is core \"rx\"'s already",
                "interface \"eth1\": cores: no [[core]] is named \"no\"",
                "interface \"eth1\": ring: is 100, but must be a power of two from 64 to 32768",
                "feed \"deep\": store: no [[store]] is named \"other\"",
                "feed \"deep\" side \"A\": groups: \"233.215.21.4\" is not an IPv4 address and port",
                "store \"main\": block: is 1KiB, but must be a multiple of 4KiB from 128KiB to 16MiB",
            ],
        ),
        broken(
            "what only a run would have met",
            CAPTURE,
            &[
                (
                    "cores = [\"rx\"]",
                    "cores = [\"rx\"]\nthrough = \"libpcap\"\nqueues = 3\nstamp = \"hardware\"\nframes = 3000000",
                ),
                ("cpu = 1", "cpu = 4096"),
                ("path = \"DIR/main\"", "path = \"DIR/file\""),
            ],
            &[
                "core \"disk\": cpu: is 4096, but must be from 0 to 1023",
                "interface \"eth1\": frames: is 3000000, but a UMEM has at most 4GiB",
                "interface \"eth1\": queues: is 3, but libpcap takes an interface as one queue",
                "interface \"eth1\": stamp: is \"hardware\"",
                "store \"main\": path: is \"DIR/file\", which is no directory",
            ],
        ),
        broken(
            "files of a capture",
            CAPTURE,
            &[
                (
                    "interface = \"eth1\"\ngroups = [\"233.215.21.4:10378\"]",
                    "source = \"file\"\ncore = \"rx\"\nfile = \"DIR/none.pcap\"\n[[feed.side]]\nname = \"B\"\nsource = \"file\"\ncore = \"rx\"\nfile = \"DIR/file\"\n[[feed.side]]\nname = \"C\"\nsource = \"file\"\ncore = \"rx\"\nfile = \"DIR\"",
                ),
                ("[[interface]]\nname = \"eth1\"\ncores = [\"rx\"]\n", ""),
            ],
            &[
                "feed \"deep\" side \"A\": file: is \"DIR/none.pcap\": No such file or directory",
                "feed \"deep\" side \"B\": file: DIR/file",
                "feed \"deep\" side \"C\": file: is \"DIR\", which is no regular file",
            ],
        ),
    ]
}

fn rings() -> Vec<Broken> {
    vec![broken(
        "sockets and rings",
        RINGS,
        &[
            ("0.0.0.0:7400", "0.0.0.0:9480"),
            ("[::]:7401", "[::]:9480"),
            ("\"/dev/shm/m\"", "\"/dev/shm/m\"\nkey_file = \"DIR/none.key\"\nsilence = \"1ms\""),
            ("[[ring.mirror]]", "[control]\nlisten = \"0.0.0.0:9480\"\nstall = \"1ms\"\n[[ring.mirror]]"),
        ],
        &[
            "ring.mirror \"m\": silence: is 1ms, but must be from 10ms to 5s",
            "control: listen: is \"0.0.0.0:9480\", which other hosts reach, and the control server answers whoever asks",
            "control: stall: is 1ms, but must be from 1s to 1h",
            "ring.serve \"a\": bind: is \"0.0.0.0:9480\", but [control] listens on 0.0.0.0:9480 already",
            "ring.serve \"b\": bind: is \"[::]:9480\", but [control] listens on 0.0.0.0:9480 already",
            "ring.serve \"b\": bind: is \"[::]:9480\", but ring.serve \"a\" listens on 0.0.0.0:9480 already",
            "ring.mirror \"m\": key_file: \"DIR/none.key\": No such file or directory (os error 2); make it, or name",
        ],
    )]
}

/// Who may connect to a server of ledgers.
fn access() -> Vec<Broken> {
    vec![
        broken(
            "a ledger server for the public",
            LEDGERS,
            &[(
                "data_dir",
                "listen = \":8462\"\ncert = \"DIR/a.crt\"\nkey = \"DIR/none.key\"\ntokens = \"DIR/file\"\nchunk_size = \"1KiB\"\ndata_dir",
            )],
            &[
                "ledger.serve: chunk_size: is 1KiB, but must be from 4KiB to 8MiB",
                "ledger.serve: cert: \"DIR/a.crt\": No such file or directory (os error 2); make it, or name the file that is meant",
                "ledger.serve: tokens: \"DIR/file\" line 1",
                "ledger.serve: key: is \"DIR/none.key\": No such file or directory (os error 2); make it, or name",
            ],
        ),
        broken(
            "a certificate and another one's key",
            LEDGERS,
            &[("data_dir", "listen = \":8462\"\ncert = \"DIR/one.crt\"\nkey = \"DIR/two.key\"\ndata_dir")],
            &[
                "ledger.serve: listen: is \":8462\", which other hosts reach, without tokens",
                "ledger.serve: cert: \"DIR/one.crt\" with key \"DIR/two.key\"",
            ],
        ),
    ]
}

fn sources_of_ledgers() -> Vec<Broken> {
    vec![
        broken(
            "a captive node of another network",
            LEDGERS,
            &[(
                "data_dir",
                "source = \"captive\"\nstart_ledger = 5\nhistory_archive_urls = [\"https://a/b\"]\ncore_binary = \"DIR/none\"\ncore_config = \"DIR/core.cfg\"\nnetwork_passphrase = \"Another\"\ndata_dir",
            )],
            &[
                "ledger.serve: core_binary: DIR/none is no program",
                "ledger.serve: network_passphrase: is \"Another\", but DIR/core.cfg has NETWORK_PASSPHRASE = \"Made Up Network ; 2026\"",
            ],
        ),
        broken(
            "a relay",
            LEDGERS,
            &[(
                "data_dir",
                "source = \"follow\"\nupstream = \"wss://core.example.net:0\"\nupstream_token_file = \"DIR/empty\"\nupstream_ca = \"DIR/none\"\nupstream_flows = 99\ndata_dir",
            )],
            &[
                "ledger.serve: upstream_flows: is 99, but must be from 1 to 16",
                "ledger.serve: upstream_token_file: token file DIR/empty: it is empty",
                "ledger.serve: upstream: stream URL \"wss://core.example.net:0\": its port is no port",
                "ledger.serve: upstream_ca: is \"DIR/none\": No such file or directory",
            ],
        ),
        broken(
            "an authority that is none",
            LEDGERS,
            &[(
                "data_dir",
                "source = \"follow\"\nupstream = \"wss://core.example.net\"\nupstream_ca = \"DIR/file\"\ndata_dir",
            )],
            &["ledger.serve: upstream_ca: DIR/file: it holds no certificate"],
        ),
        broken(
            "ledgers that are not there",
            LEDGERS,
            &[("data_dir", "source = \"file\"\nfile_dir = \"DIR/empty-folder\"\ndata_dir")],
            &[
                "ledger.serve: file_dir: DIR/empty-folder: no file is named ledger-<sequence>.xdr, and none is a segment",
            ],
        ),
    ]
}

fn files_of_the_table(folder: &Path) {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("writes");
    write("file", "neither a capture nor a token\n");
    write("empty", "");
    write("core.cfg", "NETWORK_PASSPHRASE = \"Made Up Network ; 2026\"\n[[VALIDATORS]]\nNAME = \"one\"\n");
    std::fs::create_dir(folder.join("empty-folder")).expect("makes");
    for name in ["one", "two"] {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::new(vec![format!("{name}.example")]).expect("a name");
        write(&format!("{name}.crt"), &certificate.self_signed(&pair).expect("signed").pem());
        write(&format!("{name}.key"), &pair.serialize_pem());
    }
}

#[test]
fn check_tells_all_at_once_and_run_refuses_in_the_same_words() {
    let folder = tempfile::tempdir().expect("a folder");
    files_of_the_table(folder.path());
    let here = folder.path().display().to_string();
    for case in table() {
        let path = folder.path().join("sluice.toml");
        std::fs::write(&path, case.text.replace("DIR", &here)).expect("writes");
        let path = path.to_string_lossy();
        let checked = sluice(&["check", &path]);
        let told = text(&checked.stdout).replace(&here, "DIR");
        assert_eq!(checked.status.code(), Some(2), "{}: {told}", case.name);
        let findings: Vec<&str> = told.lines().filter(|line| line.starts_with("config ")).collect();
        // A build without libpcap has one more to tell.
        let findings: Vec<&str> =
            findings.into_iter().filter(|line| !line.contains("this build has no libpcap")).collect();
        assert_eq!(findings.len(), case.findings.len(), "{}: {told}", case.name);
        for (finding, part) in findings.iter().zip(&case.findings) {
            assert!(finding.starts_with(&format!("config {part}")), "{}: {part}\n{finding}", case.name);
        }
        let run = sluice(&["run", &path, "--for", "1s"]);
        let refused = text(&run.stderr).replace(&here, "DIR");
        assert_eq!(run.status.code(), Some(2), "{}: {refused}", case.name);
        for finding in &findings {
            assert!(refused.contains(&format!("sluice: {finding}\n")), "{}: {finding}\n{refused}", case.name);
        }
        let json = sluice(&["check", &path, "--json"]);
        let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
        let rows = json["findings"].as_array().expect("a list");
        let all = rows.iter().map(|row| {
            format!("config {}: {}", row["key"].as_str().expect("a key"), row["what"].as_str().expect("words"))
        });
        let all: Vec<String> = all.map(|line| line.replace(&here, "DIR")).collect();
        assert!(findings.iter().all(|finding| all.iter().any(|row| row == finding)), "{}: {all:#?}", case.name);
    }
}

#[test]
fn what_cannot_be_read_is_told_as_json_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, "[[core]]\nname = \"c\"\ncpu = 0\ncolour = 3\n").expect("writes");
    let output = sluice(&["check", &path.to_string_lossy(), "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["findings"][0]["key"], "core \"c\": colour", "{json}");
    assert!(json["findings"][0]["what"].as_str().expect("words").contains("line 4: there is no such key"), "{json}");
}

#[test]
fn every_unknown_key_and_wrong_type_is_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluice.toml");
    let text = "[[core]]\nname = \"c\"\ncpu = \"zero\"\n[procces]\nuser = 5\n[control]\nlisten = 9480\nstal = \"1s\"\n";
    std::fs::write(&path, text).expect("writes");
    let path = path.to_string_lossy();
    let checked = sluice(&["check", &path]);
    let told = self::text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(2), "{told}");
    let run = sluice(&["run", &path]);
    assert_eq!(run.status.code(), Some(2));
    for part in [
        "config core \"c\": cpu: line 3: is \"zero\", but must be a whole number",
        "config procces: line 4: there is no such key: did you mean \"process\"?",
        "config control: listen: line 7: is 9480, but must be",
        "config control: stal: line 8: there is no such key: did you mean \"stall\"?",
    ] {
        assert!(told.contains(part), "{part}: {told}");
        assert!(self::text(&run.stderr).contains(part), "{part}: {}", self::text(&run.stderr));
    }
    assert!(told.ends_with(": 4 findings\n"), "{told}");
}

/// What `check` and then `run` say of a file: exit codes, what `check` prints, what `run` does.
fn both(path: &Path) -> (Option<i32>, String, Option<i32>, String) {
    let path = path.to_string_lossy();
    let (checked, run) = (sluice(&["check", &path]), sluice(&["run", &path, "--for", "1s"]));
    (checked.status.code(), text(&checked.stdout), run.status.code(), text(&run.stderr))
}

#[test]
fn what_is_in_the_way_of_a_directory_is_found_by_check_and_run_touches_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().display().to_string();
    std::fs::write(folder.path().join("file"), "").expect("writes");
    let report = "[report]\ndir = \"DIR/file\"\n";
    let no_control = "[control]\nlisten = \"127.0.0.1:0\"\n";
    let mirror = "[[ring.mirror]]\nname = \"m\"\ncore = \"c\"\nsource = \"h:1\"\nring = \"DIR/none/ring\"\n";
    for (name, text, part) in [
        (
            "store",
            CAPTURE.replace("DIR/main", "DIR/file/main"),
            "store \"main\": path: is \"DIR/file/main\", but \"DIR/file\" is no directory",
        ),
        (
            "ledgers",
            LEDGERS.replace("DIR/ledgers", "DIR/file/data"),
            "ledger.serve: data_dir: is \"DIR/file/data\", but \"DIR/file\" is no directory",
        ),
        ("report", format!("{LEDGERS}{report}"), "report: dir: is \"DIR/file\", which is no directory"),
        (
            "ring",
            format!("{LEDGERS}{mirror}"),
            "ring.mirror \"m\": ring: is \"DIR/none/ring\", but \"DIR/none\" is no directory of this host",
        ),
        (
            "publish",
            CAPTURE.replace("store = \"main\"", "publish = \"DIR/none/ring\""),
            "feed \"deep\": publish: is \"DIR/none/ring\", but \"DIR/none\" is no directory of this host",
        ),
    ] {
        let path = folder.path().join("sluice.toml");
        std::fs::write(&path, (text + no_control).replace("DIR", &here)).expect("writes");
        let (checked, told, run, refused) = both(&path);
        let (told, refused) = (told.replace(&here, "DIR"), refused.replace(&here, "DIR"));
        assert_eq!((checked, run), (Some(2), Some(2)), "{name}: {told}\n{refused}");
        assert!(
            told.contains(&format!("config {part}")) && told.ends_with(": 1 finding\n")
                || told.contains("finding; and"),
            "{name}: {told}"
        );
        assert!(refused.contains(&format!("sluice: config {part}")), "{name}: {refused}");
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).expect("there").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_this_host_lacks_is_told_as_such_and_the_last_line_is_true() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().display().to_string();
    let text = LEDGERS.replace("cpu = 0", "cpu = 900")
        + "[[core]]\nname = \"d\"\ncpu = 901\n[process]\nuser = \"nobody-of-this-name\"\n[control]\nlisten = \"127.0.0.1:0\"\n\
           [[ring.mirror]]\nname = \"m\"\ncore = \"d\"\nsource = \"h:1\"\nring = \"DIR/ring\"\nnuma_node = 700\n";
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, text.replace("DIR", &here)).expect("writes");
    let (checked, told, run, refused) = both(&path);
    assert_eq!((checked, run), (Some(0), Some(2)), "{told}\n{refused}");
    for part in [
        "config core \"c\", \"d\": cpu: are 900-901, but this process may run on 0",
        "config process: user: there is no user \"nobody-of-this-name\" on this host",
        "config ring.mirror \"m\": numa_node: is 700, but this host has no such NUMA node",
    ] {
        assert!(told.contains(&format!("here: {part}")), "{part}: {told}");
        assert!(refused.contains(&format!("sluice: {part}")), "{part}: {refused}");
    }
    assert!(told.ends_with(": the file is right; 3 things of this host would stop run (above, \"here\")\n"), "{told}");
    assert!(!told.contains("nothing that run would refuse"));
    assert_eq!(sluice(&["check", &path.to_string_lossy(), "--here"]).status.code(), Some(2));
    assert!(!folder.path().join("ledgers").exists(), "run touched nothing");
}

#[test]
fn ledgers_of_another_source_are_found_before_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path().display().to_string();
    let synthetic = LEDGERS.replace("data_dir", "listen = \"127.0.0.1:0\"\nsynthetic_size = \"64KiB\"\nsynthetic_interval = \"50ms\"\nemit_window = \"0s\"\ndata_dir")
        + "[control]\nlisten = \"127.0.0.1:0\"\n";
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, synthetic.replace("DIR", &here)).expect("writes");
    let (checked, told, run, _) = both(&path);
    assert_eq!((checked, run), (Some(0), Some(0)), "{told}");
    assert_eq!(sluice(&["check", &path.to_string_lossy()]).status.code(), Some(0), "its own source goes on");
    let pipe = synthetic.replace("data_dir", "source = \"pipe\"\npipe_cmd = \"sleep 60\"\ndata_dir");
    std::fs::write(&path, pipe.replace("DIR", &here)).expect("writes");
    let (checked, told, run, refused) = both(&path);
    assert_eq!((checked, run), (Some(2), Some(2)), "{told}\n{refused}");
    let part =
        "/ledgers\" holds ledgers of source \"synthetic noise 65536\" without a network, and source \"pipe sleep 60\"";
    assert!(told.contains("config ledger.serve: data_dir: ") && told.contains(part), "{told}");
    let reset = pipe.replace("data_dir", "reset = true\ndata_dir");
    std::fs::write(&path, reset.replace("DIR", &here)).expect("writes");
    assert_eq!(sluice(&["check", &path.to_string_lossy()]).status.code(), Some(0));
}

#[test]
fn a_file_is_drawn_although_another_one_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluice.toml");
    let text = LEDGERS.replace("data_dir", "tokens = \"DIR/none\"\ndata_dir");
    std::fs::write(&path, text.replace("DIR", &folder.path().display().to_string())).expect("writes");
    let path = path.to_string_lossy();
    for arguments in [["run", &path, "--explain"], ["check", &path, "--explain"]] {
        let output = sluice(&arguments);
        let (out, told) = (self::text(&output.stdout), self::text(&output.stderr));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {out}{told}");
        assert!(out.starts_with("core c (cpu 0"), "{arguments:?}: {out}");
        assert!((out + &told).contains("config ledger.serve: tokens: "), "{arguments:?}");
    }
}

#[test]
fn secrets_that_are_open_and_certificates_at_their_end_are_warnings() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let pair = rcgen::KeyPair::generate().expect("a key");
    let mut certificate = rcgen::CertificateParams::new(vec!["box.example".to_string()]).expect("a name");
    certificate.not_before = rcgen::date_time_ymd(2010, 1, 1);
    certificate.not_after = rcgen::date_time_ymd(2020, 1, 1);
    std::fs::write(at("crt"), certificate.self_signed(&pair).expect("signed").pem()).expect("writes");
    std::fs::write(at("key"), pair.serialize_pem()).expect("writes");
    std::fs::write(at("tokens"), "0123456789abcdef\n").expect("writes");
    std::fs::write(at("ring.key"), "0123456789abcdef\n").expect("writes");
    for name in ["key", "tokens", "ring.key"] {
        std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o644)).expect("sets");
    }
    let text = LEDGERS.replace(
        "data_dir",
        "listen = \":8462\"\ncert = \"DIR/crt\"\nkey = \"DIR/key\"\ntokens = \"DIR/tokens\"\ndata_dir",
    ) + "[[ring.serve]]\nname = \"s\"\ncore = \"c\"\nring = \"/dev/shm/s\"\nbind = \"127.0.0.1:7400\"\nkey_file = \"DIR/ring.key\"\n";
    let path = at("sluice.toml");
    std::fs::write(&path, text.replace("DIR", &folder.path().display().to_string())).expect("writes");
    let output = sluice(&["check", &path.to_string_lossy()]);
    let told = self::text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    for part in [
        "warning: config ring.serve \"s\": key_file:",
        "warning: config ledger.serve: key:",
        "warning: config ledger.serve: tokens:",
        "has mode 644: every user of this host may use it; chmod 600",
        "warning: config ledger.serve: cert:",
        "expired at 2020-01-01T00:00:00Z",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// A process that is ended with the test, whatever becomes of it.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_takes_no_more_than_was_summed() {
    let folder = tempfile::tempdir().expect("a folder");
    let ring = format!("/dev/shm/sluice-check-{}", std::process::id());
    let config = format!(
        "[[core]]\nname = \"c\"\ncpu = 0\n[[ring.serve]]\nname = \"s\"\ncore = \"c\"\nring = \"{ring}\"\nbind = \"127.0.0.1:0\"\nconnections_max = 1\n\
         [[ring.mirror]]\nname = \"m\"\ncore = \"c\"\nsource = \"localhost:9\"\nring = \"{ring}-copy\"\n\
         [ledger.serve]\ncore = \"c\"\nlisten = \"127.0.0.1:0\"\nsubscribers_max = 1\ndata_dir = \"{0}\"\nsynthetic_interval = \"100ms\"\n\
         [control]\nlisten = \"127.0.0.1:0\"\n",
        folder.path().join("data").display()
    );
    let path = folder.path().join("sluice.toml");
    std::fs::write(&path, config).expect("writes");
    let output = sluice(&["check", &path.to_string_lossy(), "--json"]);
    let sums: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(output.status.code(), Some(0), "{sums}");
    let running = Command::new(SLUICE)
        .args(["run", &path.to_string_lossy(), "--for", "20s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut running = Child(running);
    let proc = Path::new("/proc").join(running.0.id().to_string());
    let summed = sums["threads"].as_array().expect("a list").len();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let threads = || -> Vec<String> {
        let tasks = std::fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
        tasks.map(name).filter(|name| !name.is_empty() && !name.starts_with("iou-")).collect()
    };
    // The control server's is the last that starts; then the source has begun as well.
    let end = Instant::now() + Duration::from_secs(20);
    while threads().len() < summed && Instant::now() < end {
        assert!(running.0.try_wait().expect("a child of ours").is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(threads().len(), summed, "{:?} {}", threads(), sums["threads"]);
    let descriptors = std::fs::read_dir(proc.join("fd")).expect("its descriptors").count() as u64;
    let most = sums["descriptors_max"].as_u64().expect("a number");
    assert!(descriptors <= most, "{descriptors} are open, {most} were summed");
}

/// Exit code 4: a source that fails is the host's doing, whoever runs it.
#[test]
fn a_failed_source_ends_with_4_under_run_and_under_ledger_serve() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sluice.toml");
    let text = LEDGERS
        .replace("data_dir", "source = \"pipe\"\npipe_cmd = \"exit 3\"\nlisten = \"127.0.0.1:0\"\ndata_dir")
        + "[control]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&path, text.replace("DIR", &folder.path().display().to_string())).expect("writes");
    let run = sluice(&["run", &path.to_string_lossy(), "--for", "30s"]);
    let data = folder.path().join("other").display().to_string();
    let serve = sluice(&[
        "ledger",
        "serve",
        "--source",
        "pipe",
        "--pipe-cmd",
        "exit 3",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        &data,
    ]);
    for (name, output) in [("run", run), ("ledger serve", serve)] {
        let told = self::text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{name}: {told}");
        assert!(told.contains("the source failed"), "{name}: {told}");
    }
}
