//! `sluice __reference PAGE`: the generated reference pages, as `cargo xtask docs` writes them under docs/reference.
//!
//! A page is a function from the program itself to Markdown, so that it cannot say what the program does not do.

use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

use super::{Cli, Exit, Failure, Outcome, metrics, pages};

/// Arguments of `sluice __reference`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The page's name.
    #[arg(required_unless_present_any = ["list", "man", "completions"])]
    page: Option<String>,
    /// Print the pages' names, one a line.
    #[arg(long)]
    list: bool,
    /// Write the manual pages into this folder.
    #[arg(long, value_name = "DIR")]
    man: Option<PathBuf>,
    /// Write the shells' completions into this folder.
    #[arg(long, value_name = "DIR")]
    completions: Option<PathBuf>,
}

/// A generated page: its name (docs/reference/NAME.md, or docs/reference/NAME where it has an ending) and the function that writes it.
type Page = (&'static str, fn() -> String);

/// The pages that exist.
const PAGES: &[Page] = &[
    ("cli", cli_markdown),
    ("config", super::config_page::markdown),
    ("metrics", metrics::markdown),
    ("sluice.schema.json", || super::check::schema_text() + "\n"),
];

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.list {
        PAGES.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(Exit::Done);
    }
    if args.man.is_some() || args.completions.is_some() {
        let man = args.man.map_or(Ok(()), |folder| pages::write_manual(&folder));
        let both = man.and_then(|()| args.completions.map_or(Ok(()), |folder| pages::write_completions(&folder)));
        return both.map(|()| Exit::Done).map_err(|error| Failure::host(format!("generated pages: {error}")));
    }
    let page = args.page.unwrap_or_default();
    let Some((_, write)) = PAGES.iter().find(|(name, _)| *name == page) else {
        let names: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!("no reference page \"{page}\": there are {}", names.join(", "))));
    };
    print!("{}", write());
    Ok(Exit::Done)
}

/// The command line's reference: every command with its usage, options and defaults.
pub fn cli_markdown() -> String {
    let mut root = Cli::command();
    // Fills in what clap derives when it parses: usage lines, the help and version options.
    root.build();
    let mut page = String::from(
        "# Command line\n\n\
         Written by `cargo xtask docs` from the program itself; a check fails when it is stale.\n\n\
         Exit codes: 0 done; 1 a difference was found; 2 usage or configuration; 3 done, with damage reported; 4 host \
         or permission; 5 internal.\n",
    );
    command(&root, "", &mut page);
    page
}

fn command(command: &Command, parents: &str, page: &mut String) {
    let name = format!("{parents}{}", command.get_name());
    let verbs = || command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    page.push_str(&format!("\n## {name}\n\n"));
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        page.push_str(&format!("{}\n\n", sentence(&about.to_string())));
    }
    let usage = command.clone().render_usage().to_string();
    page.push_str(&format!("```text\n{}\n```\n", usage.trim_start_matches("Usage:").trim()));
    if verbs().next().is_some() {
        page.push_str("\n| command | what it does |\n| --- | --- |\n");
        for verb in verbs() {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            page.push_str(&format!("| `{name} {}` | {} |\n", verb.get_name(), cell(&about)));
        }
    }
    // -h and --version are the same everywhere.
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version"))
        .collect();
    if !args.is_empty() {
        page.push_str("\n| argument | meaning | default |\n| --- | --- | --- |\n");
        args.iter().for_each(|arg| page.push_str(&row(arg)));
    }
    for verb in verbs() {
        self::command(verb, &format!("{name} "), page);
    }
}

fn row(arg: &Arg) -> String {
    let values: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let takes = arg.get_action().takes_values();
    let value = if takes { values.join(" ") } else { String::new() };
    let many = if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let name = match arg.get_long() {
        Some(long) if takes => format!("{short}--{long} {value}{many}"),
        Some(long) => format!("{short}--{long}"),
        None => format!("{value}{many}"),
    };
    let mut meaning = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|choice| !choice.is_hide_set())
        .map(|choice| format!("`{}`", choice.get_name()))
        .collect();
    if takes && !choices.is_empty() {
        meaning = format!("{} One of {}.", sentence(&meaning), choices.join(", "));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = match (defaults.is_empty(), arg.is_required_set()) {
        (true, true) => "required".to_string(),
        (true, false) => String::new(),
        (false, _) if takes => defaults.join(" "),
        (false, _) => String::new(),
    };
    format!("| `{}` | {} | {default} |\n", cell(&name), cell(&meaning))
}

/// Text inside a table's cell: one line, no bar.
pub(super) fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The text with a full stop (clap takes the last one of a doc comment away).
pub(super) fn sentence(text: &str) -> String {
    let text = text.trim();
    match text.ends_with(['.', '!', '?', ':']) || text.is_empty() {
        true => text.to_string(),
        false => format!("{text}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_option_is_on_the_page() {
        let page = cli_markdown();
        for part in ["## sluice feed gaps\n", "## sluice store verify\n", "| `sluice feed play` |"] {
            assert!(page.contains(part), "{part:?} is missing");
        }
        assert!(!page.contains("__reference"), "hidden commands stay hidden");
        Cli::command().debug_assert();
    }
}
