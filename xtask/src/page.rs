//! What the test of the status page needs beside a browser: the packages of `dataplane/tests/page/package.json`, installed
//! by npm under the target folder, so that nothing of them lies in the tree.

use crate::shell;

/// The files that say what is installed.
const MANIFESTS: [&str; 2] = ["package.json", "package-lock.json"];

/// Installs the packages unless these very ones are there. Says nothing when nothing is missing.
pub fn ensure() {
    if shell::find("npm").is_none() {
        return;
    }
    if let Err(reason) = install() {
        println!("setup: goes on without the packages of the page's test, which is skipped: {reason}");
    }
}

fn install() -> Result<(), String> {
    let folder = shell::target_folder().join("page");
    let wanted = MANIFESTS.map(|name| std::fs::read_to_string(shell::root().join("dataplane/tests/page").join(name)));
    let installed = |(name, wanted): (&str, &std::io::Result<String>)| {
        wanted.as_ref().is_ok_and(|wanted| std::fs::read_to_string(folder.join(name)).is_ok_and(|is| is == *wanted))
    };
    let whole = folder.join("node_modules/.package-lock.json").is_file();
    if whole && MANIFESTS.into_iter().zip(&wanted).all(installed) {
        return Ok(());
    }
    for (name, text) in MANIFESTS.into_iter().zip(wanted) {
        shell::write(&folder.join(name), &text.map_err(|error| format!("{name}: {error}"))?)?;
    }
    println!("setup: installs the packages of the page's test with npm");
    let mut npm = shell::command("npm");
    // No package's own script runs, and no browser is downloaded: the test uses Debian's.
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]).current_dir(&folder);
    shell::run(&mut npm)
}
