//! The directories in which a running appliance makes files: which keys name them, whether they can be made, and who may write
//! there. `check` looks at them, and `run` makes them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::config::{Config, Finding, LedgerSource};
use crate::sys::file;
use crate::sys::privilege::{self, Identity, Rights};

/// A directory, and the key that names it.
pub struct Place {
    /// The key, as in a finding.
    pub key: String,
    /// The directory.
    pub directory: PathBuf,
    /// What is made in it before the start, or else the directory itself.
    deepest: PathBuf,
    /// The ring's file: its folder is never made.
    ring: Option<PathBuf>,
}

impl Place {
    fn new(key: impl Into<String>, directory: &Path) -> Place {
        Place { key: key.into(), directory: directory.into(), deepest: directory.into(), ring: None }
    }

    fn of_ring(key: String, ring: &Path) -> Option<Place> {
        let folder = match ring.parent()? {
            empty if empty.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        };
        (!ring.as_os_str().is_empty()).then(|| Place { ring: Some(ring.into()), ..Place::new(key, folder) })
    }
}

/// Directories that are made where they are missing.
pub fn made(config: &Config) -> Vec<Place> {
    let stores = config.stores.iter().map(|store| Place::new(format!("store \"{}\": path", store.name), &store.path));
    let mut places: Vec<Place> = stores.collect();
    places.extend(config.report.dir.as_deref().map(|directory| Place::new("report: dir", directory)));
    if let Some(serve) = &config.ledger.serve {
        let deepest = serve.segments_dir();
        places.push(Place { deepest, ..Place::new("ledger.serve: data_dir", &serve.data_dir) });
        if serve.source == LedgerSource::Captive {
            places.push(Place::new("ledger.serve: storage_dir", &serve.storage_dir()));
        }
    }
    places.retain(|place| !place.directory.as_os_str().is_empty());
    places
}

/// Those, and where rings are made.
pub fn written(config: &Config) -> Vec<Place> {
    let published = config
        .feeds
        .iter()
        .filter_map(|feed| Place::of_ring(format!("feed \"{}\": publish", feed.name), feed.publish.as_deref()?));
    let mirrored = config
        .ring
        .mirrors
        .iter()
        .filter_map(|mirror| Place::of_ring(format!("ring.mirror \"{}\": ring", mirror.name), &mirror.ring));
    made(config).into_iter().chain(published).chain(mirrored).collect()
}

/// What of the places run would refuse.
#[derive(Default)]
pub struct Refused {
    /// They cannot be there, whoever asks.
    pub impossible: Vec<Finding>,
    /// Whoever writes them may not.
    pub denied: Vec<Finding>,
    /// The file system of this host is too small for what is asked of it.
    pub too_small: Vec<Finding>,
}

/// Looks at every place for who is to write it: `user`, or else whoever this process is.
pub fn look(config: &Config, user: Option<&Identity>) -> Refused {
    let writer = Writer::of(user);
    let mut refused = Refused::default();
    for place in written(config) {
        match nearest(&place) {
            Err(what) => refused.impossible.push(Finding { key: place.key, what }),
            Ok(nearest) => {
                refused.too_small.extend(too_small(config, &place, &nearest));
                let denied = writer.denied(&place, &nearest);
                refused.denied.extend(denied.map(|what| Finding { key: place.key, what }));
            }
        }
    }
    refused
}

/// A store that is to leave more free than its file system has.
fn too_small(config: &Config, place: &Place, nearest: &Path) -> Option<Finding> {
    let store = config.stores.iter().find(|store| store.path == place.directory)?;
    let total = file::space(nearest).ok()?.total_bytes;
    (store.free_min.0 > total).then(|| Finding {
        key: format!("store \"{}\": free_min", store.name),
        what: format!(
            "is {} bytes, but the file system of \"{}\" has {total} in all: no deletion can reach that; lower it",
            store.free_min.0,
            nearest.display()
        ),
    })
}

/// The nearest directory that is there, from the place upwards.
fn nearest(place: &Place) -> Result<PathBuf, String> {
    if let Some(ring) = place.ring.as_deref().filter(|_| !place.directory.is_dir()) {
        let (ring, folder) = (ring.display(), place.directory.display());
        return Err(format!("is \"{ring}\", but \"{folder}\" is no directory of this host: make it before the start"));
    }
    let whole = std::path::absolute(&place.deepest).unwrap_or_else(|_| place.deepest.clone());
    let shown = place.directory.display();
    for at in whole.ancestors() {
        let other = match fs::metadata(at) {
            Ok(metadata) if metadata.is_dir() => return Ok(at.into()),
            Ok(_) if *at == *place.directory => {
                return Err(format!("is \"{shown}\", which is no directory: name one, or what can be made one"));
            }
            Ok(_) => "is no directory".to_string(),
            // Below a file; whoever may not look there may not write there either, which the directory above tells.
            Err(error) if matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::PermissionDenied) => continue,
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(at).is_err() => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => "is a link that leads nowhere".into(),
            Err(error) => error.to_string(),
        };
        return Err(format!("is \"{shown}\", but \"{}\" {other}: name a path that can be made", at.display()));
    }
    Err(format!("is \"{shown}\", and no directory above it can be read"))
}

