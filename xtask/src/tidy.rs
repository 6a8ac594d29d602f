//! `cargo xtask tidy`: holds the rules that no compiler holds.
//!
//! Each rule is a function from text to findings, so that its test is a good and a bad sample. The rules: who may use
//! whom; pure files stay pure; the kernel's crates and unsafe code stay in their modules; the head of each mod.rs;
//! nothing unfinished; no path of one developer's machine; no document cited that is not here; the top level; the packages that must be in use; generated
//! pages current.

use std::path::Path;

use crate::{docs, shell};
use source::Token;

mod source;

/// The module table of the package: each module under `dataplane/src`, and whom it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("wire", &["units"]),
    ("sync", &["units"]),
    ("sys", &["units"]),
    ("config", &["units"]),
    ("feed", &["wire", "units"]),
    ("runtime", &["config", "sync", "sys", "units"]),
    ("capture", JOB),
    ("store", JOB),
    ("ring", JOB),
    ("ledger", JOB),
    ("doctor", &["config", "sys", "units"]),
    (
        "cli",
        &["doctor", "capture", "store", "ring", "ledger", "runtime", "config", "feed", "wire", "sync", "sys", "units"],
    ),
    ("main", &["cli"]),
];

/// What a job may use: everything below, and no other job.
const JOB: &[&str] = &["runtime", "config", "feed", "wire", "sync", "sys", "units"];

/// The jobs, in which only `plan.rs` and `*_worker.rs` use the runtime.
const JOBS: &[&str] = &["capture", "store", "ring", "ledger"];

/// Packages that the product promises to stand on: dependencies that its own code uses.
const PACKAGES: &[&str] =
    &["xsk-rs", "aya", "core_affinity", "io-uring", "zstd", "xxhash-rust", "crossbeam-channel", "hdrhistogram", "nix"];

/// Crates that talk to the kernel; only `sys` names them.
const KERNEL_CRATES: &[&str] = &["xsk_rs", "aya", "core_affinity", "io_uring", "nix", "libc"];

/// Parts of the standard library that a pure file does without (`core` holds the addresses and durations it may need).
const IMPURE: &[&str] = &["fs", "net", "time", "thread", "process", "env", "os"];

/// What the top level holds, beside names that begin with a dot.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "dataplane",
    "bpf",
    "config",
    "deploy",
    "bench",
    "docs",
    "xtask",
    "README.md",
    "Cargo.lock",
    "LICENSE",
    "CHANGELOG.md",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "clippy.toml",
];

/// A broken rule: where, and what to do.
type Findings = Vec<String>;

/// Runs the task.
pub fn run() -> Result<(), String> {
    let root = shell::root();
    let files = tracked(&root)?;
    let mut findings = top_level(&files);
    let mut used = Vec::new();
    for name in &files {
        let Ok(bytes) = std::fs::read(root.join(name)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        findings.extend(machine_paths(name, &text));
        findings.extend(outside_documents(name, &text));
        if name.ends_with(".rs") {
            findings.extend(rust_file(name, &text, &mut used));
        }
    }
    findings.extend(packages(&manifest(&root)?, &used));
    // A tree that does not build has no pages to compare; its other findings are told all the same.
    findings.extend(docs::stale().unwrap_or_else(|error| vec![error]));
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} findings")),
    }
}

/// The project's files: what git tracks or would track, else every file but what is built or fetched.
fn tracked(root: &Path) -> Result<Vec<String>, String> {
    let mut git = shell::command("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    if root.join(".git").exists() {
        let mut files: Vec<String> = shell::output(&mut git)?.lines().map(String::from).collect();
        files.retain(|name| root.join(name).exists());
        return Ok(files);
    }
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let built = name == "data" || name == "out" || name.split('/').any(|part| part == "target");
            match path.is_dir() {
                true if !built => folders.push(path),
                false => files.push(name),
                _ => {}
            }
        }
    }
    Ok(files)
}

