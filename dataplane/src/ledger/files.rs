//! What of the ledger job's files `run` would refuse: the part of the check that has to look at them. Changes nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::archive;
use super::bearer;
use super::client_tls::ClientTls;
use super::plan;
use super::reload::{Reload, ReloadError, open_secret};
use super::source::captive::{self, CaptiveSettings};
use super::source::file;
use super::url::Url;
use crate::config::{self, Config, Finding, LedgerServe, LedgerSource};
use crate::sys::file::unread;

/// Every finding about the files that `[ledger.serve]` names.
pub fn check_files(config: &Config) -> Vec<Finding> {
    let Some(serve) = &config.ledger.serve else { return Vec::new() };
    let mut findings = Vec::new();
    if let Err(errors) = Reload::load(serve) {
        findings.extend(errors.iter().map(of_secret));
        // A certificate that cannot be read hides its key.
        if errors.iter().any(|error| ReloadError::key(error) == "cert") && serve.cert.is_some() {
            readable("key", serve.key.as_deref(), &mut findings);
        }
    }
    if serve.data_dir.exists() && !serve.data_dir.is_dir() {
        findings.push(finding(
            "data_dir",
            format!("is \"{}\", which is no directory: name one, or what can be made one", serve.data_dir.display()),
        ));
    }
    match serve.source {
        LedgerSource::File => check_dump(serve, &mut findings),
        LedgerSource::Captive => check_captive(serve, &mut findings),
        LedgerSource::Follow => check_upstream(serve, &mut findings),
        LedgerSource::Synthetic | LedgerSource::Pipe => {}
    }
    findings
}

/// An error of what is read again: it begins with its key, and then the file.
fn of_secret(error: &ReloadError) -> Finding {
    let (field, what) = (error.key(), error.to_string());
    finding(field, what.strip_prefix(&format!("{field} ")).unwrap_or(&what).into())
}

/// What `run` would refuse because of the ledgers that are kept: they are another source's. Changes nothing.
pub fn check_kept(config: &Config) -> Vec<Finding> {
    let Some(serve) = config.ledger.serve.as_ref().filter(|serve| !serve.reset) else { return Vec::new() };
    // What cannot be told or read is another finding, or the start's matter.
    let Some((source, network)) = plan::source_of(serve) else { return Vec::new() };
    let Err(what) = archive::would_go_on(&serve.segments_dir(), &source, &network) else { return Vec::new() };
    vec![finding("data_dir", what)]
}

fn finding(field: &str, what: String) -> Finding {
    Finding { key: format!("ledger.serve: {field}"), what }
}

/// What of the ledger job's files `run` lives with: secrets that every user of the host may read, certificates at their end.
pub fn warn_files(config: &Config) -> Vec<Finding> {
    let Some(serve) = &config.ledger.serve else { return Vec::new() };
    let secrets = [
        ("key", serve.key.as_deref().filter(|_| serve.cert.is_some())),
        ("tokens", serve.tokens.as_deref()),
        ("upstream_token_file", serve.upstream_token_file.as_deref()),
    ];
    let of_follow = |field: &str| field.starts_with("upstream") && serve.source != LedgerSource::Follow;
    let secrets = secrets.into_iter().filter(|(field, _)| !of_follow(field));
    let secrets = secrets.filter_map(|(field, path)| Some(finding(field, open_secret(path?)?)));
    let certificates = [("cert", serve.cert.as_deref()), ("upstream_ca", serve.upstream_ca.as_deref())];
    let certificates = certificates.into_iter().filter(|(field, _)| !of_follow(field));
    secrets.chain(certificates.filter_map(|(field, path)| Some(finding(field, validity(path?)?)))).collect()
}

/// What is wrong with the time that a file's certificates are for.
#[cfg(feature = "ledger-tls")]
fn validity(path: &Path) -> Option<String> {
    let now = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(crate::sys::clock::utc_ns().max(0) as u64);
    super::validity::warning(path, now)
}

/// Nothing is read here that knows certificates; `check` tells that they cannot be used.
#[cfg(not(feature = "ledger-tls"))]
fn validity(_path: &Path) -> Option<String> {
    None
}

