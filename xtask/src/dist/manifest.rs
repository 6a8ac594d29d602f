//! `[package.metadata.deb]` of dataplane/Cargo.toml: what is packed, and what the package says of itself.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::shell;

/// The package's description of itself.
pub struct Metadata {
    /// The version of the workspace, without the Debian revision.
    pub version: String,
    /// One line.
    pub description: String,
    /// The table.
    pub deb: Deb,
    /// The folder that the table's paths begin at.
    folder: PathBuf,
}

/// The table, key by key as cargo-deb names them.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Deb {
    /// Name and address.
    pub maintainer: String,
    /// Debian's archive section.
    pub section: String,
    /// Debian's priority.
    pub priority: String,
    /// Lines after the first one of Description.
    pub extended_description: String,
    /// What is needed beside the libraries, which dpkg-shlibdeps finds.
    pub depends: String,
    /// Wanted unless told otherwise.
    pub recommends: String,
    /// Useful with it.
    pub suggests: String,
    /// Files that an operator's change of is kept.
    pub conf_files: Vec<String>,
    /// The folder of postinst, prerm, postrm.
    pub maintainer_scripts: String,
    /// Source (a `*` may stand in its file name), destination (a folder if it ends with a slash), mode.
    assets: Vec<(String, String, String)>,
}

/// One file to pack.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    /// Where it is.
    pub source: PathBuf,
    /// Where it goes, below the root.
    pub dest: String,
    /// Its permissions.
    pub mode: u32,
}

#[derive(Deserialize)]
struct Manifest {
    package: Package,
}

#[derive(Deserialize)]
struct Package {
    description: String,
    metadata: Tables,
}

#[derive(Deserialize)]
struct Tables {
    deb: Deb,
}

impl Metadata {
    /// Reads the table.
    pub fn read() -> Result<Metadata, String> {
        let folder = shell::root().join("dataplane");
        let path = folder.join("Cargo.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let manifest: Manifest = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let Package { description, metadata } = manifest.package;
        // The workspace has one version, and this program has it.
        Ok(Metadata { version: env!("CARGO_PKG_VERSION").into(), description, deb: metadata.deb, folder })
    }

    /// Every file of the table, stars replaced.
    pub fn assets(&self) -> Result<Vec<Asset>, String> {
        let mut assets = Vec::new();
        for (source, dest, mode) in &self.deb.assets {
            let mode = u32::from_str_radix(mode, 8).map_err(|_| format!("asset \"{source}\": mode \"{mode}\""))?;
            for source in expand(&self.folder.join(source))? {
                let name = source.file_name().unwrap_or_default().to_string_lossy();
                let dest = if dest.ends_with('/') { format!("{dest}{name}") } else { dest.clone() };
                assets.push(Asset { source, dest, mode });
            }
        }
        Ok(assets)
    }

    /// A maintainer script's path.
    pub fn script(&self, name: &str) -> PathBuf {
        self.folder.join(&self.deb.maintainer_scripts).join(name)
    }
}

/// The files that a path with at most one `*` in its file name means, sorted. There must be one.
fn expand(path: &Path) -> Result<Vec<PathBuf>, String> {
    let pattern = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().unwrap_or(path);
    let mut names = shell::file_names(folder)?;
    names.retain(|name| matches(&pattern, name));
    names.sort();
    if names.is_empty() {
        return Err(format!("assets: there is no {}: correct dataplane/Cargo.toml", path.display()));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((begin, end)) => name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything_once() {
        for (pattern, name, is) in [
            ("*.service", "sluice.service", true),
            ("*.service", "sluice.service.d", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("sluice.conf", "sluice.conf", true),
            ("sluice.conf", "other.conf", false),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn every_asset_is_there_and_goes_below_the_root() {
        let metadata = Metadata::read().expect("the table");
        let assets = metadata.assets().expect("the files");
        let dest = |asset: &Asset| asset.dest.clone();
        let dests: Vec<String> = assets.iter().map(dest).collect();
        for wanted in [
            "usr/lib/systemd/system/sluice.service",
            "usr/sbin/sluice-tune",
            "usr/share/sluice/config/first-start.toml",
            "usr/share/sluice/sluice.service.d/20-ring.conf.example",
            "etc/sluice/default.toml",
        ] {
            assert!(dests.iter().any(|dest| dest == wanted), "{wanted} is not in {dests:#?}");
        }
        assert!(dests.iter().all(|dest| !dest.starts_with('/') && !dest.contains("..")));
        for file in &metadata.deb.conf_files {
            assert!(dests.iter().any(|dest| format!("/{dest}") == *file), "{file} is no asset");
        }
        for name in ["postinst", "prerm", "postrm"] {
            assert!(metadata.script(name).is_file(), "{name}");
        }
    }
}