fn manifest(root: &Path) -> Result<toml::Table, String> {
    let path = root.join("dataplane/Cargo.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    text.parse().map_err(|error| format!("{}: {error}", path.display()))
}

/// All rules on one source file. Adds to `used` the crates that the product's own code names.
fn rust_file(name: &str, text: &str, used: &mut Vec<String>) -> Findings {
    let all = source::tokens(text);
    let mut findings = unfinished(name, &all);
    let Some(inside) = name.strip_prefix("dataplane/src/") else {
        if !name.starts_with("dataplane/tests/") && !name.starts_with("bpf/") && !name.starts_with("dataplane/fuzz/") {
            findings.extend(unsafe_code(name, "", &all));
        }
        return findings;
    };
    let module = module_of(inside);
    findings.extend(unsafe_code(name, module, &all));
    if inside.ends_with("/mod.rs") {
        findings.extend(head(name, text));
    }
    if inside.ends_with("tests.rs") || inside.contains("/tests/") {
        return findings;
    }
    let paths = source::paths(&source::without_tests(&all));
    findings.extend(borders(name, inside, &paths));
    findings.extend(kernel_crates(name, module, &paths));
    if is_pure(inside) {
        findings.extend(pure(name, &paths));
    }
    used.extend(paths.into_iter().filter_map(|path| path.segments.into_iter().next()));
    findings
}

/// The module of a file under `dataplane/src`: its folder, or its name at the top.
fn module_of(inside: &str) -> &str {
    match inside.split_once('/') {
        Some((folder, _)) => folder,
        None => inside.trim_end_matches(".rs"),
    }
}

/// Files that hold machines over bytes and `now`.
fn is_pure(inside: &str) -> bool {
    let worker = inside.ends_with("_worker.rs");
    let pure_ledger = [
        "ledger/assemble",
        "ledger/bench",
        "ledger/chunker",
        "ledger/client",
        "ledger/codec",
        "ledger/compress",
        "ledger/hub",
        "ledger/keeper",
        "ledger/line",
        "ledger/merge",
        "ledger/message",
        "ledger/order",
        "ledger/pacing",
        "ledger/query",
        "ledger/retention",
        "ledger/rpc",
        "ledger/session",
        "ledger/share",
        "ledger/event",
        "ledger/pool",
        "ledger/synthetic",
        "ledger/unpack",
        "ledger/url",
    ];
    inside.starts_with("feed/")
        || inside.starts_with("doctor/findings/")
        || inside.starts_with("wire/")
        || (inside.starts_with("ring/mirror/") && !worker)
        || (inside.starts_with("store/block") && !worker)
        || pure_ledger.iter().any(|file| inside.strip_prefix(file).is_some_and(|rest| rest.starts_with(['.', '/'])))
}

/// The module that a path inside `inside` leads to; `None` when the path does not begin at the package's root.
fn target_module<'a>(inside: &str, path: &'a source::Path) -> Option<&'a str> {
    let first = path.segments.first()?.as_str();
    let segment = |index: usize| path.segments.get(index).map(String::as_str);
    match first {
        "crate" => segment(1),
        "sluice" if inside == "main.rs" => segment(1),
        "super" => {
            let ups = path.segments.iter().take_while(|segment| *segment == "super").count();
            let parts = inside.trim_end_matches(".rs").split('/');
            let depth = parts.filter(|part| !matches!(*part, "mod" | "lib" | "main")).count();
            (ups == depth).then(|| segment(ups)).flatten()
        }
        _ => None,
    }
}

/// Who may use whom.
fn borders(name: &str, inside: &str, paths: &[source::Path]) -> Findings {
    let module = module_of(inside);
    if module == "lib" {
        return Vec::new();
    }
    let Some((_, allowed)) = MAY_USE.iter().find(|(known, _)| *known == module) else {
        return vec![format!("{name}: module \"{module}\" is not in the module table (xtask/src/tidy.rs)")];
    };
    let mut findings = Vec::new();
    // A worker that the caller steps is driven as the runtime would.
    let stepped = inside == "ring/step.rs";
    let runtime_file = stepped || inside.ends_with("/plan.rs") || inside.ends_with("_worker.rs");
    for path in paths {
        let Some(other) = target_module(inside, path) else { continue };
        let line = path.line;
        if other == module {
            continue;
        }
        if !allowed.contains(&other) {
            let list = if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") };
            findings.push(format!("{name}:{line}: \"{module}\" may not use \"{other}\" (it may use {list})"));
        } else if other == "runtime" && JOBS.contains(&module) && !runtime_file {
            findings.push(format!("{name}:{line}: in a job only plan.rs and *_worker.rs use \"runtime\""));
        }
    }
    findings
}

