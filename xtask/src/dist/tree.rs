//! The tree that is packed: files put where they go, with the permissions that they have there whatever the umask is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::shell;

/// A folder that stands for the root of a file system.
pub struct Tree {
    root: PathBuf,
}

fn told(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

impl Tree {
    /// An empty one.
    pub fn new(root: PathBuf) -> Result<Tree, String> {
        shell::empty_folder(&root)?;
        Ok(Tree { root })
    }

    /// Its own path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where `inside` is for this process.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// Copies a file.
    pub fn put(&self, source: &Path, inside: &str, mode: u32) -> Result<(), String> {
        let bytes = std::fs::read(source).map_err(told(source))?;
        self.write_bytes(inside, &bytes, mode)
    }

    /// Writes a text.
    pub fn write(&self, inside: &str, text: &str, mode: u32) -> Result<(), String> {
        self.write_bytes(inside, text.as_bytes(), mode)
    }

    fn write_bytes(&self, inside: &str, bytes: &[u8], mode: u32) -> Result<(), String> {
        let path = self.path(inside);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(told(folder))?;
        }
        std::fs::write(&path, bytes).map_err(told(&path))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).map_err(told(&path))
    }

    /// Makes a symbolic link.
    pub fn link(&self, target: &str, inside: &str) -> Result<(), String> {
        let path = self.path(inside);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(told(folder))?;
        }
        std::os::unix::fs::symlink(target, &path).map_err(told(&path))
    }

    /// Compresses a file in its place, without name and time.
    pub fn compress(&self, inside: &str) -> Result<(), String> {
        let path = self.path(inside);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).map_err(told(&path))?;
        shell::output(shell::command("gzip").args(["-9n"]).arg(path)).map(drop)
    }

    /// Compresses every manual page, as man(1) expects them on Debian.
    pub fn compress_manual(&self) -> Result<(), String> {
        for section in ["man1", "man8"] {
            let folder = format!("usr/share/man/{section}");
            for name in shell::file_names(&self.path(&folder))? {
                self.compress(&format!("{folder}/{name}"))?;
            }
        }
        Ok(())
    }

    /// Every file as (path inside, bytes), sorted, symbolic links left out; the folders get their permissions on the way.
    pub fn files(&self) -> Result<Vec<(String, u64)>, String> {
        let mut files = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).map_err(told(&folder))?;
            for entry in std::fs::read_dir(&folder).map_err(told(&folder))? {
                let path = entry.map_err(told(&folder))?.path();
                let inside = path.strip_prefix(&self.root).unwrap_or(&path).to_string_lossy().into_owned();
                if path.is_symlink() {
                    continue;
                }
                match path.is_dir() {
                    true => folders.push(path),
                    false => files.push((inside, path.metadata().map_err(told(&path))?.len())),
                }
            }
        }
        files.sort();
        Ok(files)
    }
}
