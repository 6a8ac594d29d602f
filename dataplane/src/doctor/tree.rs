//! Files of `/sys` and `/proc`, of this host or of one that was captured.
//!
//! A capture is a folder that holds what was read, under the same names. So that it is complete by construction, it is
//! written by the reading itself.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::host::{Fact, Unread};

/// Longest file that is read: /proc/interrupts of 512 CPUs and 2,000 interrupts has about 12 MB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The files below one root.
pub struct Tree {
    root: PathBuf,
    /// Names that could not be read when the tree was captured.
    denied: BTreeSet<String>,
    copy: Option<Recording>,
}

/// Where what is read goes, too.
struct Recording {
    to: PathBuf,
    denied: RefCell<BTreeSet<String>>,
    failed: RefCell<Option<String>>,
}

impl Tree {
    /// This host's.
    pub fn live() -> Tree {
        Tree { root: PathBuf::from("/"), denied: BTreeSet::new(), copy: None }
    }

    /// A captured one. `denied`: the names that were not readable there.
    pub fn captured(root: &Path, denied: impl IntoIterator<Item = String>) -> Tree {
        Tree { root: root.to_path_buf(), denied: denied.into_iter().collect(), copy: None }
    }

    /// This host's, and whatever is read is written below `to`.
    pub fn capturing(to: &Path) -> Tree {
        let copy = Recording { to: to.to_path_buf(), denied: RefCell::default(), failed: RefCell::default() };
        Tree { copy: Some(copy), ..Tree::live() }
    }

    /// What a capturing tree was refused.
    ///
    /// # Errors
    /// When a file of the capture could not be written.
    pub fn finish(self) -> Result<Vec<String>, String> {
        let Some(copy) = self.copy else { return Ok(Vec::new()) };
        match copy.failed.into_inner() {
            Some(failed) => Err(failed),
            None => Ok(copy.denied.into_inner().into_iter().collect()),
        }
    }

    /// A file's text without the white space around it.
    pub fn text(&self, name: &str) -> Fact<String> {
        let text = self.read(name)?;
        self.copied(name, |to| std::fs::write(to, &text));
        Ok(text.trim().to_owned())
    }

    /// A file that holds one number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Fact<T> {
        self.text(name)?.parse().map_err(|_| Unread::Garbled)
    }

    /// A file that holds a list of CPUs.
    pub fn cpus(&self, name: &str) -> Fact<Vec<usize>> {
        super::lists::parse(&self.text(name)?).ok_or(Unread::Garbled)
    }

    /// Names in a folder, sorted.
    pub fn list(&self, name: &str) -> Fact<Vec<String>> {
        let entries = std::fs::read_dir(self.path(name)?).map_err(|error| self.refused(name, &error))?;
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        for entry in &names {
            // An empty file stands for an entry, unless it is read, before or later.
            self.copied(&format!("{name}/{entry}"), |to| match to.exists() {
                true => Ok(()),
                false => std::fs::write(to, ""),
            });
        }
        Ok(names)
    }

    /// Whether there is a file or folder of this name.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).is_ok_and(|path| path.exists())
    }

    fn read(&self, name: &str) -> Fact<String> {
        let path = self.path(name)?;
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| self.refused(name, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn path(&self, name: &str) -> Fact<PathBuf> {
        // Names are put together from what an interface or a bus is called, in a captured tree by whoever captured it.
        let plain = name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        if !plain {
            return Err(Unread::Garbled);
        }
        if self.denied.contains(name) {
            return Err(Unread::Denied);
        }
        Ok(self.root.join(name))
    }

    fn refused(&self, name: &str, error: &std::io::Error) -> Unread {
        if error.kind() != std::io::ErrorKind::PermissionDenied {
            return Unread::Absent;
        }
        if let Some(copy) = &self.copy {
            copy.denied.borrow_mut().insert(name.to_owned());
        }
        Unread::Denied
    }

    fn copied(&self, name: &str, write: impl FnOnce(&Path) -> std::io::Result<()>) {
        let Some(copy) = &self.copy else { return };
        let to = copy.to.join(name);
        // An entry that stands as an empty file, and turns out to be a folder that is looked into.
        for folder in to.ancestors().skip(1).take_while(|folder| folder.starts_with(&copy.to)) {
            if folder.is_file() {
                let _ = std::fs::remove_file(folder);
            }
        }
        let done = to.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| write(&to));
        if let Err(error) = done {
            copy.failed.borrow_mut().get_or_insert(format!("{}: {error}", to.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_reads_as_what_was_captured() {
        let (host, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let write = |name: &str, text: &str| {
            let path = host.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("sys/a/state0/latency", "10\n");
        write("sys/a/state1/latency", "x");
        let mut tree = Tree::capturing(to.path());
        tree.root = host.path().to_path_buf();
        let look = |tree: &Tree| {
            let states = tree.list("sys/a");
            let first = tree.number::<u32>("sys/a/state0/latency");
            let second = tree.number::<u32>("sys/a/state1/latency");
            (states, first, second, tree.text("sys/b"), tree.text("sys/../a"))
        };
        let seen = look(&tree);
        let states = vec!["state0".to_owned(), "state1".to_owned()];
        assert_eq!(seen, (Ok(states), Ok(10), Err(Unread::Garbled), Err(Unread::Absent), Err(Unread::Garbled)));
        assert_eq!(tree.finish(), Ok(vec![]));
        assert_eq!(look(&Tree::captured(to.path(), [])), seen);
        let denied = Tree::captured(to.path(), ["sys/a/state0/latency".to_owned()]);
        assert_eq!(denied.number::<u32>("sys/a/state0/latency"), Err(Unread::Denied));
    }
}