/// Who is to write.
enum Writer {
    /// This process as it is.
    Own,
    /// Another, or this one when it has given up its capabilities: judged by owner and mode.
    Judged(String, Rights),
}

impl Writer {
    fn of(user: Option<&Identity>) -> Writer {
        match user {
            Some(user) if !privilege::is(user) => Writer::Judged(user.name.clone(), Rights::of(user)),
            // Root keeps no capability that would open what is another's.
            _ if privilege::is_root() => Writer::Judged("root".into(), Rights::own()),
            _ => Writer::Own,
        }
    }

    /// What is denied, if something is. A missing directory is made with the rights of the start, and is then the writer's.
    fn denied(&self, place: &Place, nearest: &Path) -> Option<String> {
        let there = nearest.starts_with(std::path::absolute(&place.directory).ok()?);
        match self {
            Writer::Judged(name, rights) if there => {
                let (owner, mode) = rights.may_write(&place.directory).err()?;
                Some(words(&place.directory, name, owner, mode))
            }
            // Who starts it is not known.
            Writer::Judged(..) if !privilege::is_root() => None,
            _ => {
                let (owner, mode) = privilege::may_write(nearest).err()?;
                Some(words(nearest, &privilege::own().0.to_string(), owner, mode))
            }
        }
    }
}

/// What is said of a directory that a user may not write.
pub fn words(directory: &Path, user: &str, owner: u32, mode: u32) -> String {
    format!(
        "{}: user {user} may not make files in it (it is user {owner}'s, mode {mode:o}), and no capability is kept to do it all the same: chown {user} it, or run as user {owner} (process.user)",
        directory.display()
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config;

    fn stores(folder: &Path, paths: &[&str]) -> Config {
        let cores = (0..paths.len()).map(|at| format!("[[core]]\nname = \"c{at}\"\ncpu = {at}\n"));
        let store = |(at, path): (usize, &&str)| {
            let path = folder.join(path);
            format!("[[store]]\nname = \"s{at}\"\ncore = \"c{at}\"\npath = \"{}\"\n", path.display())
        };
        let stores = paths.iter().enumerate().map(store);
        config::parse(&cores.chain(stores).collect::<String>()).expect("parses")
    }

    #[test]
    fn a_path_that_can_never_be_made_is_told_with_what_is_in_its_way() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "").expect("writes");
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).expect("links");
        let paths = ["new/deep", "file", "file/below/it", "link", "link/below", "."];
        let refused = look(&stores(folder.path(), &paths), None).impossible;
        let here = folder.path().display().to_string();
        let told: Vec<String> = refused.iter().map(|finding| finding.to_string().replace(&here, "DIR")).collect();
        assert_eq!(
            told,
            [
                "config store \"s1\": path: is \"DIR/file\", which is no directory: name one, or what can be made one",
                "config store \"s2\": path: is \"DIR/file/below/it\", but \"DIR/file\" is no directory: name a path that can be made",
                "config store \"s3\": path: is \"DIR/link\", but \"DIR/link\" is a link that leads nowhere: name a path that can be made",
                "config store \"s4\": path: is \"DIR/link/below\", but \"DIR/link\" is a link that leads nowhere: name a path that can be made",
            ]
        );
    }

    #[test]
    fn a_store_that_is_to_leave_more_free_than_there_is_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = stores(folder.path(), &["new", "other"]);
        config.stores[0].free_min.0 = 1 << 60;
        config.stores[1].free_min.0 = 1;
        let told = look(&config, None).too_small;
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].key, "store \"s0\": free_min");
        assert!(told[0].what.contains("in all: no deletion can reach that; lower it"), "{told:?}");
    }

    #[test]
    fn what_the_user_to_be_may_not_write_is_told_with_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let user = privilege::identity("nobody", None).expect("every host has it");
        std::fs::create_dir(folder.path().join("closed")).expect("makes");
        std::fs::create_dir(folder.path().join("open")).expect("makes");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("sets");
        std::fs::set_permissions(folder.path().join("open"), std::fs::Permissions::from_mode(0o777)).expect("sets");
        let config = stores(folder.path(), &["closed", "open", "new"]);
        let refused = look(&config, Some(&user)).denied;
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(refused[0].key, "store \"s0\": path");
        assert!(refused[0].what.contains("closed: user nobody may not make files in it (it is user "), "{refused:?}");
        // And a directory that it may not even enter.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).expect("sets");
        assert_eq!(look(&stores(folder.path(), &["open"]), Some(&user)).denied.len(), 1);
    }

    #[test]
    fn the_directories_of_a_captive_node_are_among_those_that_are_made() {
        let text =
            "[ledger.serve]\ncore = \"c\"\nsource = \"captive\"\ndata_dir = \"/d\"\nstorage_dir = \"/elsewhere\"\n";
        let config = config::parse(text).expect("parses");
        let made: Vec<PathBuf> = made(&config).into_iter().map(|place| place.directory).collect();
        assert_eq!(made, [PathBuf::from("/d"), "/elsewhere".into()]);
    }
}
