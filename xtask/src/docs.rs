//! `cargo xtask docs [NAME] [--check]`: the reference pages, written by the binary itself so that they cannot differ
//! from what it does.

use std::path::PathBuf;

use crate::shell;

/// Arguments of `cargo xtask docs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the pages whose name contains this (`cli`, `config`, `metrics`).
    name: Option<String>,
    /// Change nothing; fail when a page is stale.
    #[arg(long)]
    check: bool,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    let wanted = |page: &str| args.name.as_deref().is_none_or(|name| page.contains(name));
    let pages: Vec<(PathBuf, String)> =
        pages()?.into_iter().filter(|(path, _)| wanted(&path.to_string_lossy())).collect();
    if pages.is_empty() {
        return Err(format!("no page has a name that contains \"{}\"", args.name.unwrap_or_default()));
    }
    if args.check {
        let stale = compare(&pages);
        stale.iter().for_each(|finding| eprintln!("{finding}"));
        return if stale.is_empty() { Ok(()) } else { Err(format!("{} stale pages", stale.len())) };
    }
    for (path, text) in &pages {
        shell::write(&shell::root().join(path), text)?;
        println!("docs: {}", path.display());
    }
    Ok(())
}

/// The stale pages, one finding each.
pub fn stale() -> Result<Vec<String>, String> {
    Ok(compare(&pages()?))
}

fn compare(pages: &[(PathBuf, String)]) -> Vec<String> {
    let current =
        |path: &PathBuf, text: &String| std::fs::read_to_string(shell::root().join(path)).is_ok_and(|old| old == *text);
    let stale = pages.iter().filter(|(path, text)| !current(path, text));
    stale
        .map(|(path, _)| format!("{}: is not what the binary prints: run \"cargo xtask docs\"", path.display()))
        .collect()
}

/// Every page that the binary offers, as (path, text).
fn pages() -> Result<Vec<(PathBuf, String)>, String> {
    let binary = binary()?;
    let reference = |arg: &str| shell::output(shell::command(&binary).args(["__reference", arg]));
    let page = |name: &str| {
        let ending = if name.contains('.') { "" } else { ".md" };
        Ok((PathBuf::from(format!("docs/reference/{name}{ending}")), reference(name)?))
    };
    reference("--list")?.lines().map(page).collect()
}

/// Builds the binary as the integration tests build it and returns its path: with all features, so that the pages tell
/// of every option, and so that "cargo xtask test" builds it once.
pub fn binary() -> Result<PathBuf, String> {
    let mut cargo = shell::cargo(&["test", "--quiet", "-p", "sluice", "--all-features", "--test", "it", "--no-run"]);
    let messages = shell::output(cargo.arg("--message-format=json-render-diagnostics"))?;
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let executable = |artifact: serde_json::Value| {
        let ours = artifact["target"]["name"] == "sluice" && artifact["target"]["kind"][0] == "bin";
        artifact["executable"].as_str().filter(|_| ours).map(PathBuf::from)
    };
    artifacts.filter_map(executable).next().ok_or_else(|| "cargo built no binary \"sluice\"".into())
}
