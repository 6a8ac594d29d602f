//! The licences of what is linked into the binary: their texts must go with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::shell;

/// How a licence's file begins, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Every package that the binary is built of, with its licence; then each different text once, with the packages it is of.
pub fn text() -> Result<String, String> {
    let metadata = metadata()?;
    let linked = linked(&metadata);
    let mut list = String::from("What the sluice binary is built of, and under which licences.\n\n");
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages(&metadata).filter(|package| linked.contains(text_of(package, "id"))) {
        // Ours have no source: they come from no registry.
        if package["source"].is_null() {
            continue;
        }
        let name = format!("{} {}", text_of(package, "name"), text_of(package, "version"));
        list.push_str(&format!("{name}: {}\n", text_of(package, "license")));
        for text in licences(Path::new(text_of(package, "manifest_path"))) {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let mut sections: Vec<(BTreeSet<String>, String)> = texts.into_iter().map(|(text, names)| (names, text)).collect();
    sections.sort();
    for (names, text) in sections {
        let names: Vec<String> = names.into_iter().collect();
        list.push_str(&format!("\n{}\n{}\n\n{}\n", "=".repeat(80), names.join(", "), text.trim()));
    }
    Ok(list)
}

fn metadata() -> Result<Value, String> {
    let version = shell::output(shell::command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let args = ["metadata", "--format-version=1", "--locked", "--filter-platform", host];
    serde_json::from_str(&shell::output(&mut shell::cargo(&args))?).map_err(|error| format!("cargo metadata: {error}"))
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

/// The ids of the packages that the binary depends on, directly or not, tests and builds left out.
fn linked(metadata: &Value) -> BTreeSet<String> {
    let nodes: BTreeMap<&str, &Value> =
        metadata["resolve"]["nodes"].as_array().into_iter().flatten().map(|node| (text_of(node, "id"), node)).collect();
    let ours = packages(metadata).filter(|package| text_of(package, "name") == "sluice");
    let mut left: Vec<&str> = ours.map(|package| text_of(package, "id")).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !seen.insert(id.to_string()) {
            continue;
        }
        let deps = nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let normal =
            |dep: &&Value| dep["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
        left.extend(deps.filter(normal).map(|dep| text_of(dep, "pkg")));
    }
    seen
}

fn licences(manifest: &Path) -> Vec<String> {
    let Some(folder) = manifest.parent() else { return Vec::new() };
    let mut names = shell::file_names(folder).unwrap_or_default();
    names.retain(|name| NAMES.iter().any(|begin| name.to_uppercase().starts_with(begin)));
    names.sort();
    names.iter().filter_map(|name| std::fs::read_to_string(folder.join(name)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_linked_counts() {
        let metadata = serde_json::json!({
            "packages": [{"id": "s", "name": "sluice"}, {"id": "a", "name": "a"}, {"id": "b", "name": "b"}],
            "resolve": {"nodes": [
                {"id": "s", "deps": [
                    {"pkg": "a", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                    {"pkg": "d", "dep_kinds": [{"kind": "dev"}]},
                    {"pkg": "m", "dep_kinds": [{"kind": "build"}]},
                ]},
                {"id": "a", "deps": [{"pkg": "b", "dep_kinds": [{"kind": null}]}]},
                {"id": "b", "deps": []},
            ]},
        });
        let linked: Vec<String> = linked(&metadata).into_iter().collect();
        assert_eq!(linked, ["a", "b", "s"]);
    }
}
