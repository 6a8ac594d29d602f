//! `cargo xtask install`: installs the package into a bare Debian root, command by command as docs/operating/install.md
//! says, and runs the unit's own command there as the unit would: its user, capabilities and limits, and a stand-in for
//! systemd's notification socket.
//!
//! It runs again in namespaces of its own: mounts and the network of the root end with the process, however it ends.

use std::path::{Path, PathBuf};

use crate::{dist, shell, test};
use booted::Booted;
use document::Document;
use root::Root;
use service::Service;
use unit::Unit;

mod booted;
mod document;
mod root;
mod service;
mod unit;

/// Arguments of `cargo xtask install`.
#[derive(clap::Args)]
pub struct Args {
    /// Install what `cargo xtask dist` left in out/dist, in place of a package around the tests' binary.
    #[arg(long)]
    release: bool,
    /// Pack and install this binary.
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    binary: Option<PathBuf>,
    /// Package and tarball are in this folder: this process is in its namespaces.
    #[arg(long, hide = true, value_name = "DIR")]
    inside: Option<PathBuf>,
}

/// What `systemd-analyze security` may say at most of the unit alone, times ten (docs/design/0041-what-the-unit-holds.md),
/// and of it with each drop-in.
const EXPOSURE_MAX: u32 = 27;
const DROP_INS: [(&str, u32); 4] = [("10-cpuset", 27), ("20-capture", 27), ("20-ring", 19), ("20-ledger", 19)];

const DOCUMENT: &str = "docs/operating/install.md";

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    if let Some(folder) = args.inside {
        return inside(&folder);
    }
    let tally = outside(args.release, args.binary)?;
    tally.success.then_some(()).ok_or_else(|| "the installation failed".into())
}

/// The step of `cargo xtask test`: counted as skipped for anybody but root, and a failure in CI.
pub fn step(tally: &mut test::Tally) -> Result<(), String> {
    if !shell::is_root() {
        if shell::is_ci() {
            return Err("under CI=true the installation may not be skipped: run as root".into());
        }
        tally.skipped.push("install: a root of its own needs root".into());
        return Ok(());
    }
    let one = outside(false, None)?;
    tally.passed += one.passed;
    tally.failed += one.failed;
    tally.skipped.extend(one.skipped);
    one.success.then_some(()).ok_or_else(|| "the installation failed".into())
}

/// Makes the bare root of the installation's step on a thread of its own, where that step will need one: most of it is
/// waiting for a mirror. Its failure is that step's to tell, which tries again.
pub fn ahead() -> std::thread::JoinHandle<()> {
    std::thread::spawn(|| {
        if shell::is_root() {
            let _ = root::bootstrap_ahead();
        }
    })
}

/// Makes what is installed and a root for it, then runs this program in namespaces of its own.
fn outside(release: bool, binary: Option<PathBuf>) -> Result<test::Tally, String> {
    crate::setup::ensure()?;
    let folder = match release {
        true => shell::root().join("out/dist"),
        false => quick_package(binary.map_or_else(crate::docs::binary, Ok)?)?,
    };
    let package = shell::file_names(&folder)?.into_iter().find(|name| name.ends_with(".deb"));
    let package = package.ok_or_else(|| format!("{}: no package: run \"cargo xtask dist\"", folder.display()))?;
    if let Err(reason) = root::prepare(&folder.join(package)) {
        // Without a mirror there is no bare root; CI has one.
        return match shell::is_ci() {
            true => Err(reason),
            false => {
                Ok(test::Tally { skipped: vec![format!("install: {reason}")], success: true, ..Default::default() })
            }
        };
    }
    let xtask = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut unshare = shell::command("unshare");
    unshare.args(["--mount", "--net", "--propagation=private", "--"]).arg(xtask);
    let tally = test::stream(unshare.args(["install", "--inside"]).arg(folder), true);
    // The mounts are gone with the namespaces.
    root::remove_copies()?;
    tally
}

/// A package around this binary, made twice: it must be the same both times.
fn quick_package(binary: PathBuf) -> Result<PathBuf, String> {
    let folder = shell::root().join("target/dist/quick");
    let again = shell::root().join("target/dist/again");
    let recipe = dist::Recipe { binary, revision: 1, quick: true };
    let first = dist::assemble(&recipe, &folder)?;
    let second = dist::assemble(&recipe, &again)?;
    for (first, second) in [(&first.package, &second.package), (&first.tarball, &second.tarball)] {
        if !shell::succeeds(shell::command("cmp").args([first, second])) {
            return Err(format!("{} and {} differ: two packings must be the same", first.display(), second.display()));
        }
    }
    shell::remove_folder(&again)?;
    Ok(folder)
}

/// Counts checks, and says each.
struct Checks {
    passed: u64,
}

impl Checks {
    fn hold(&mut self, name: &str, result: Result<(), String>) -> Result<(), String> {
        match result {
            Ok(()) => {
                println!("install: {name} ... ok");
                self.passed += 1;
                Ok(())
            }
            Err(reason) => {
                println!("install: {name} ... FAILED");
                Err(format!("{name}: {reason}"))
            }
        }
    }
}

