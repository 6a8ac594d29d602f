//! A bucket of an object store. Credentials and endpoints come from the environment, under the names of each store's own tools.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::PlaceError;

/// Objects that are fetched at once: a round trip to a store takes 20 to 100 ms, and one ledger an object would be 10 to 50 a second.
const FETCHES: usize = 16;

type Fetched = Result<Option<Vec<u8>>, Error>;

/// A bucket and a prefix.
pub struct Bucket {
    url: String,
    prefix: String,
    store: Arc<dyn ObjectStore>,
    runtime: Runtime,
    ahead: RefCell<VecDeque<(String, JoinHandle<Fetched>)>>,
}

impl Bucket {
    /// Opens `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.
    pub(super) fn open(url: &str) -> Result<Bucket, PlaceError> {
        let failed = |error: &dyn std::fmt::Display| PlaceError::Store { key: url.into(), message: error.to_string() };
        // The stores' HTTP client takes the process's default. One that is set already (by a program that embeds this) is
        // as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store: Arc<dyn ObjectStore> = match url.split_once("://") {
            Some(("s3", _)) => Arc::new(AmazonS3Builder::from_env().with_url(url).build().map_err(|e| failed(&e))?),
            Some(("gs", _)) => {
                Arc::new(GoogleCloudStorageBuilder::from_env().with_url(url).build().map_err(|e| failed(&e))?)
            }
            _ => Arc::new(MicrosoftAzureBuilder::from_env().with_url(url).build().map_err(|e| failed(&e))?),
        };
        let path = url.split_once("://").map_or("", |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
        Bucket::over(store, url, path).map_err(|error| failed(&error))
    }

    fn over(store: Arc<dyn ObjectStore>, url: &str, prefix: &str) -> std::io::Result<Bucket> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (url, prefix) = (url.trim_end_matches('/').into(), prefix.trim_matches('/').into());
        Ok(Bucket { url, prefix, store, runtime, ahead: RefCell::default() })
    }

    pub(super) fn name(&self, key: &str) -> String {
        format!("{}/{key}", self.url)
    }

    fn path(&self, key: &str) -> Path {
        match self.prefix.as_str() {
            "" => Path::from(key),
            prefix => Path::from(format!("{prefix}/{key}")),
        }
    }

    fn failed(&self, key: &str) -> impl FnOnce(Error) -> PlaceError {
        let key = self.name(key);
        move |error| PlaceError::Store { key, message: error.to_string() }
    }

    pub(super) fn list(&self) -> Result<Vec<String>, PlaceError> {
        let root = (!self.prefix.is_empty()).then(|| Path::from(self.prefix.as_str()));
        let mut keys = Vec::new();
        let mut take = |objects: Vec<object_store::ObjectMeta>| {
            let cut = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
            keys.extend(objects.iter().filter_map(|object| object.location.as_ref().get(cut..)).map(String::from));
        };
        let list = |prefix: Option<&Path>| self.runtime.block_on(self.store.list_with_delimiter(prefix));
        let top = list(root.as_ref()).map_err(self.failed(""))?;
        take(top.objects);
        for partition in top.common_prefixes {
            let inside = list(Some(&partition)).map_err(self.failed(partition.as_ref()))?;
            take(inside.objects);
        }
        Ok(keys)
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Vec<u8>>, PlaceError> {
        let ahead = {
            let mut ahead = self.ahead.borrow_mut();
            let at = ahead.iter().position(|(of, _)| of == key);
            at.and_then(|at| ahead.remove(at))
        };
        let fetched = match ahead {
            Some((_, task)) => {
                self.runtime.block_on(task).unwrap_or_else(|error| Err(Error::JoinError { source: error }))
            }
            None => self.runtime.block_on(fetch(self.store.clone(), self.path(key))),
        };
        fetched.map_err(self.failed(key))
    }

    pub(super) fn fetch_ahead(&self, keys: &[String]) {
        let mut ahead = self.ahead.borrow_mut();
        // What is not wanted any more (another suffix) leaves its place.
        ahead.retain(|(of, _)| keys.contains(of));
        for key in keys {
            if ahead.len() >= FETCHES {
                return;
            }
            if !ahead.iter().any(|(of, _)| of == key) {
                let task = self.runtime.spawn(fetch(self.store.clone(), self.path(key)));
                ahead.push_back((key.clone(), task));
            }
        }
    }

    pub(super) fn put(&self, key: &str, bytes: Vec<u8>) -> Result<(), PlaceError> {
        let path = self.path(key);
        let put = self.store.put(&path, bytes.into());
        self.runtime.block_on(put).map(drop).map_err(self.failed(key))
    }
}

async fn fetch(store: Arc<dyn ObjectStore>, path: Path) -> Fetched {
    match store.get(&path).await {
        Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each store's client is made here, with its cryptography; where that is not chosen, the making panics.
    #[test]
    fn a_bucket_is_opened_without_a_word_to_it() {
        let bucket = Bucket::open("s3://bucket/some/prefix").expect("opened");
        assert_eq!(bucket.name("key"), "s3://bucket/some/prefix/key");
    }

    #[test]
    fn objects_come_back_from_a_store_under_a_prefix() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let bucket = Bucket::over(store.clone(), "s3://b/some/prefix/", "some/prefix/").expect("a runtime");
        bucket.put("FFFFFFFF--0-15/FFFFFFFD--2.xdr.zst", b"two".to_vec()).expect("put");
        bucket.put(".config.json", b"{}".to_vec()).expect("put");
        let mut keys = bucket.list().expect("listed");
        keys.sort();
        assert_eq!(keys, [".config.json", "FFFFFFFF--0-15/FFFFFFFD--2.xdr.zst"]);
        bucket.fetch_ahead(&keys);
        assert_eq!(bucket.get(&keys[1]).expect("read").as_deref(), Some(&b"two"[..]));
        assert_eq!(bucket.get("nothing").expect("read"), None);
        assert_eq!(bucket.name(&keys[0]), "s3://b/some/prefix/.config.json");
        let all = Bucket::over(store, "s3://b", "").expect("a runtime");
        assert!(all.get("some/prefix/.config.json").expect("read").is_some());
    }
}
