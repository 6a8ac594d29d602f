//! Where exports go and imports come from: a directory, or a bucket of an object store. Objects are read and written whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[cfg(feature = "object-store")]
mod bucket;

/// How deep a directory is searched for objects: a partition, and the objects in it.
const DEPTH: usize = 2;
/// URLs of object stores.
const SCHEMES: [&str; 3] = ["s3://", "gs://", "az://"];

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// An object store without the feature.
    #[error("{0}: this build knows no object stores: build it with --features object-store")]
    NoBuckets(String),
    /// A URL of another kind.
    #[error("{0}: a directory, file://, s3://, gs:// or az:// is a place")]
    Url(String),
    /// A file or directory.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An object store's answer.
    #[error("{key}: {message}")]
    Store {
        /// The object.
        key: String,
        /// The answer.
        message: String,
    },
}

/// A place.
pub enum Place {
    /// A directory, or a single file.
    Directory(PathBuf),
    /// A bucket and a prefix in it.
    #[cfg(feature = "object-store")]
    Bucket(bucket::Bucket),
}

impl Place {
    /// The place that a path or URL names. Opens no connection.
    ///
    /// # Errors
    /// See [`PlaceError`].
    pub fn parse(text: &str) -> Result<Place, PlaceError> {
        if let Some(path) = text.strip_prefix("file://") {
            return match path.starts_with('/') {
                true => Ok(Place::Directory(path.into())),
                false => Err(PlaceError::Url(text.into())),
            };
        }
        if SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Place::bucket(text);
        }
        match text.split_once("://") {
            Some(_) => Err(PlaceError::Url(text.into())),
            None => Ok(Place::Directory(text.into())),
        }
    }

    #[cfg(feature = "object-store")]
    fn bucket(url: &str) -> Result<Place, PlaceError> {
        Ok(Place::Bucket(bucket::Bucket::open(url)?))
    }

    #[cfg(not(feature = "object-store"))]
    fn bucket(url: &str) -> Result<Place, PlaceError> {
        Err(PlaceError::NoBuckets(url.into()))
    }

    /// The directory, where it is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Place::Directory(path) => Some(path),
            #[cfg(feature = "object-store")]
            Place::Bucket(_) => None,
        }
    }

    /// The keys of all objects, with `/` between their parts, in no order.
    ///
    /// # Errors
    /// The directory's or the store's.
    pub fn list(&self) -> Result<Vec<String>, PlaceError> {
        match self {
            Place::Directory(path) => {
                let mut keys = Vec::new();
                walk(path, "", DEPTH, &mut keys)?;
                Ok(keys)
            }
            #[cfg(feature = "object-store")]
            Place::Bucket(bucket) => bucket.list(),
        }
    }

    /// An object's bytes; `None` where there is none of that key.
    ///
    /// # Errors
    /// The file's or the store's.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        match self {
            Place::Directory(path) => {
                let path = path.join(key);
                match fs::read(&path) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(source) => Err(PlaceError::Io { path, source }),
                }
            }
            #[cfg(feature = "object-store")]
            Place::Bucket(bucket) => bucket.get(key),
        }
    }

    /// Says which objects will be asked for next, in order: a store fetches some of them meanwhile.
    pub fn fetch_ahead(&self, _keys: &[String]) {
        #[cfg(feature = "object-store")]
        if let Place::Bucket(bucket) = self {
            bucket.fetch_ahead(_keys);
        }
    }

    /// Writes an object, whole or not at all; one that is there is replaced. In a directory it is on the disk before it has its name.
    ///
    /// # Errors
    /// The file's or the store's.
    pub fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), PlaceError> {
        match self {
            Place::Directory(path) => {
                let path = path.join(key);
                put(&path, &bytes).map_err(|source| PlaceError::Io { path, source })
            }
            #[cfg(feature = "object-store")]
            Place::Bucket(bucket) => bucket.put(key, bytes),
        }
    }

    /// Makes the names of all that was written durable.
    ///
    /// # Errors
    /// The directory's.
    pub fn sync(&self) -> Result<(), PlaceError> {
        let Some(path) = self.directory() else { return Ok(()) };
        let failed = |source| PlaceError::Io { path: path.into(), source };
        for entry in fs::read_dir(path).map_err(failed)? {
            let inside = entry.map_err(failed)?.path();
            if inside.is_dir() {
                File::open(&inside).and_then(|directory| directory.sync_all()).map_err(failed)?;
            }
        }
        File::open(path).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// What it is called, for messages.
    pub fn name(&self, key: &str) -> String {
        match self {
            Place::Directory(path) => path.join(key).display().to_string(),
            #[cfg(feature = "object-store")]
            Place::Bucket(bucket) => bucket.name(key),
        }
    }
}

fn walk(directory: &Path, prefix: &str, depth: usize, keys: &mut Vec<String>) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Io { path: directory.into(), source };
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let key = format!("{prefix}{name}");
        if !entry.path().is_dir() {
            keys.push(key);
        } else if depth > 1 {
            walk(&entry.path(), &format!("{key}/"), depth - 1, keys)?;
        }
    }
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".tmp");
    let mut file = File::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_objects_under_their_keys() {
        let path = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", path.path().display());
        let place = Place::parse(&url).expect("a place");
        place.put("a/b.xdr.zst", b"one".to_vec()).expect("written");
        place.put("a/b.xdr.zst", b"two".to_vec()).expect("replaced");
        place.put("c", b"three".to_vec()).expect("written");
        let mut keys = place.list().expect("listed");
        keys.sort();
        assert_eq!(keys, ["a/b.xdr.zst", "c"]);
        assert_eq!(place.get("a/b.xdr.zst").expect("read").as_deref(), Some(&b"two"[..]));
        assert_eq!(place.get("x").expect("read"), None);
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in ["http://x", "file://relative", "ftp://x/y"] {
            assert!(matches!(Place::parse(text), Err(PlaceError::Url(_))), "{text}");
        }
        #[cfg(not(feature = "object-store"))]
        for text in ["s3://bucket/prefix", "gs://bucket", "az://container"] {
            let error = Place::parse(text).err().expect("refused").to_string();
            assert!(error.contains("--features object-store"), "{error}");
        }
    }
}
