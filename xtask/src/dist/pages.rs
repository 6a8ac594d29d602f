//! The documents of the package: in the layout that they have in the repository, so that their links lead on.

use std::path::{Path, PathBuf};

use super::tree::Tree;
use crate::shell;

/// Where they go.
pub const FOLDER: &str = "usr/share/doc/sluice";

/// Pages outside of docs/ that are packed too: pages below docs/ lead to them.
const PAGES: [&str; 4] = ["README.md", "deploy/README.md", "bench/README.md", "bench/nic/README.md"];

/// Folders of which everything is packed: the documents, and the records of the figures in them.
const FOLDERS: [&str; 2] = ["docs", "bench/results"];

/// What lies elsewhere in the package already, and where from its place beside the documents.
const ELSEWHERE: [(&str, &str); 2] =
    [("config", "../../sluice/config"), ("deploy/prometheus", "../../../sluice/prometheus")];

/// Puts the documents into the tree.
pub fn put(tree: &Tree) -> Result<(), String> {
    let root = shell::root();
    let mut files: Vec<PathBuf> = PAGES.iter().map(|page| root.join(page)).collect();
    for folder in FOLDERS {
        files_below(&root.join(folder), &mut files)?;
    }
    for file in files {
        let inside = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        tree.put(&file, &format!("{FOLDER}/{inside}"), 0o644)?;
    }
    ELSEWHERE.iter().try_for_each(|(inside, target)| tree.link(target, &format!("{FOLDER}/{inside}")))
}

/// Fails with every relative link of a packed page that leads nowhere.
pub fn check(tree: &Tree) -> Result<(), String> {
    let folder = tree.path(FOLDER);
    let mut files = Vec::new();
    files_below(&folder, &mut files)?;
    let mut broken = Vec::new();
    for page in files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "md")) {
        let text = std::fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        let beside = page.parent().unwrap_or(&folder);
        let nowhere = links(&text).filter(|link| !beside.join(link).exists());
        broken.extend(nowhere.map(|link| format!("{}: {link}", page.strip_prefix(&folder).unwrap_or(page).display())));
    }
    match broken.is_empty() {
        true => Ok(()),
        false => {
            Err(format!("links of packed documents lead nowhere (xtask/src/dist/pages.rs): {}", broken.join("; ")))
        }
    }
}

/// The files that relative links of a Markdown text name.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let files = targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace));
    files.filter_map(|target| target.split('#').next()).filter(|file| !file.is_empty())
}

/// Every file below a folder, sorted; links are not followed.
fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(told)?.collect::<Result<Vec<_>, _>>().map_err(told)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| !path.is_symlink()) {
        match path.is_dir() {
            true => files_below(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::manifest::Metadata;
    use super::*;

    /// An empty tree, which goes with the folder that it is in.
    fn tree() -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(folder.path().join("tree")).expect("an empty folder");
        (folder, tree)
    }

    #[test]
    fn links_are_found() {
        let text = "[a](b.md), [c](../d/e.md#f), [g](#here), [h](https://i/j), `x[1](y z)`, [k](l.json)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["b.md", "../d/e.md", "l.json"]);
    }

    #[test]
    fn every_link_of_a_packed_document_leads_somewhere() {
        let (_folder, tree) = tree();
        for asset in Metadata::read().expect("the table").assets().expect("the files") {
            tree.put(&asset.source, &asset.dest, asset.mode).expect("copies");
        }
        put(&tree).expect("packs");
        assert_eq!(check(&tree), Ok(()));
        let there = tree.path(FOLDER);
        for page in ["docs/runbooks/stalled-core.md", "docs/operating/doctor.md", "config/default.toml"] {
            assert!(there.join(page).is_file(), "{page}");
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_told_with_its_page() {
        let (_folder, tree) = tree();
        tree.write(&format!("{FOLDER}/docs/a.md"), "[b](b.md) [c](../c.md#d) [a](a.md)", 0o644).expect("writes");
        let told = check(&tree).expect_err("two of them");
        assert!(told.ends_with("docs/a.md: b.md; docs/a.md: ../c.md"), "{told}");
    }
}
