//! `cargo xtask golden FILE [--packets N]`: cuts a fixture from a capture and makes its golden with a foreign decoder,
//! PyPI `iex-parser`, in a Python environment of its own under target/. `--doctor` and `--explain`
//! write those of the program anew.

use std::path::{Path, PathBuf};

use crate::shell;

/// The decoder, with the version whose values the goldens are.
const DECODER: &str = "iex-parser==1.7.0";

/// Arguments of `cargo xtask golden`.
#[derive(clap::Args)]
pub struct Args {
    /// The capture: pcap or pcapng, plain or gzip, IEX-TP with DEEP 1.0, TOPS 1.6 or TOPS 1.5.
    #[arg(required_unless_present_any = ["doctor", "explain"])]
    file: Option<PathBuf>,
    /// Write what `sluice doctor` says of the captured hosts in dataplane/tests/doctor: read the difference before you commit it.
    #[arg(long, exclusive = true)]
    doctor: bool,
    /// Write how each file of config/ is drawn in dataplane/fixtures/explain: as --doctor.
    #[arg(long, exclusive = true)]
    explain: bool,
    /// Cut the first N packets into a fixture of their own; without it the golden is of the file as it is.
    #[arg(long)]
    packets: Option<u64>,
    /// Where the fixture goes, and its golden in golden/ under it.
    #[arg(long, default_value = "dataplane/fixtures")]
    out_dir: PathBuf,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    let Some(file) = &args.file else {
        let test = if args.doctor { "doctor::goldens" } else { "each_example_is_drawn" };
        return rewrite(test);
    };
    if args.packets == Some(0) {
        return Err("golden: --packets 0 leaves nothing: give a number from 1".into());
    }
    let here = |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let file = here(file)?;
    if !file.is_file() {
        return Err(format!("golden: {} is no file", file.display()));
    }
    // The default lies in the project, wherever this is run; a folder given by hand lies where the caller is.
    let out_dir =
        if args.out_dir.starts_with("dataplane") { shell::root().join(args.out_dir) } else { here(&args.out_dir)? };
    std::fs::create_dir_all(&out_dir).map_err(|error| format!("{}: {error}", out_dir.display()))?;
    let python = environment(&shell::root().join("target/venv"))?;
    let mut golden = shell::command(python);
    golden.arg("-c").arg(include_str!("golden.py")).arg(file).arg(out_dir).arg(args.packets.unwrap_or(0).to_string());
    // Not shown as a command line: the script is its first argument.
    let status = golden.status().map_err(|error| format!("golden: cannot start Python: {error}"))?;
    status.success().then_some(()).ok_or_else(|| format!("golden: the decoder failed ({status})"))
}

/// The test that compares writes instead, when it is told to.
fn rewrite(test: &str) -> Result<(), String> {
    let mut cargo = shell::cargo(&["test", "-p", "sluice", "--all-features", "--test", "it", test]);
    shell::run(cargo.env("SLUICE_WRITE_GOLDENS", "1"))
}

/// Makes the environment once; its Python.
fn environment(venv: &Path) -> Result<PathBuf, String> {
    let python = venv.join("bin/python");
    let (package, version) = DECODER.split_once("==").unwrap_or((DECODER, ""));
    let probe = format!("import importlib.metadata as m, iex_parser; assert m.version('{package}') == '{version}'");
    if python.exists() && shell::succeeds(shell::command(&python).args(["-c", &probe])) {
        return Ok(python);
    }
    if !shell::succeeds(shell::command("python3").args(["-c", "import venv, ensurepip"])) {
        return Err("golden: Python's venv is missing: run \"apt-get install -y python3-venv\" and try again".into());
    }
    shell::run(shell::command("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    let install = shell::run(shell::command(&python).args(["-m", "pip", "install", "--quiet", DECODER]));
    install.map_err(|error| format!("golden: {error}: pip must reach a package index that has {DECODER}"))?;
    Ok(python)
}