/// In the namespaces: the package's way, then the tarball's, each in a root of its own.
fn inside(folder: &Path) -> Result<(), String> {
    // A service of the test must not find another one's ports taken: this network is empty but for loopback.
    shell::run(shell::command("ip").args(["link", "set", "lo", "up"]))?;
    let mut checks = Checks { passed: 0 };
    let result = package_way(folder, &mut checks)
        .and_then(|()| tarball_way(folder, &mut checks))
        .and_then(|()| booted_way(folder, &mut checks));
    println!(
        "test result: {}. {} passed; {} failed;",
        if result.is_ok() { "ok" } else { "FAILED" },
        checks.passed,
        u64::from(result.is_err())
    );
    result
}

fn package_way(folder: &Path, checks: &mut Checks) -> Result<(), String> {
    let document = Document::read(&shell::root().join(DOCUMENT))?;
    let root = Root::new("package")?;
    root.bring(folder, |name| name.ends_with(".deb"))?;
    follow(&root, &document, &["From the package"], checks)?;
    checks.hold("user, folders and files are there", installed(&root))?;
    checks.hold("nothing is enabled or started by the package", not_enabled(&root))?;
    units(&root, checks)?;
    follow(&root, &document, &["First start"], checks)?;
    checks.hold("the unit is enabled", enabled(&root))?;
    serve(&root, &document, checks)?;
    follow(&root, &document, &["Upgrading", "Removing"], checks)?;
    checks.hold("what was recorded is left after a purge", kept(&root))
}

fn tarball_way(folder: &Path, checks: &mut Checks) -> Result<(), String> {
    let document = Document::read(&shell::root().join(DOCUMENT))?;
    let root = Root::new("tarball")?;
    root.bring(folder, |name| name.ends_with(".tar.gz") || name == "SHA256SUMS")?;
    follow(&root, &document, &["From the tarball", "First start"], checks)?;
    serve(&root, &document, checks)
}

/// The package's way again, in a root that its own systemd has booted: the service in its sandbox, started, reloaded,
/// killed, restarted and removed by the document's commands and ours.
fn booted_way(folder: &Path, checks: &mut Checks) -> Result<(), String> {
    if let Some(reason) = booted::refusal() {
        println!("SKIPPED install systemd: the unit is not started by systemd: {reason}");
        return Ok(());
    }
    let document = Document::read(&shell::root().join(DOCUMENT))?;
    let mut root = Root::new("booted")?;
    root.bring(folder, |name| name.ends_with(".deb"))?;
    let _booted = Booted::start(&mut root)?;
    follow(&root, &document, &["From the package", "First start"], checks)?;
    checks.hold("systemd: the service is active", active(&root))?;
    follow(&root, &document, &["Seeing that it works"], checks)?;
    checks.hold("systemd: it is in its sandbox", confined(&root))?;
    checks.hold(
        "systemd: a reload leaves it active",
        root.shell("systemctl reload sluice").and_then(|()| active(&root)),
    )?;
    checks.hold("systemd: killed, it comes back", comes_back(&root))?;
    checks.hold("systemd: it runs with the drop-in for ledgers", with_drop_in(&root).and_then(|()| active(&root)))?;
    follow(&root, &document, &["Upgrading"], checks)?;
    checks.hold("systemd: the service is active after the upgrade", active(&root))?;
    checks.hold("systemd: a stop is a success", stops(&root))?;
    root.shell("systemctl start sluice")?;
    follow(&root, &document, &["Removing"], checks)?;
    checks.hold("systemd: what was recorded is left after a purge", kept(&root))
}

fn active(root: &Root) -> Result<(), String> {
    root.shell("systemctl is-active --quiet sluice || { systemctl status sluice; journalctl -n 30 -u sluice; exit 1; }")
}

/// systemd passes over parts of a sandbox that a machine does not have. These must be there: the system call filter, a file
/// system that cannot be written but for the service's own folder; and no thread holds a capability any more.
fn confined(root: &Root) -> Result<(), String> {
    root.shell(
        "pid=$(systemctl show --property=MainPID --value sluice)
         grep -q '^Seccomp:[[:space:]]*2$' /proc/$pid/status
         grep -q ' / [^ ]* ro[, ]' /proc/$pid/mounts
         grep -q ' /var/lib/sluice [^ ]* rw[, ]' /proc/$pid/mounts
         test \"$(cat /proc/$pid/task/*/status | grep '^Cap[IPEA]' | grep -vc '0000000000000000$')\" = 0",
    )
}

