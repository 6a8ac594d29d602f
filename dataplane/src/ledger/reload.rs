//! What is taken anew when the operator asks for it (SIGHUP): the certificate with its key, the tokens, and how much is kept.
//!
//! The control thread holds a [`Reload`]; a fan-out has clones of what is in it, and sees the new ones at the next connection it
//! accepts, for the price of one load.

use std::path::Path;

use super::retention::Bounds;
#[cfg(feature = "ledger-tls")]
use super::tls::{TlsLoadError, TlsServer};
use super::tokens::{Tokens, TokensError};
use crate::config::LedgerServe;
use crate::sync::latest::Latest;
use crate::sys::file::open_to_all;

/// Why it cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The tokens.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The certificate or its key.
    #[cfg(feature = "ledger-tls")]
    #[error(transparent)]
    Tls(#[from] TlsLoadError),
    /// A build without TLS.
    #[error(
        "cert is given, but this build has no TLS: build it with the feature ledger-tls, or leave cert and key out"
    )]
    NoTls,
}

impl ReloadError {
    /// The key of the configuration that it is about.
    pub fn key(&self) -> &'static str {
        match self {
            ReloadError::Tokens(_) => "tokens",
            #[cfg(feature = "ledger-tls")]
            ReloadError::Tls(TlsLoadError::Key { .. } | TlsLoadError::Read { what: "key", .. }) => "key",
            #[cfg(feature = "ledger-tls")]
            ReloadError::Tls(_) => "cert",
            ReloadError::NoTls => "cert",
        }
    }
}

/// What can be read again. Cheap to clone: clones are handles on the same.
#[derive(Clone, Default)]
pub struct Reload {
    /// The certificate with its key; none: plain connections.
    #[cfg(feature = "ledger-tls")]
    pub tls: Option<TlsServer>,
    /// The tokens; none: everybody may subscribe.
    pub tokens: Option<Tokens>,
    /// How much is kept; none before the directory is open.
    pub bounds: Option<Latest<Bounds>>,
}

impl Reload {
    /// Reads what the configuration names.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn load(serve: &LedgerServe) -> Result<Reload, Vec<ReloadError>> {
        let mut reload = Reload::default();
        let mut errors = Vec::new();
        if let (Some(cert), Some(key)) = (&serve.cert, &serve.key) {
            #[cfg(feature = "ledger-tls")]
            match TlsServer::load(cert, key) {
                Ok(tls) => reload.tls = Some(tls),
                Err(error) => errors.push(error.into()),
            }
            #[cfg(not(feature = "ledger-tls"))]
            {
                let _ = (cert, key);
                errors.push(ReloadError::NoTls);
            }
        }
        match serve.tokens.as_deref().map(Tokens::load) {
            Some(Ok(tokens)) => reload.tokens = Some(tokens),
            Some(Err(error)) => errors.push(error.into()),
            None => {}
        }
        if errors.is_empty() { Ok(reload) } else { Err(errors) }
    }

    /// Other bounds of what is kept: they hold from the archive's next turn on.
    pub fn set_bounds(&self, bounds: Bounds) {
        if let Some(place) = &self.bounds {
            place.set(bounds);
        }
    }

    /// Reads everything again, and logs what came of it. What cannot be read stays as it was.
    pub fn reload(&self) {
        #[cfg(feature = "ledger-tls")]
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!(cert = %tls.cert().display(), "certificate read again, for new connections"),
                Err(error) => tracing::error!("{error}; the certificate so far stays"),
            }
        }
        if let Some(tokens) = &self.tokens {
            match tokens.reload() {
                Ok(count) => {
                    tracing::info!(tokens = %tokens.path().display(), count, "tokens read again, for new connections");
                }
                Err(error) => tracing::error!("{error}; the tokens so far stay good"),
            }
        }
        self.warn();
    }

    /// Logs what is wrong but no reason to refuse: secrets that every user of the host may read or write.
    pub fn warn(&self) {
        for warning in self.warnings() {
            tracing::warn!("{warning}");
        }
    }

    fn warnings(&self) -> Vec<String> {
        #[cfg(feature = "ledger-tls")]
        let key = self.tls.as_ref().map(TlsServer::key);
        #[cfg(not(feature = "ledger-tls"))]
        let key: Option<&Path> = None;
        let tokens = self.tokens.as_ref().map(Tokens::path);
        let secrets = [("key", key), ("tokens", tokens)];
        let told = |(what, path): (&str, Option<&Path>)| Some(format!("{what} {}", open_secret(path?)?));
        secrets.into_iter().filter_map(told).collect()
    }
}

/// A word of warning about a secret's file that every user of the host may read or write.
pub(super) fn open_secret(path: &Path) -> Option<String> {
    let mode = open_to_all(path)?;
    let path = path.display();
    Some(format!("\"{path}\": has mode {mode:03o}: every user of this host may use it; chmod 600 \"{path}\""))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn everything_that_is_wrong_is_told_by_its_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| Some(folder.path().join(name));
        let serve = LedgerServe { cert: at("cert"), key: at("key"), tokens: at("tokens"), ..LedgerServe::new("c") };
        let errors = Reload::load(&serve).err().expect("refused");
        assert_eq!(errors.iter().map(ReloadError::key).collect::<Vec<_>>(), ["cert", "tokens"]);
        let Ok(reload) = Reload::load(&LedgerServe::new("c")) else { panic!("there is nothing to read") };
        assert!(reload.tokens.is_none());
        reload.reload();
    }

    #[test]
    fn a_secret_that_is_open_to_all_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, "0123456789abcdef").expect("writes");
        let serve = LedgerServe { tokens: Some(path.clone()), ..LedgerServe::new("c") };
        let Ok(reload) = Reload::load(&serve) else { panic!("loads") };
        for (mode, told) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("sets");
            let warnings = reload.warnings();
            assert_eq!(warnings.len(), usize::from(told), "{mode:o}: {warnings:?}");
        }
        let warning = reload.warnings().remove(0).replace(&path.display().to_string(), "FILE");
        assert_eq!(warning, "tokens \"FILE\": has mode 602: every user of this host may use it; chmod 600 \"FILE\"");
    }

    #[test]
    fn what_is_read_again_holds_for_whoever_has_a_handle() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens");
        std::fs::write(&path, "0123456789abcdef").expect("writes");
        let serve = LedgerServe { tokens: Some(path.clone()), ..LedgerServe::new("c") };
        let Ok(reload) = Reload::load(&serve) else { panic!("loads") };
        let mut fan_out = reload.clone().tokens.expect("tokens");
        std::fs::write(&path, "fedcba9876543210").expect("writes");
        assert!(fan_out.authorized(None, Some("0123456789abcdef")));
        reload.reload();
        assert!(!fan_out.authorized(None, Some("0123456789abcdef")));
        assert!(fan_out.authorized(None, Some("fedcba9876543210")));
    }
}
