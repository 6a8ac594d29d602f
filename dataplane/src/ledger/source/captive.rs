//! stellar-core as a source: started with its own configuration, on the pipe source, so that ledgers are passed on while core writes
//! them.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::pipe::{Command, Piped, cpus};
use super::{Source, SourceError, described};
use crate::config::LedgerServe;

/// What core is called where nobody says.
const BINARY: &str = "stellar-core";
/// The configuration that core is given, in the storage directory.
const CONFIG: &str = "captive-core.cfg";

/// Brings core to the ledger before the first one that is wanted, and lets it run from there; its arguments are the binary, the
/// configuration, the first ledger and the one before it. What core has in its database already is used where it reaches no
/// further; then it goes on from there, and the ledgers up to the first are passed over here. `new-db` and `catchup` write no
/// meta; a catchup to `N/0` applies buckets only. Ledgers 1 and 2 need none.
const SCRIPT: &str = r#"
core=$1 conf=$2 first=$3 before=$4
have=$("$core" offline-info --conf "$conf" 3>&- 2>/dev/null | sed -n 's/^.*"num"[^0-9]*\([0-9][0-9]*\).*$/\1/p' | head -n 1)
if [ -z "$have" ] || [ "$have" -le 1 ] || [ "$have" -ge "$first" ]; then
    "$core" new-db --conf "$conf" --console 3>&- || exit
    if [ "$before" -ge 2 ]; then
        "$core" catchup "$before/0" --conf "$conf" --console 3>&- || exit
    fi
fi
exec "$core" run --conf "$conf" --console --metadata-output-stream fd:3
"#;

/// A captive core.
#[derive(Clone, Debug)]
pub struct CaptiveSettings {
    /// The binary; `None`: `stellar-core` on the PATH.
    pub binary: Option<PathBuf>,
    /// Core's own configuration.
    pub config: Option<PathBuf>,
    /// History archives beside those of the configuration.
    pub archives: Vec<String>,
    /// Where core works; made where it does not exist.
    pub storage: PathBuf,
    /// The first ledger; 0 is missing.
    pub start: u32,
    /// The network's passphrase, to be compared with the configuration's; `None`: that one.
    pub passphrase: Option<String>,
    /// Bytes asked for the pipe.
    pub pipe_bytes: usize,
    /// The CPUs on which core may run; empty: those of the thread that opens the source.
    pub cpus: Vec<usize>,
}

impl CaptiveSettings {
    /// What the configuration says.
    pub fn of(serve: &LedgerServe) -> CaptiveSettings {
        CaptiveSettings {
            binary: serve.core_binary.clone(),
            config: serve.core_config.clone(),
            archives: serve.history_archive_urls.clone(),
            storage: serve.storage_dir(),
            start: serve.start_ledger,
            passphrase: serve.network_passphrase.clone(),
            pipe_bytes: serve.pipe_size.0 as usize,
            cpus: Vec::new(),
        }
    }
}

/// What a captive core would be started with.
#[derive(Debug)]
pub struct Prepared {
    binary: PathBuf,
    config: String,
    passphrase: String,
}

fn refused(what: impl std::fmt::Display) -> SourceError {
    SourceError(format!("captive source: {what}"))
}

/// Looks at everything that a captive core needs, and changes nothing.
///
/// # Errors
/// What is missing or contradicts itself, by its name.
pub fn prepare(settings: &CaptiveSettings) -> Result<Prepared, SourceError> {
    if settings.start == 0 {
        return Err(refused("start_ledger is missing: a captive core is told where to begin"));
    }
    let config = settings.config.as_ref();
    let config = config.ok_or_else(|| refused("core_config is missing: the path of stellar-core's configuration"))?;
    let binary = find_binary(settings.binary.as_deref())?;
    let text =
        fs::read_to_string(config).map_err(|error| refused(format!("core_config {}: {error}", config.display())))?;
    let table: Table =
        text.parse().map_err(|error| refused(format!("core_config {} is no TOML: {error}", config.display())))?;
    let passphrase = passphrase(&table, settings.passphrase.as_deref(), config)?;
    if !table.contains_key("QUORUM_SET") && !table.contains_key("VALIDATORS") {
        tracing::warn!(config = %config.display(), "neither QUORUM_SET nor VALIDATORS: core will have nobody to follow");
    }
    let config = complete(table, &passphrase, &settings.archives, config)?;
    Ok(Prepared { binary, config, passphrase })
}

