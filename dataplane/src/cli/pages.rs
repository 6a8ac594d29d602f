//! `sluice __reference --man DIR` and `--completions DIR`: manual pages and shell completions, from the definitions that
//! parse the command line, by the very program that they are about. `cargo xtask dist` packs them; neither is in git.

use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// The shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// What every page ends with: roff, as man(7) reads it.
const EXIT_STATUS: &str = ".SH EXIT STATUS\n\
    0 done; 1 a difference was found; 2 usage or configuration; 3 done, with damage reported; 4 host or permission; 5 internal.\n";

/// What the page of the program itself has beside it.
const FILES: &str = ".SH FILES\n\
    .TP\n/etc/sluice/sluice.toml\nThe configuration that the service runs.\n\
    .TP\n/etc/sluice/default.toml\nEvery key with its default, annotated.\n\
    .TP\n/usr/share/sluice/config\nA working example for each kind of site.\n\
    .TP\n/var/lib/sluice\nWhat the service records, unless the configuration says otherwise.\n\
    .TP\n/run/sluice/last\\-status.json\nThe last books of the service after it has ended.\n\
    .SH ENVIRONMENT\n\
    .TP\nSLUICE_LOG\nFilter of the log: error, warn, info (without it), debug, or by module: sluice::ledger=debug,info.\n\
    .SH SEE ALSO\n\
    .BR sluice\\-tune (8),\n/usr/share/doc/sluice\n";

/// Writes a manual page for the program and one for each of its commands.
///
/// # Errors
/// A page that cannot be written.
pub fn write_manual(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    write_page(&visible(), None, folder)
}

/// Writes the completions of every shell, named as that shell looks for them.
///
/// # Errors
/// A file that cannot be written.
pub fn write_completions(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut visible(), "sluice", folder)?;
    }
    Ok(())
}

/// The command line without what is hidden, names filled in.
fn visible() -> Command {
    let whole = Cli::command();
    let verbs: Vec<Command> = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    let mut root =
        Command::new("sluice").version(env!("CARGO_PKG_VERSION")).subcommands(verbs).subcommand_required(true);
    if let Some(about) = whole.get_about() {
        root = root.about(about.clone());
    }
    root = root.disable_help_subcommand(true);
    root.build();
    root
}

fn write_page(command: &Command, parent: Option<&str>, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_string();
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_page(verb, Some(&name), folder)?;
    }
    let program = concat!("sluice ", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command.clone()).source(program).manual("sluice");
    let mut page = Vec::new();
    man.render(&mut page)?;
    page.write_all(EXIT_STATUS.as_bytes())?;
    match parent {
        None => page.write_all(FILES.as_bytes())?,
        Some(parent) => write!(page, ".SH SEE ALSO\n.BR {} (1)\n", parent.replace('-', "\\-"))?,
    }
    std::fs::write(folder.join(format!("{name}.1")), page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry"));
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_command_has_its_page() {
        let folder = tempfile::tempdir().expect("a folder");
        write_manual(folder.path()).expect("pages");
        let names = files(folder.path());
        for name in ["sluice.1", "sluice-run.1", "sluice-feed.1", "sluice-feed-play.1", "sluice-ledger-follow.1"] {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("reference") || name.contains("help")), "{names:?}");
        let page = std::fs::read_to_string(folder.path().join("sluice-feed-play.1")).expect("the page");
        for part in ["sluice feed play", ".SH OPTIONS", "\\-\\-rate", "EXIT STATUS", ".BR sluice\\-feed (1)"] {
            assert!(page.contains(part), "{part:?} is not in:\n{page}");
        }
    }

    #[test]
    fn completions_know_the_verbs_and_nothing_hidden() {
        let folder = tempfile::tempdir().expect("a folder");
        write_completions(folder.path()).expect("completions");
        assert_eq!(files(folder.path()), ["_sluice", "sluice.bash", "sluice.fish"]);
        for name in files(folder.path()) {
            let text = std::fs::read_to_string(folder.path().join(&name)).expect("completions");
            assert!(text.contains("arbitrate") && text.contains("follow"), "{name}");
            assert!(!text.contains("__reference"), "{name}");
        }
    }
}