/// The kernel's crates stay in `sys`. The numbers of errors are no kernel access.
fn kernel_crates(name: &str, module: &str, paths: &[source::Path]) -> Findings {
    if module == "sys" {
        return Vec::new();
    }
    let errno = |path: &source::Path| path.segments.len() == 2 && path.segments[1].starts_with('E');
    paths
        .iter()
        .filter(|path| KERNEL_CRATES.contains(&path.segments[0].as_str()) && !errno(path))
        .map(|path| format!("{name}:{}: \"{}\" is named outside sys", path.line, path.segments.join("::")))
        .collect()
}

/// A pure file opens nothing, waits for nothing and reads no clock.
fn pure(name: &str, paths: &[source::Path]) -> Findings {
    let mut findings = Vec::new();
    for path in paths {
        let (first, second) = (path.segments[0].as_str(), path.segments.get(1).map_or("", String::as_str));
        if first == "std" && IMPURE.contains(&second) {
            let whole = path.segments.join("::");
            findings.push(format!("{name}:{}: a pure file does without \"{whole}\"", path.line));
        }
    }
    findings
}

/// Unsafe code, and leave to write it, only in `sys` and `sync`.
fn unsafe_code(name: &str, module: &str, tokens: &[Token]) -> Findings {
    if matches!(module, "sys" | "sync") {
        return Vec::new();
    }
    // `unsafe_code` is a finding where a lint level lets it in.
    let lets_in = |at: usize| {
        let before = tokens[at.saturating_sub(4)..at].iter();
        tokens[at].text == "unsafe_code"
            && before.rev().any(|token| matches!(token.text.as_str(), "allow" | "expect" | "warn"))
    };
    (0..tokens.len())
        .filter(|at| tokens[*at].text == "unsafe" || lets_in(*at))
        .map(|at| format!("{name}:{}: \"{}\" outside sys and sync", tokens[at].line, tokens[at].text))
        .collect()
}

/// The head of a mod.rs: what it is for, what it may use, what it never does.
fn head(name: &str, text: &str) -> Findings {
    let lines = text.lines().take_while(|line| line.starts_with("//!"));
    let head: Vec<&str> = lines.map(|line| line.trim_start_matches("//!").trim()).collect();
    let whole = head.join(" ");
    let mut findings = Vec::new();
    let opens = head.first().is_some_and(|first| !first.is_empty() && !first.starts_with("May use:"));
    for (holds, what) in [
        (opens, "one sentence on what it is for"),
        (whole.contains("May use:"), "\"May use:\""),
        (whole.contains("Never does:"), "\"Never does:\""),
    ] {
        if !holds {
            findings.push(format!("{name}:1: the module's head lacks {what}"));
        }
    }
    findings
}

/// Nothing that only promises.
fn unfinished(name: &str, tokens: &[Token]) -> Findings {
    tokens
        .windows(2)
        .filter(|pair| matches!(pair[0].text.as_str(), "todo" | "unimplemented") && pair[1].text == "!")
        .map(|pair| format!("{name}:{}: \"{}!\" is left", pair[0].line, pair[0].text))
        .collect()
}

/// No path of one developer's machine.
fn machine_paths(name: &str, text: &str) -> Findings {
    // Taken apart, so that this file does not find itself.
    let marks = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Use", "rs/")];
    let marks = marks.into_iter().chain([concat!("/tmp", "/wt"), concat!("/tmp", "/t/")]);
    let mut findings = Vec::new();
    for mark in marks {
        for (index, line) in text.lines().enumerate() {
            let begins = |at: usize| !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.');
            if line.match_indices(mark).any(|(at, _)| begins(at)) {
                findings.push(format!("{name}:{}: \"{mark}\" is a path of one machine", index + 1));
            }
        }
    }
    findings
}