/// A missing key is the file's own matter: what is here is looked at.
fn check_captive(serve: &LedgerServe, findings: &mut Vec<Finding>) {
    let before = findings.len();
    readable("core_config", serve.core_config.as_deref(), findings);
    let unread = findings.len() > before || serve.core_config.is_none();
    let settings =
        CaptiveSettings { config: serve.core_config.clone().filter(|_| !unread), ..CaptiveSettings::of(serve) };
    for (field, error) in captive::look(&settings) {
        let what = error.to_string();
        let what = what.strip_prefix("captive source: ").unwrap_or(&what);
        let what = what.strip_prefix(field).map_or(what, str::trim_start);
        findings.push(finding(field, what.into()));
    }
}

fn check_upstream(serve: &LedgerServe, findings: &mut Vec<Finding>) {
    if let Some(path) = serve.upstream_token_file.as_deref() {
        let before = findings.len();
        readable("upstream_token_file", Some(path), findings);
        if let (true, Err(error)) = (findings.len() == before, bearer::read(path)) {
            findings.push(finding("upstream_token_file", error.to_string()));
        }
    }
    let url = match serve.upstream.as_deref().filter(|url| url.contains("://")).map(Url::parse) {
        // None, or none that can be one: the file's own matter.
        None => return readable("upstream_ca", serve.upstream_ca.as_deref(), findings),
        Some(Ok(url)) => url,
        Some(Err(error)) => {
            findings.push(finding("upstream", error.to_string()));
            return readable("upstream_ca", serve.upstream_ca.as_deref(), findings);
        }
    };
    let before = findings.len();
    readable("upstream_ca", serve.upstream_ca.as_deref(), findings);
    if url.tls && findings.len() == before {
        let field = if serve.upstream_ca.is_some() { "upstream_ca" } else { "upstream" };
        let error = ClientTls::new(serve.upstream_ca.as_deref()).err();
        findings.extend(error.map(|error| finding(field, error.to_string())));
    }
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
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => readable("file_dir", Some(file_dir), findings),
        Ok(_) => {
            let first = (!serve.renumber() && serve.start_ledger > 0).then_some(serve.start_ledger);
            findings.extend(file::look(file_dir, first).err().map(|what| finding("file_dir", what)));
        }
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
        Ok(metadata) if !metadata.is_file() => "is no regular file: name the file that is meant".to_string(),
        Ok(_) => match File::open(path) {
            Ok(_) => return,
            Err(error) => format!("{error}; {}", unread(&error)),
        },
        Err(error) => format!("{error}; {}", unread(&error)),
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
        assert_eq!(
            told(serve("data"), folder.path()),
            [
                "config ledger.serve: file_dir: DIR/data: no file is named ledger-<sequence>.xdr, and none is a segment; is it DIR/data/ledgers?"
            ]
        );
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
                "config ledger.serve: tokens: \"DIR/file\" line 1: 1 characters, but a token has from 16 to 1024: \"openssl rand -hex 32\" makes one",
                "config ledger.serve: data_dir: is \"DIR/file\", which is no directory: name one, or what can be made one",
            ]
        );
        let captive =
            LedgerServe { source: LedgerSource::Captive, core_config: Some(at("no")), ..LedgerServe::new("c") };
        let captive = LedgerServe { core_binary: Some(at("none")), ..captive };
        assert_eq!(
            told(captive, folder.path()),
            [
                "config ledger.serve: core_config: is \"DIR/no\": No such file or directory (os error 2); make it, or name the file that is meant",
                "config ledger.serve: core_binary: DIR/none is no program",
            ]
        );
        let follow = LedgerServe {
            source: LedgerSource::Follow,
            upstream: Some("wss://core.example.net".into()),
            upstream_token_file: Some(folder.path().into()),
            upstream_ca: Some(at("file")),
            ..LedgerServe::new("c")
        };
        let ca = "config ledger.serve: upstream_ca: DIR/file: it holds no certificate: a PEM file with one or more certificates is needed";
        assert_eq!(
            told(follow.clone(), folder.path()),
            [
                "config ledger.serve: upstream_token_file: is \"DIR\": is no regular file: name the file that is meant",
                ca
            ]
        );
        let follow =
            LedgerServe { upstream: Some("wss://a:b@c".into()), upstream_token_file: Some(at("file")), ..follow };
        assert_eq!(
            told(follow, folder.path()),
            [
                "config ledger.serve: upstream: stream URL \"wss://a:b@c\": it holds a user, and none is ever sent: write ws://host:port or wss://host:port"
            ]
        );
    }
}