/// What it calls itself, and its network's passphrase; `None` for one that would be refused.
pub fn description(settings: &CaptiveSettings) -> Option<(String, String)> {
    let binary = find_binary(settings.binary.as_deref()).ok()?;
    let config = settings.config.as_ref()?;
    let table: Table = fs::read_to_string(config).ok()?.parse().ok()?;
    let passphrase = passphrase(&table, settings.passphrase.as_deref(), config).ok()?;
    Some((described("captive", &binary.to_string_lossy()), passphrase))
}

/// What a captive core would be refused for, each with its key: as [`prepare`], but all of it, and without what `start` and missing
/// keys are refused for, which the file alone tells.
pub fn look(settings: &CaptiveSettings) -> Vec<(&'static str, SourceError)> {
    let mut refusals: Vec<(&'static str, SourceError)> = Vec::new();
    refusals.extend(find_binary(settings.binary.as_deref()).err().map(|error| ("core_binary", error)));
    let Some(path) = &settings.config else { return refusals };
    let read = |error: &dyn std::fmt::Display| ("core_config", refused(format!("{}: {error}", path.display())));
    let table = match fs::read_to_string(path) {
        Err(error) => return [refusals, vec![read(&error)]].concat(),
        Ok(text) => match text.parse::<Table>() {
            Err(error) => return [refusals, vec![read(&format!("is no TOML: {error}"))]].concat(),
            Ok(table) => table,
        },
    };
    let asked = settings.passphrase.as_deref();
    match passphrase(&table, asked, path) {
        Err(error) => refusals.push(("network_passphrase", error)),
        Ok(passphrase) => {
            let completed = complete(table, &passphrase, &settings.archives, path);
            refusals.extend(completed.err().map(|error| ("core_config", error)));
        }
    }
    refusals
}

/// A source that runs stellar-core; makes its storage directory and writes its configuration there.
///
/// # Errors
/// As [`prepare`], and the storage directory's.
pub fn open(settings: &CaptiveSettings) -> Result<Box<dyn Source>, SourceError> {
    let Prepared { binary, config, passphrase } = prepare(settings)?;
    let storage = std::path::absolute(&settings.storage).unwrap_or_else(|_| settings.storage.clone());
    let path = storage.join(CONFIG);
    write_config(&storage, &path, &config)
        .map_err(|error| refused(format!("storage_dir {}: {error}", storage.display())))?;
    let numbers = [settings.start, settings.start - 1].map(|number| OsString::from(number.to_string()));
    let mut arguments: Vec<OsString> = vec!["-c".into(), SCRIPT.into(), "captive-core".into()];
    arguments.extend([binary.as_os_str().to_os_string(), path.into_os_string()]);
    arguments.extend(numbers);
    let command = Command {
        kind: "captive",
        name: binary.to_string_lossy().into_owned(),
        program: "/bin/sh".into(),
        arguments,
        directory: Some(storage),
        pipe_bytes: settings.pipe_bytes,
        cpus: cpus(&settings.cpus),
        passphrase: Some(passphrase),
        first: Some(settings.start),
    };
    Ok(Box::new(Piped::new(command)))
}

/// The binary, as an absolute path: core runs in another directory.
fn find_binary(binary: Option<&Path>) -> Result<PathBuf, SourceError> {
    let is_program = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let name = binary.unwrap_or(Path::new(BINARY));
    if name.components().count() > 1 {
        let path = std::path::absolute(name).unwrap_or_else(|_| name.to_path_buf());
        return match is_program(&path) {
            true => Ok(path),
            false => Err(refused(format!("core_binary {} is no program", name.display()))),
        };
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&paths).map(|directory| directory.join(name));
    let found = found.find(|path| is_program(path));
    found.ok_or_else(|| refused(format!("core_binary {} is not on the PATH: say where it is", name.display())))
}

/// The network's passphrase: what the configuration says and what was asked for must be one.
fn passphrase(table: &Table, asked: Option<&str>, path: &Path) -> Result<String, SourceError> {
    let own = match table.get("NETWORK_PASSPHRASE") {
        None => None,
        Some(Value::String(text)) if !text.is_empty() => Some(text.as_str()),
        Some(_) => return Err(refused(format!("{}: NETWORK_PASSPHRASE is no text", path.display()))),
    };
    match (own, asked) {
        (Some(own), Some(asked)) if own != asked => Err(refused(format!(
            "network_passphrase is \"{asked}\", but {} has NETWORK_PASSPHRASE = \"{own}\": another network",
            path.display()
        ))),
        (Some(passphrase), _) | (None, Some(passphrase)) => Ok(passphrase.into()),
        (None, None) => {
            Err(refused(format!("{} has no NETWORK_PASSPHRASE, and network_passphrase is missing", path.display())))
        }
    }
}

/// The configuration as core is given it: what it says itself stays; the archives and what a captive core needs is added.
fn complete(mut table: Table, passphrase: &str, archives: &[String], path: &Path) -> Result<String, SourceError> {
    for forbidden in ["METADATA_OUTPUT_STREAM", "NODE_IS_VALIDATOR"] {
        let harmless = table.get(forbidden).is_none_or(|value| *value == Value::Boolean(false));
        if !harmless {
            let what = "is not for a captive core: leave it out";
            return Err(refused(format!("{}: {forbidden} {what}", path.display())));
        }
    }
    let defaults = [
        ("NETWORK_PASSPHRASE", Value::String(passphrase.into())),
        // Beside the configuration, in the storage directory.
        ("DATABASE", Value::String("sqlite3://stellar.db".into())),
        ("BUCKET_DIR_PATH", Value::String("buckets".into())),
        // What it has to say goes to our output, not to a file.
        ("LOG_FILE_PATH", Value::String(String::new())),
        // No control port unless asked for: a second core on the host would find it taken.
        ("HTTP_PORT", Value::Integer(0)),
    ];
    for (key, value) in defaults {
        table.entry(key).or_insert(value);
    }
    let history = table.entry("HISTORY").or_insert_with(|| Value::Table(Table::new()));
    let Value::Table(history) = history else {
        return Err(refused(format!("{}: HISTORY is no table", path.display())));
    };
    for (index, archive) in archives.iter().enumerate() {
        let mut entry = Table::new();
        entry.insert("get".into(), Value::String(fetch(archive)?));
        history.insert(format!("sluice{index}"), Value::Table(entry));
    }
    if history.is_empty() {
        let what = "history_archive_urls is missing, and no [HISTORY] is in";
        return Err(refused(format!("{what} {}: core catches up from an archive", path.display())));
    }
    toml::to_string(&table).map_err(|error| refused(format!("{}: {error}", path.display())))
}

/// The command by which core fetches a file of an archive. Core splits it at its spaces, and may hand it to a shell.
fn fetch(archive: &str) -> Result<String, SourceError> {
    let plain = archive.chars().all(|c| c.is_ascii_alphanumeric() || "-._~:/@%+=,".contains(c));
    let web = archive.starts_with("https://") || archive.starts_with("http://");
    if !plain || !web {
        return Err(refused(format!("history_archive_urls: \"{archive}\" is no plain http or https URL")));
    }
    Ok(format!("curl -sf {}/{{0}} -o {{1}}", archive.trim_end_matches('/')))
}

fn write_config(storage: &Path, path: &Path, config: &str) -> std::io::Result<()> {
    fs::create_dir_all(storage)?;
    // It may hold a seed.
    let unfinished = path.with_extension("cfg.tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    file.write_all(b"# Written by sluice from core_config; changed there, not here.\n")?;
    file.write_all(config.as_bytes())?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE_CONFIG: &str = r#"
NETWORK_PASSPHRASE = "Made Up Network ; 2026"
UNSAFE_QUORUM = true

[[HOME_DOMAINS]]
HOME_DOMAIN = "example.org"
QUALITY = "MEDIUM"

[[VALIDATORS]]
NAME = "one"
HOME_DOMAIN = "example.org"
PUBLIC_KEY = "GDKXE2OZMJIPOSLNA6N6F2BVCI3O777I2OOC4BV7VOYUEHYX7RTRYA7Y"
ADDRESS = "127.0.0.1:11625"
"#;

    fn settings(directory: &Path, config: &str) -> CaptiveSettings {
        let path = directory.join("core.cfg");
        fs::write(&path, config).expect("written");
        CaptiveSettings {
            binary: Some("/bin/true".into()),
            config: Some(path),
            archives: vec!["https://history.example.org/core_1/".into()],
            storage: directory.join("storage/captive-core"),
            start: 100,
            passphrase: None,
            pipe_bytes: 1 << 20,
            cpus: Vec::new(),
        }
    }

    fn refusal(settings: &CaptiveSettings) -> String {
        prepare(settings).expect_err("refused").to_string()
    }

    #[test]
    fn a_configuration_is_completed_and_kept() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = settings(directory.path(), CORE_CONFIG);
        let source = open(&settings).expect("a source");
        assert_eq!(source.description(), "captive /bin/true");
        assert_eq!(source.network(), super::super::network_of(Some("Made Up Network ; 2026")));
        let path = settings.storage.join(CONFIG);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let table: Table = fs::read_to_string(path).expect("readable").parse().expect("TOML");
        let text = |key: &str| table[key].as_str().map(String::from);
        assert_eq!(text("DATABASE").as_deref(), Some("sqlite3://stellar.db"));
        assert_eq!(text("NETWORK_PASSPHRASE").as_deref(), Some("Made Up Network ; 2026"));
        assert_eq!((table["HTTP_PORT"].as_integer(), table["UNSAFE_QUORUM"].as_bool()), (Some(0), Some(true)));
        let get = table["HISTORY"]["sluice0"]["get"].as_str();
        assert_eq!(get, Some("curl -sf https://history.example.org/core_1/{0} -o {1}"));
        assert_eq!(table["VALIDATORS"].as_array().map(Vec::len), Some(1));

        let own = format!(
            "DATABASE = \"sqlite3://own.db\"\nHTTP_PORT = 11626\n{CORE_CONFIG}\n[HISTORY.own]\nget = \"cp /a/{{0}} {{1}}\"\n"
        );
        let settings = CaptiveSettings { archives: Vec::new(), ..self::settings(directory.path(), &own) };
        let table: Table = prepare(&settings).expect("complete by itself").config.parse().expect("TOML");
        assert_eq!(table["DATABASE"].as_str(), Some("sqlite3://own.db"), "what it says itself stays");
        assert_eq!(
            (table["HTTP_PORT"].as_integer(), table["HISTORY"].as_table().map(Table::len)),
            (Some(11626), Some(1))
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = settings(directory.path(), CORE_CONFIG);
        assert!(prepare(&settings).is_ok());
        assert!(!settings.storage.exists(), "a look changes nothing");
        let changed = |change: fn(&mut CaptiveSettings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            refusal(&settings)
        };
        assert!(changed(|settings| settings.start = 0).contains("start_ledger is missing"));
        assert!(changed(|settings| settings.config = None).contains("core_config is missing"));
        assert!(changed(|settings| settings.config = Some("/no/such.cfg".into())).contains("/no/such.cfg"));
        assert!(changed(|settings| settings.archives.clear()).contains("history_archive_urls is missing"));
        assert!(
            changed(|settings| settings.binary = Some("/no/such/core".into())).contains("core_binary /no/such/core")
        );
        assert!(changed(|settings| settings.binary = Some("no-such-core-anywhere".into())).contains("not on the PATH"));
        assert!(changed(|settings| settings.binary = Some("/etc/passwd".into())).contains("is no program"));
        for archive in ["ftp://x", "https://x/$(reboot)", "https://x y", "https://x;y", "https://x'"] {
            let settings = CaptiveSettings { archives: vec![archive.into()], ..settings.clone() };
            assert!(refusal(&settings).contains("no plain http or https URL"), "{archive}");
        }
        let on_path = CaptiveSettings { binary: Some("sh".into()), ..settings };
        assert!(prepare(&on_path).expect("on the PATH").binary.is_absolute());
    }

    #[test]
    fn a_look_tells_everything_at_once_by_its_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = settings(directory.path(), CORE_CONFIG);
        assert!(look(&settings).is_empty());
        let keys = |settings: &CaptiveSettings| look(settings).iter().map(|(key, _)| *key).collect::<Vec<_>>();
        let bad = CaptiveSettings {
            binary: Some("/no/such/core".into()),
            passphrase: Some("Another".into()),
            ..settings.clone()
        };
        assert_eq!(keys(&bad), ["core_binary", "network_passphrase"]);
        assert_eq!(keys(&CaptiveSettings { config: Some("/no/such".into()), ..bad }), ["core_binary", "core_config"]);
        let validator = self::settings(directory.path(), &format!("NODE_IS_VALIDATOR = true\n{CORE_CONFIG}"));
        assert_eq!(keys(&validator), ["core_config"]);
        assert!(!settings.storage.exists(), "a look changes nothing");
    }

    #[test]
    fn the_passphrase_is_read_and_compared() {
        let directory = tempfile::tempdir().expect("a directory");
        let with = |config: &str, asked: Option<&str>| {
            let settings = settings(directory.path(), config);
            prepare(&CaptiveSettings { passphrase: asked.map(String::from), ..settings })
                .map(|prepared| prepared.passphrase)
                .map_err(|error| error.to_string())
        };
        let own = "Made Up Network ; 2026";
        assert_eq!(with(CORE_CONFIG, None).as_deref(), Ok(own));
        assert_eq!(with(CORE_CONFIG, Some(own)).as_deref(), Ok(own));
        let mismatch = with(CORE_CONFIG, Some("Another")).expect_err("another network");
        assert!(mismatch.contains("\"Another\"") && mismatch.contains(own), "{mismatch}");
        assert_eq!(with("", Some("Given")).as_deref(), Ok("Given"), "completed");
        assert!(with("", None).expect_err("none").contains("has no NETWORK_PASSPHRASE"));
        for config in ["NETWORK_PASSPHRASE = 7", "NETWORK_PASSPHRASE = \"\"", "[NETWORK_PASSPHRASE]"] {
            assert!(with(config, None).expect_err(config).contains("is no text"), "{config}");
        }
        assert_eq!(with("NETWORK_PASSPHRASE='a \"quoted\" one' # comment", None).as_deref(), Ok("a \"quoted\" one"));
        assert!(with("NETWORK_PASSPHRASE = ", None).expect_err("no TOML").contains("is no TOML"));
        for line in ["METADATA_OUTPUT_STREAM = \"x\"", "NODE_IS_VALIDATOR = true"] {
            let error = with(&format!("{line}\n{CORE_CONFIG}"), None).expect_err(line);
            assert!(error.contains("is not for a captive core"), "{error}");
        }
        assert!(with(&format!("NODE_IS_VALIDATOR = false\n{CORE_CONFIG}"), None).is_ok());
    }
}