/// No citation of a document that a reader of the repository has not.
fn outside_documents(name: &str, text: &str) -> Findings {
    // Taken apart, so that this file does not find itself.
    let marks = [concat!("CON", "TRACTS"), concat!("FEA", "TURES.md"), concat!("STY", "LE.md"), concat!("spe", "c/")];
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let cited = |mark: &&&str| line.match_indices(**mark).any(|(at, _)| begins_a_word(line, at));
        let told = |mark: &&str| format!("{name}:{}: \"{mark}\" is not in the repository: cite docs/", index + 1);
        findings.extend(marks.iter().filter(cited).map(told));
    }
    findings
}

/// Whether nothing of a name or a path stands before `at`.
fn begins_a_word(line: &str, at: usize) -> bool {
    !line[..at].ends_with(|before: char| before.is_alphanumeric() || matches!(before, '.' | '_' | '-' | '/'))
}

/// The top level holds only its entries.
fn top_level(files: &[String]) -> Findings {
    let mut tops: Vec<&str> = files.iter().map(|name| name.split('/').next().unwrap_or(name)).collect();
    tops.sort_unstable();
    tops.dedup();
    tops.retain(|top| !top.starts_with('.') && !TOP_LEVEL.contains(top));
    tops.iter().map(|top| format!("{top}: the top level has no such entry; it belongs in one of its folders")).collect()
}

