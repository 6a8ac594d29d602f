//! The Debian package: control files beside the tree, then dpkg-deb.

use std::path::{Path, PathBuf};

use super::Recipe;
use super::manifest::Metadata;
use super::tree::Tree;
use crate::shell;

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Packs `tree` into `out` and returns the package's path.
pub fn pack(recipe: &Recipe, metadata: &Metadata, tree: &Tree, out: &Path, epoch: u64) -> Result<PathBuf, String> {
    let architecture = shell::output(shell::command("dpkg").arg("--print-architecture"))?;
    let files = tree.files()?;
    let libraries = libraries(&tree.path("usr/bin/sluice"), out)?;
    let control = control(recipe, metadata, architecture.trim(), &libraries, installed_kib(&files));
    let names: Vec<&str> =
        files.iter().map(|(name, _)| name.as_str()).filter(|name| !is_conf(metadata, name)).collect();
    let sums = shell::output(shell::command("md5sum").current_dir(tree.root()).arg("--").args(names))?;
    tree.write("DEBIAN/control", &control, 0o644)?;
    tree.write("DEBIAN/md5sums", &sums, 0o644)?;
    tree.write("DEBIAN/conffiles", &format!("{}\n", metadata.deb.conf_files.join("\n")), 0o644)?;
    for script in SCRIPTS {
        tree.put(&metadata.script(script), &format!("DEBIAN/{script}"), 0o755)?;
    }
    // For the permissions of the folder that was added.
    tree.files()?;
    let package = out.join(format!("sluice_{}-{}_{}.deb", metadata.version, recipe.revision, architecture.trim()));
    let mut dpkg = shell::command("dpkg-deb");
    // Another number of threads would give other bytes.
    dpkg.args(["--root-owner-group", "--threads-max=1"]);
    dpkg.args(if recipe.quick { ["-Zgzip", "-z1"] } else { ["-Zxz", "-z6"] });
    dpkg.arg("--build").arg(tree.root()).arg(&package).env("SOURCE_DATE_EPOCH", epoch.to_string());
    shell::run(&mut dpkg)?;
    Ok(package)
}

fn is_conf(metadata: &Metadata, name: &str) -> bool {
    metadata.deb.conf_files.iter().any(|file| file.trim_start_matches('/') == name)
}

/// The libraries' packages and the versions that the binary's symbols need.
fn libraries(binary: &Path, out: &Path) -> Result<String, String> {
    if shell::find("dpkg-shlibdeps").is_none() {
        return Err("there is no dpkg-shlibdeps, which finds the package's dependencies: install dpkg-dev".into());
    }
    // It wants to be started in a source package.
    let source = out.join("source");
    shell::write(
        &source.join("debian/control"),
        "Source: sluice\n\nPackage: sluice\nArchitecture: any\nDescription: sluice\n",
    )?;
    let found = shell::output(shell::command("dpkg-shlibdeps").current_dir(&source).arg("-O").arg(binary));
    shell::remove_folder(&source)?;
    let found = found?;
    found
        .lines()
        .find_map(|line| line.strip_prefix("shlibs:Depends="))
        .map(str::to_string)
        .ok_or_else(|| format!("dpkg-shlibdeps told no dependencies: \"{found}\""))
}

/// Disk space as Debian counts it: each file in whole KiB, and one for each file's place.
fn installed_kib(files: &[(String, u64)]) -> u64 {
    files.iter().map(|(_, bytes)| bytes.div_ceil(1024)).sum()
}

fn control(recipe: &Recipe, metadata: &Metadata, architecture: &str, libraries: &str, installed: u64) -> String {
    let deb = &metadata.deb;
    let description: Vec<String> = deb.extended_description.trim().lines().map(|line| format!(" {line}")).collect();
    // A package's one line begins in lower case and is no sentence.
    let line = metadata.description.trim_end_matches('.');
    let (first, rest) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
    let line = [&first.to_lowercase(), rest].concat();
    let line = line.strip_prefix("a ").unwrap_or(&line);
    format!(
        "Package: sluice\nVersion: {}-{}\nArchitecture: {architecture}\nMaintainer: {}\nInstalled-Size: {installed}\n\
         Depends: {libraries}, {}\nRecommends: {}\nSuggests: {}\nSection: {}\nPriority: {}\nDescription: {line}\n{}\n",
        metadata.version,
        recipe.revision,
        deb.maintainer,
        deb.depends,
        deb.recommends,
        deb.suggests,
        deb.section,
        deb.priority,
        description.join("\n"),
    )
}

/// The changelog in Debian's form; what changed stands in the project's own.
pub fn changelog(recipe: &Recipe, metadata: &Metadata, date: &str) -> String {
    format!(
        "sluice ({}-{}) unstable; urgency=medium\n\n  * What changed stands in changelog.gz, beside this file.\n\n -- {}  {date}\n",
        metadata.version, recipe.revision, metadata.deb.maintainer
    )
}

/// The copyright file, as Debian's programs read it.
pub fn copyright(metadata: &Metadata) -> String {
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: sluice\n\
         Upstream-Contact: {}\n\nFiles: *\nCopyright: 2026 the sluice maintainers\nLicense: Apache-2.0\n\n\
         License: Apache-2.0\n On Debian systems the text of the Apache License, version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n .\n The binary holds libraries of others: their licences are in\n \
         /usr/share/doc/sluice/third-party-licences.gz.\n",
        metadata.deb.maintainer
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Recipe {
        Recipe { binary: PathBuf::new(), revision: 2, quick: true }
    }

    #[test]
    fn control_is_one_paragraph_with_what_dpkg_wants() {
        let metadata = Metadata::read().expect("the table");
        let text = control(&recipe(), &metadata, "amd64", "libc6 (>= 2.34)", 7);
        let version = format!("\nVersion: {}-2\n", metadata.version);
        for part in [&version, "\nInstalled-Size: 7\n", "\nDepends: libc6 (>= 2.34), systemd | ", "\n .\n"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(!text.contains("\n\n") && text.ends_with('\n'), "{text}");
        let continued = |line: &str| line.starts_with(' ') || line.contains(": ");
        assert!(text.lines().all(continued), "{text}");
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(installed_kib(&[("a".into(), 1), ("b".into(), 1024), ("c".into(), 1025)]), 4);
    }
}
