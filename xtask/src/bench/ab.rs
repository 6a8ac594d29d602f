//! `cargo xtask bench ab OLD NEW`: two commits, each built in a worktree of its own, measured in turns in one session.
//!
//! The order is A B, B A, A B, …: what drifts is in both. Each pair gives one ratio, and only the ratios are judged.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::stats::{self, Comparison};
use super::{bench_of, figures};
use crate::machine::{cpu_times, steal_between};
use crate::shell;

/// Arguments of `cargo xtask bench ab`.
#[derive(clap::Args)]
pub struct Args {
    /// The commit that was: anything that git takes for one.
    old: String,
    /// The commit that is compared with it. The same one again is an A/A check: it must show no difference.
    new: String,
    /// The benchmark file that is run.
    #[arg(long, default_value = "packet")]
    part: String,
    /// Only the measurements whose name contains this (criterion), or the program's argument (`bench/*.rs`).
    #[arg(long)]
    only: Option<String>,
    /// Runs of each commit. With several figures more are needed for a verdict: the output says how many.
    #[arg(long, default_value_t = 10)]
    runs: usize,
    /// Keep both builds under target/bench-ab, so that the next comparison need not build them.
    #[arg(long)]
    keep: bool,
}

/// Seconds that criterion warms up and measures for in each run: short, as there are many.
const CRITERION: [&str; 7] = ["--warm-up-time", "0.5", "--measurement-time", "1", "--sample-size", "20", "--noplot"];

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    let commits = [commit(&args.old)?, commit(&args.new)?];
    let folder = shell::target_folder().join("bench-ab");
    let sides = [Side::checkout(&folder, "old", &commits[0])?, Side::checkout(&folder, "new", &commits[1])?];
    let result = compare(&args, &sides);
    if !args.keep {
        for side in &sides {
            let _ = std::fs::remove_dir_all(&side.target);
        }
    }
    result
}

fn compare(args: &Args, sides: &[Side; 2]) -> Result<(), String> {
    let programs = [sides[0].build(&args.part)?, sides[1].build(&args.part)?];
    let load = figures::await_idle();
    let (before, mut runs) = (cpu_times(), [Vec::new(), Vec::new()]);
    for run in 0..args.runs {
        // A B, B A, A B, …
        let order = if run % 2 == 0 { [0, 1] } else { [1, 0] };
        for at in order {
            eprint!("\rrun {} of {}: {}  ", run + 1, args.runs, ["OLD", "NEW"][at]);
            std::io::stderr().flush().ok();
            runs[at].push(programs[at].measure(&sides[at], args.only.as_deref())?);
        }
    }
    eprintln!();
    let steal_percent = steal_between(before, cpu_times());
    let [old, new] = &runs;
    print!("{}", table(old, new)?);
    println!("OLD {}, NEW {}", sides[0].commit, sides[1].commit);
    if sides[0].commit == sides[1].commit {
        println!("both are the same commit: a difference that is shown would be the method's own");
    }
    println!("load before {load:.2}, steal {steal_percent:.2} %");
    if load > figures::LOAD_MAX || steal_percent > figures::STEAL_PERCENT_MAX {
        println!("the machine was not idle: take no verdict from this run");
    }
    Ok(())
}

/// One run's figures: name, value, and whether more is better.
type Figures = BTreeMap<String, (f64, bool)>;

/// NEW ÷ OLD of each pair of runs, as speed: above 1 is better.
fn speeds(name: &str, old: &[Figures], new: &[Figures]) -> Vec<f64> {
    let pair = |(old, new): (&Figures, &Figures)| {
        let ((old, more), (new, _)) = (old.get(name)?, new.get(name)?);
        Some(if *more { new / old } else { old / new })
    };
    old.iter().zip(new).filter_map(pair).filter(|speed| speed.is_finite() && *speed > 0.0).collect()
}

/// The table: a line for each figure that both have. The chance to err is for all lines together.
fn table(old: &[Figures], new: &[Figures]) -> Result<String, String> {
    let names: Vec<&String> =
        old.iter().flat_map(BTreeMap::keys).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let both: Vec<(&String, Vec<f64>)> =
        names.into_iter().map(|name| (name, speeds(name, old, new))).filter(|(_, speeds)| !speeds.is_empty()).collect();
    if both.is_empty() {
        return Err("the two commits have no figure in common: is --only right, and the part in both?".into());
    }
    let error = stats::ERROR_MAX / both.len() as f64;
    let mut text = format!("{:<52} {:>10} {:>10}  verdict\n", "figure", "OLD", "NEW");
    for (name, speeds) in &both {
        let middle = |runs: &[Figures]| {
            stats::median(&runs.iter().filter_map(|run| Some(run.get(*name)?.0)).collect::<Vec<_>>())
        };
        let found: Comparison = stats::compare(speeds, error);
        text += &format!(
            "{name:<52} {:>10} {:>10}  {}\n",
            figures::number(middle(old)),
            figures::number(middle(new)),
            found.said()
        );
    }
    text += &format!(
        "medians of {} runs; ratios of neighbouring runs; all {} verdicts together are wrong in at most {:.0} % of such tables\n",
        old.len(),
        both.len(),
        stats::ERROR_MAX * 100.0
    );
    Ok(text)
}

