//! What of the ledger job's files `run` would refuse: the part of the check that has to look at them. Changes nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::reload::Reload;
use crate::config::{self, Config, Finding, LedgerServe, LedgerSource};

/// Every finding about the files that `[ledger.serve]` names.
pub fn check_files(config: &Config) -> Vec<Finding> {
    let Some(serve) = &config.ledger.serve else { return Vec::new() };
    let mut findings = Vec::new();
    if let Err(errors) = Reload::load(serve) {
        // Each begins with its key and its file.
        findings.extend(errors.iter().map(|error| Finding { key: "ledger.serve".into(), what: error.to_string() }));
    }
    if serve.data_dir.exists() && !serve.data_dir.is_dir() {
        findings.push(finding(
            "data_dir",
            format!("is \"{}\", which is no directory: name one, or what can be made one", serve.data_dir.display()),
        ));
    }
    match serve.source {
        LedgerSource::File => check_dump(serve, &mut findings),
        LedgerSource::Captive => readable("core_config", serve.core_config.as_deref(), &mut findings),
        LedgerSource::Follow => {
            readable("upstream_token_file", serve.upstream_token_file.as_deref(), &mut findings);
            readable("upstream_ca", serve.upstream_ca.as_deref(), &mut findings);
        }
        LedgerSource::Synthetic | LedgerSource::Pipe => {}
    }
    findings
}

fn finding(field: &str, what: String) -> Finding {
    Finding { key: format!("ledger.serve: {field}"), what }
}

/// A source that is the directory being written would feed on itself, by whatever name it goes.
fn check_dump(serve: &LedgerServe, findings: &mut Vec<Finding>) {
    // A missing key is the file's own matter.
    let Some(file_dir) = serve.file_dir.as_deref().filter(|path| !path.as_os_str().is_empty()) else { return };
    let segments = serve.segments_dir();
    if is_same(file_dir, &segments) {
        findings.push(finding("file_dir", config::is_retention(file_dir)));
        return;
    }
    match std::fs::metadata(file_dir) {
        Err(error) => findings.push(finding(
            "file_dir",
            format!(
                "is \"{}\": {error}; name a directory of ledger-<sequence>.xdr, or a framed file",
                file_dir.display()
            ),
        )),
        Ok(metadata) if metadata.is_file() => readable("file_dir", Some(file_dir), findings),
        Ok(_) => {}
    }
}

/// Whether two paths lead to the same, by name or by inode.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.components().collect::<PathBuf>());
    if let (Ok(one), Ok(other)) = (absolute(one), absolute(other))
        && one == other
    {
        return true;
    }
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn readable(field: &str, path: Option<&Path>, findings: &mut Vec<Finding>) {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return };
    let why = match std::fs::metadata(path) {
        // Opening something else could wait for its other end.
        Ok(metadata) if !metadata.is_file() => "is no regular file".to_string(),
        Ok(_) => match File::open(path) {
            Ok(_) => return,
            Err(error) => format!("{error}; its owner and mode decide who may read it"),
        },
        Err(error) => error.to_string(),
    };
    findings.push(finding(field, format!("is \"{}\": {why}", path.display())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(serve: LedgerServe, folder: &Path) -> Vec<String> {
        let config = Config { ledger: config::Ledger { serve: Some(serve) }, ..Config::default() };
        let told = check_files(&config);
        told.iter().map(|finding| finding.to_string().replace(&folder.display().to_string(), "DIR")).collect()
    }

    #[test]
    fn a_source_that_is_what_is_written_is_refused_by_every_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("data/ledgers")).expect("makes");
        std::os::unix::fs::symlink(at("data"), at("link")).expect("links");
        let serve = |file_dir: &str| LedgerServe {
            source: LedgerSource::File,
            data_dir: at("data"),
            file_dir: Some(at(file_dir)),
            ..LedgerServe::new("c")
        };
        for name in ["data/ledgers", "data/./ledgers/", "link/ledgers", "data/../link/ledgers"] {
            let text = format!(
                "config ledger.serve: file_dir: is \"DIR/{name}\", where this server keeps its own ledgers: copy them elsewhere, or give it another data_dir"
            );
            assert_eq!(told(serve(name), folder.path()), [text]);
        }
        assert_eq!(told(serve("data"), folder.path()), Vec::<String>::new());
        // Before the first run there is nothing to compare but names.
        let early = LedgerServe { data_dir: at("new"), ..serve("new/ledgers") };
        assert!(told(early, folder.path())[0].contains("keeps its own ledgers"));
        let text = "config ledger.serve: file_dir: is \"DIR/none\": No such file or directory (os error 2); name a directory of ledger-<sequence>.xdr, or a framed file";
        assert_eq!(told(serve("none"), folder.path()), [text]);
    }

    #[test]
    fn files_that_are_not_there_are_all_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x").expect("writes");
        let serve = LedgerServe { data_dir: at("file"), tokens: Some(at("file")), ..LedgerServe::new("c") };
        assert_eq!(
            told(serve, folder.path()),
            [
                "config ledger.serve: tokens \"DIR/file\" line 1: 1 characters, but a token has from 16 to 1024: \"openssl rand -hex 32\" makes one",
                "config ledger.serve: data_dir: is \"DIR/file\", which is no directory: name one, or what can be made one",
            ]
        );
        let captive =
            LedgerServe { source: LedgerSource::Captive, core_config: Some(at("no")), ..LedgerServe::new("c") };
        assert_eq!(
            told(captive, folder.path()),
            ["config ledger.serve: core_config: is \"DIR/no\": No such file or directory (os error 2)"]
        );
        let follow = LedgerServe {
            source: LedgerSource::Follow,
            upstream_token_file: Some(folder.path().into()),
            upstream_ca: Some(at("file")),
            ..LedgerServe::new("c")
        };
        assert_eq!(
            told(follow, folder.path()),
            ["config ledger.serve: upstream_token_file: is \"DIR\": is no regular file"]
        );
    }
}