/// RestartSec= is one second; the start of one that was killed takes as long as any.
fn comes_back(root: &Root) -> Result<(), String> {
    root.shell(
        "systemctl kill --signal=KILL sluice
         for second in $(seq 30); do
             sleep 1
             if systemctl is-active --quiet sluice && [ \"$(systemctl show --property=NRestarts --value sluice)\" = 1 ]; then
                 exit 0
             fi
         done
         systemctl status sluice
         exit 1",
    )
}

/// The drop-in that takes every privilege away, put where the manual says.
fn with_drop_in(root: &Root) -> Result<(), String> {
    root.shell(
        "install -D -m 644 /usr/share/sluice/sluice.service.d/20-ledger.conf.example \
             /etc/systemd/system/sluice.service.d/20-ledger.conf
         systemctl daemon-reload
         systemctl restart sluice
         test -z \"$(systemctl show --property=CapabilityBoundingSet --value sluice)\"",
    )
}

fn stops(root: &Root) -> Result<(), String> {
    root.shell(
        "systemctl stop sluice
         test \"$(systemctl show --property=Result --value sluice)\" = success
         test \"$(systemctl show --property=ExecMainStatus --value sluice)\" = 0",
    )
}

/// The commands of these sections, as they stand in the document.
fn follow(root: &Root, document: &Document, sections: &[&str], checks: &mut Checks) -> Result<(), String> {
    for section in sections {
        let blocks = document.blocks(section)?;
        for (index, block) in blocks.iter().enumerate() {
            checks.hold(&format!("\"{section}\", block {} of {}", index + 1, blocks.len()), root.shell(block))?;
        }
    }
    Ok(())
}

fn installed(root: &Root) -> Result<(), String> {
    root.shell("test \"$(id -gn sluice)\" = sluice")?;
    root.shell("test \"$(stat -c '%U:%G %a' /etc/sluice)\" = 'root:sluice 750'")?;
    root.shell("test -s /usr/share/man/man1/sluice-run.1.gz && test -s /usr/share/man/man8/sluice-tune.8.gz")?;
    root.shell("test -s /usr/share/bash-completion/completions/sluice && bash -n /usr/share/bash-completion/completions/sluice")?;
    root.shell("sluice check /etc/sluice/default.toml && sluice-tune help >/dev/null && dpkg --verify sluice")
}

/// What systemctl prints when it finds what was asked for, "enabled", comes with exit code 0; all else with 1.
fn not_enabled(root: &Root) -> Result<(), String> {
    root.shell("! systemctl is-enabled --quiet sluice.service && ! systemctl is-enabled --quiet sluice-tune.service")
}

fn enabled(root: &Root) -> Result<(), String> {
    root.shell("systemctl is-enabled --quiet sluice.service")
}

fn kept(root: &Root) -> Result<(), String> {
    root.shell("test -n \"$(ls -A /var/lib/sluice)\" && test -s /etc/sluice/sluice.toml && id sluice")?;
    root.shell("test ! -e /usr/bin/sluice && test ! -e /etc/sluice/default.toml")
}

/// What systemd's own checker says of the units, alone and with each drop-in of ours.
fn units(root: &Root, checks: &mut Checks) -> Result<(), String> {
    // It warns with exit code 0.
    let verify = "systemd-analyze verify --man=no sluice.service sluice-tune.service >/run/verify 2>&1 || echo failed >>/run/verify; \
                  test ! -s /run/verify || { cat /run/verify; exit 1; }";
    let security =
        |most: u32| format!("systemd-analyze security --offline=true --no-pager --threshold={most} sluice.service");
    checks.hold("systemd-analyze verify", root.shell(verify))?;
    checks.hold("systemd-analyze security", root.shell(&security(EXPOSURE_MAX)))?;
    for (name, most) in DROP_INS {
        let there = format!("/etc/systemd/system/sluice.service.d/{name}.conf");
        root.shell(&format!("install -D -m 644 /usr/share/sluice/sluice.service.d/{name}.conf.example {there}"))?;
        checks.hold(&format!("systemd-analyze verify with {name}"), root.shell(verify))?;
        checks.hold(&format!("systemd-analyze security with {name}"), root.shell(&security(most)))?;
        root.shell(&format!("rm {there}"))?;
    }
    Ok(())
}

/// The unit's commands, run as the unit says; the document's commands that look at a running service meanwhile.
fn serve(root: &Root, document: &Document, checks: &mut Checks) -> Result<(), String> {
    let unit = Unit::read(&root.path("usr/lib/systemd/system/sluice.service"))?;
    let limits = service::limits(&unit)?;
    service::folders(root, &unit)?;
    for command in unit.commands("ExecStartPre")? {
        checks.hold("ExecStartPre=", service::once(root, &unit, &limits, &command))?;
    }
    let command = unit.command("ExecStart")?;
    let mut service = Service::start(root, &unit, &limits, &command)?;
    checks.hold("READY=1 comes", service.await_word("READY=1"))?;
    checks.hold("it runs with the unit's user, limits and capabilities", service.status(&unit, &limits))?;
    checks.hold("WATCHDOG=1 comes", service.await_word("WATCHDOG=1"))?;
    follow(root, document, &["Seeing that it works"], checks)?;
    checks.hold("SIGTERM ends it with 0, STOPPING=1 before", service.stop())?;
    checks.hold("the last status is written", root.shell("test -s /run/sluice/last-status.json"))
}