fn commit(name: &str) -> Result<String, String> {
    let mut git = shell::command("git");
    git.args(["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
    let found = shell::output(&mut git).map_err(|_| format!("\"{name}\" is no commit of this repository"))?;
    Ok(found.trim().to_string())
}

/// A worktree of one commit; gone when dropped.
struct Side {
    commit: String,
    tree: PathBuf,
    target: PathBuf,
}

impl Side {
    fn checkout(folder: &Path, name: &str, commit: &str) -> Result<Side, String> {
        let (tree, target) = (folder.join(name), folder.join(format!("target-{name}")));
        // What a run that was killed left behind.
        remove_tree(&tree);
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut git = shell::command("git");
        shell::run(git.args(["worktree", "add", "--quiet", "--detach", "--force"]).arg(&tree).arg(commit))?;
        Ok(Side { commit: commit.into(), tree, target })
    }

    /// Builds the benchmark, with the features that it needs and no others.
    fn build(&self, part: &str) -> Result<Program, String> {
        let bench = bench_of(&self.tree, part)?;
        let mut cargo = shell::cargo(&["bench", "-p", "sluice", "--no-run", "--no-default-features", "--features"]);
        cargo.arg(bench.features.join(",")).args(["--bench", part, "--message-format", "json-render-diagnostics"]);
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).stderr(Stdio::inherit());
        let text = shell::output(&mut cargo)?;
        let built = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let mut found = built
            .filter(|told| told["target"]["name"] == part)
            .filter_map(|told| Some(told["executable"].as_str()?.to_string()));
        let path = found.next_back().ok_or_else(|| format!("cargo names no program for the benchmark {part}"))?;
        Ok(Program { path: path.into(), criterion: bench.criterion })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        remove_tree(&self.tree);
    }
}

fn remove_tree(tree: &Path) {
    if tree.exists() {
        shell::succeeds(shell::command("git").args(["worktree", "remove", "--force"]).arg(tree));
        let _ = std::fs::remove_dir_all(tree);
    }
    shell::succeeds(shell::command("git").args(["worktree", "prune"]));
}

/// A built benchmark.
struct Program {
    path: PathBuf,
    criterion: bool,
}

impl Program {
    fn measure(&self, side: &Side, only: Option<&str>) -> Result<Figures, String> {
        let found = side.target.join("bench-ab-criterion");
        let _ = std::fs::remove_dir_all(&found);
        let mut command = Command::new(&self.path);
        command.current_dir(side.tree.join("dataplane")).env("CRITERION_HOME", &found).arg("--bench").args(only);
        if self.criterion {
            command.args(CRITERION);
        }
        let text = shell::output(&mut command)?;
        Ok(if self.criterion { times(&found) } else { reported(&text) })
    }
}

/// Criterion's measurements: the median time of an iteration.
fn times(folder: &Path) -> Figures {
    figures::criterion_times(folder).into_iter().map(|(name, times)| (name, (stats::median(&times), false))).collect()
}

/// What a program of `bench/` says itself: its `figure` lines. A rate is better when it is higher.
fn reported(text: &str) -> Figures {
    let figure = |line: &str| {
        let figure: serde_json::Value = serde_json::from_str(line.strip_prefix("figure ")?).ok()?;
        let samples: Vec<f64> = figure["samples"].as_array()?.iter().filter_map(serde_json::Value::as_f64).collect();
        let more = figure["unit"].as_str()?.ends_with("/s");
        Some((figure["name"].as_str()?.to_string(), (stats::median(&samples), more)))
    };
    text.lines().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(time: f64, rate: f64) -> Figures {
        [("time".to_string(), (time, false)), ("rate".to_string(), (rate, true))].into()
    }

    #[test]
    fn a_shorter_time_and_a_higher_rate_are_both_faster() {
        let (old, new) = ([run(10.0, 2.0), run(12.0, 2.0)], [run(5.0, 4.0), run(6.0, 4.0)]);
        assert_eq!(speeds("time", &old, &new), [2.0, 2.0]);
        assert_eq!(speeds("rate", &old, &new), [2.0, 2.0]);
        assert!(speeds("other", &old, &new).is_empty());
    }

    #[test]
    fn one_commit_twice_shows_no_difference_and_a_slower_one_does() {
        let runs = |factor: f64| -> Vec<Figures> {
            (0..10).map(|at| run(factor * (100.0 + f64::from(at * 7 % 10)), 5.0)).collect()
        };
        let same = table(&runs(1.0), &runs(1.0)).expect("figures");
        assert_eq!(same.matches("no difference shown").count(), 2, "{same}");
        let slower = table(&runs(1.0), &runs(1.2)).expect("figures");
        assert!(slower.contains("NEW slower by 16.7 % (16.7 … 16.7)"), "{slower}");
        assert!(table(&runs(1.0), &[]).is_err());
    }

    #[test]
    fn lines_of_a_program_are_read() {
        let text = "other\nfigure {\"name\":\"a\",\"unit\":\"GB/s\",\"samples\":[1,3,2]}\nfigure {\"name\":\"b\",\"unit\":\"ns\",\"samples\":[4]}";
        let found = reported(text);
        assert_eq!((found["a"], found["b"]), ((2.0, true), (4.0, false)));
    }
}