/// The promised packages are dependencies, and the product's own code uses them.
fn packages(manifest: &toml::Table, used: &[String]) -> Findings {
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    let mut findings = Vec::new();
    for package in PACKAGES {
        if !dependencies.is_some_and(|table| table.contains_key(*package)) {
            findings.push(format!("dataplane/Cargo.toml: \"{package}\" is not a dependency"));
        } else if !used.contains(&package.replace('-', "_")) {
            findings.push(format!("dataplane/Cargo.toml: \"{package}\" is a dependency that no code of ours uses"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, text: &str) -> Findings {
        rust_file(&format!("dataplane/src/{name}"), text, &mut Vec::new())
    }

    fn assert_finds(findings: &Findings, part: &str) {
        assert!(findings.iter().any(|finding| finding.contains(part)), "{part:?} is not in {findings:#?}");
    }

    #[test]
    fn the_module_table_is_held() {
        assert_eq!(check("feed/gap.rs", "use crate::{units::Side, wire::segment};"), Findings::new());
        assert_finds(&check("feed/gap.rs", "\nuse crate::store::Reader;"), ":2: \"feed\" may not use \"store\"");
        assert_finds(&check("feed/gap.rs", "use super::super::store::Reader;"), "may not use \"store\"");
        assert_eq!(check("feed/gap.rs", "use super::runs;"), Findings::new());
        assert_finds(
            &check("store/reader.rs", "fn f() { crate::capture::open() }"),
            "\"store\" may not use \"capture\"",
        );
        assert_finds(&check("units.rs", "use crate::wire;\nuse crate::wire::x;"), "it may use nothing");
        assert_finds(&check("main.rs", "fn main() { sluice::feed::x() }"), "\"main\" may not use \"feed\"");
        assert_eq!(check("main.rs", "fn main() { sluice::cli::main() }"), Findings::new());
        assert_finds(&check("other/mod.rs", ""), "not in the module table");
        assert_eq!(
            check("feed/gap.rs", "#[cfg(test)] mod tests { use crate::store; use crate::sys::x; }"),
            Findings::new()
        );
    }

    #[test]
    fn only_plans_and_workers_use_the_runtime() {
        assert_eq!(check("store/store_worker.rs", "use crate::runtime::Worker;"), Findings::new());
        assert_eq!(check("capture/plan.rs", "use crate::runtime::Worker;"), Findings::new());
        assert_eq!(check("ring/step.rs", "use crate::runtime::Worker;"), Findings::new());
        assert_finds(&check("ring/raw.rs", "use crate::runtime::Worker;"), "only plan.rs and *_worker.rs");
        assert_finds(&check("store/reader.rs", "use crate::runtime::Worker;"), "only plan.rs and *_worker.rs");
        assert_eq!(check("cli/run.rs", "use crate::runtime::Worker;"), Findings::new());
    }

    #[test]
    fn pure_files_are_pure() {
        assert_eq!(check("wire/packet.rs", "use core::net::Ipv4Addr; use std::fmt;"), Findings::new());
        assert_finds(&check("wire/packet.rs", "use std::{fmt, net::Ipv4Addr};"), "does without \"std::net::Ipv4Addr\"");
        assert_finds(&check("feed/gap.rs", "fn f() { std::time::Instant::now() }"), "std::time::Instant::now");
        assert_finds(&check("store/block_index.rs", "use std::fs::File;"), "std::fs::File");
        assert_eq!(check("store/reader.rs", "use std::fs::File;"), Findings::new());
        assert_finds(&check("ring/mirror/loss.rs", "use std::thread;\nuse std::thread::spawn;"), "std::thread");
        assert_finds(&check("ledger/client.rs", "use std::net::TcpStream;"), "std::net");
    }

    #[test]
    fn the_kernel_and_unsafe_stay_where_they_belong() {
        assert_eq!(check("sys/xsk.rs", "use xsk_rs::Umem; fn f() { unsafe { libc::close(0) } }"), Findings::new());
        assert_finds(&check("capture/queue_worker.rs", "use xsk_rs::Umem;"), "outside sys");
        assert_eq!(check("store/reader.rs", "const FULL: i32 = libc::ENOSPC;"), Findings::new());
        assert_finds(&check("store/reader.rs", "fn f() { unsafe { g() } }"), "\"unsafe\" outside");
        assert_finds(&check("store/reader.rs", "#![allow(unsafe_code)]"), "\"unsafe_code\" outside");
        assert_eq!(check("store/reader.rs", "// unsafe\nconst X: &str = \"unsafe\";"), Findings::new());
    }

    #[test]
    fn heads_are_whole() {
        let good = "//! Codecs.\n//!\n//! May use: `units`.\n//! Never does: open a socket.\n";
        assert_eq!(check("wire/mod.rs", good), Findings::new());
        assert_finds(&check("wire/mod.rs", "//! Codecs.\n//! May use: `units`.\n"), "lacks \"Never does:\"");
        assert_eq!(check("wire/mod.rs", "pub mod x;").len(), 3);
        assert_eq!(check("wire/packet.rs", "pub mod x;"), Findings::new());
    }

    #[test]
    fn nothing_is_left_unfinished() {
        let (left, right) = ("fn f() { to", "do!() }");
        assert_finds(&check("feed/gap.rs", &format!("{left}{right}")), "is left");
        assert_eq!(check("feed/gap.rs", &format!("// {left}{right}\nfn todo() {{}}")), Findings::new());
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let bad = format!("see {}me/user/x", "/ho");
        assert_finds(&machine_paths("docs/a.md", &bad), "docs/a.md:1");
        assert_eq!(machine_paths("docs/a.md", "../shared/data and /usr/lib and https://a.b/c"), Findings::new());
    }

    #[test]
    fn documents_from_elsewhere_are_not_cited() {
        let cited = format!("as {}TRACTS §3 says", "CON");
        assert_finds(&outside_documents("docs/a.md", &cited), "docs/a.md:1: \"CON");
        assert_finds(&outside_documents("a.rs", &format!("\n/// {}c/af-xdp.md §8", "spe")), "a.rs:2");
        assert_eq!(
            outside_documents("docs/a.md", "a node that compiles contracts; tests/spec/a; a contract"),
            Findings::new()
        );
    }

    #[test]
    fn the_top_level_is_closed() {
        let good = ["Cargo.toml", "dataplane/src/lib.rs", ".ci/run"].map(String::from);
        assert_eq!(top_level(&good), Findings::new());
        assert_finds(&top_level(&["notes/a.md".into()]), "notes");
    }

    #[test]
    fn packages_must_be_named_and_used() {
        let all: String = PACKAGES.iter().map(|name| format!("{name} = \"1\"\n")).collect();
        let manifest: toml::Table = format!("[dependencies]\n{all}").parse().unwrap();
        let mut used: Vec<String> = PACKAGES.iter().map(|name| name.replace('-', "_")).collect();
        assert_eq!(packages(&manifest, &used), Findings::new());
        used.remove(0);
        assert_finds(&packages(&manifest, &used), "\"xsk-rs\" is a dependency that no code");
        assert_finds(&packages(&"[dependencies]".parse().unwrap(), &used), "\"nix\" is not a dependency");
    }
}
