//! `cargo xtask dist [--out DIR]`: what a release is made of. The binary, its manual pages and completions, a Debian
//! package, a tarball of the same tree, the binary's line tables, and SHA256SUMS.
//!
//! The same sources, toolchain and SOURCE_DATE_EPOCH (without it: the time of the last commit) give the same bytes.

use std::path::{Path, PathBuf};

use crate::shell;
use manifest::Metadata;
use tree::Tree;

mod deb;
mod manifest;
mod notices;
mod pages;
mod tree;

/// Arguments of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Args {
    /// Where the package, the tarball and their sums go.
    #[arg(long, value_name = "DIR", default_value = "out/dist")]
    out: PathBuf,
    /// Features of the binary beyond its own, with commas between them ("parquet,object-store").
    #[arg(long, value_name = "LIST")]
    features: Option<String>,
    /// Pack this binary in place of building one.
    #[arg(long, value_name = "FILE", conflicts_with = "features")]
    binary: Option<PathBuf>,
    /// Number of this packaging of one version: raise it to install another build of the same version.
    #[arg(long, default_value_t = 1)]
    revision: u32,
}

/// What one assembly needs to know.
pub struct Recipe {
    /// The binary to pack, as it was built.
    pub binary: PathBuf,
    /// The Debian revision.
    pub revision: u32,
    /// Packed for a test: little compression, no third-party notices.
    pub quick: bool,
}

/// Where the files of one assembly are.
pub struct Built {
    /// The Debian package.
    pub package: PathBuf,
    /// The tarball.
    pub tarball: PathBuf,
}

/// Runs the task.
pub fn run(args: Args) -> Result<(), String> {
    crate::setup::ensure()?;
    let binary = match args.binary {
        Some(binary) => binary,
        None => build(args.features.as_deref())?,
    };
    let out = shell::root().join(args.out);
    let built = assemble(&Recipe { binary, revision: args.revision, quick: false }, &out)?;
    println!("dist: {}", built.package.display());
    println!("dist: {}", built.tarball.display());
    lint(&built.package)
}

/// Builds the release binary in a folder of its own (its flags differ from `cargo build --release`) and returns its path.
fn build(features: Option<&str>) -> Result<PathBuf, String> {
    let target = shell::root().join("target/dist/build");
    let mut cargo = shell::cargo(&["build", "--release", "--locked", "-p", "sluice", "--bin", "sluice"]);
    cargo.arg("--target-dir").arg(&target).env("RUSTFLAGS", remap());
    if let Some(features) = features {
        cargo.args(["--features", features]);
    }
    shell::run(&mut cargo)?;
    Ok(target.join("release/sluice"))
}

/// Flags that keep the builder's folders out of the binary, so that two machines build the same.
fn remap() -> String {
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    for (from, to) in [(shell::cargo_home(), "/cargo"), (Some(shell::root()), "/sluice")] {
        if let Some(from) = from {
            flags.push_str(&format!(" --remap-path-prefix={}={to}", from.display()));
        }
    }
    flags.trim().to_string()
}

/// Makes package, tarball, line tables and SHA256SUMS in `out`, whose former content goes.
pub fn assemble(recipe: &Recipe, out: &Path) -> Result<Built, String> {
    let metadata = Metadata::read()?;
    let epoch = source_date_epoch()?;
    let name = format!("sluice-{}-{}", metadata.version, std::env::consts::ARCH);
    std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let stage = out.join("stage");
    let tree = Tree::new(stage.join(&name))?;
    let tables = out.join(format!("{name}.debug"));
    binary(recipe, &tree, &tables)?;
    generated(recipe, &tree)?;
    for asset in metadata.assets()? {
        tree.put(&asset.source, &asset.dest, asset.mode)?;
    }
    pages::put(&tree)?;
    pages::check(&tree)?;
    documents(recipe, &metadata, &tree, epoch)?;
    tree.compress_manual()?;
    // For the permissions of its folders.
    tree.files()?;
    let tarball = out.join(format!("{name}-linux.tar.gz"));
    pack_tarball(recipe, &stage, &name, &tarball, epoch)?;
    let package = deb::pack(recipe, &metadata, &tree, out, epoch)?;
    shell::remove_folder(&stage)?;
    let made = [Some(&package), Some(&tarball), Some(&tables).filter(|_| !recipe.quick)];
    sums(out, made.into_iter().flatten())?;
    Ok(Built { package, tarball })
}

/// The binary without its line tables, which go into a file beside the package: `gdb` and `addr2line` take it as it is.
fn binary(recipe: &Recipe, tree: &Tree, tables: &Path) -> Result<(), String> {
    tree.put(&recipe.binary, "usr/bin/sluice", 0o755)?;
    let ours = tree.path("usr/bin/sluice");
    shell::run(shell::command("strip").args(["--strip-unneeded", "--remove-section=.comment"]).arg(&ours))?;
    if recipe.quick {
        return Ok(());
    }
    let mut keep = shell::command("objcopy");
    shell::run(keep.args(["--only-keep-debug", "--compress-debug-sections"]).args([&recipe.binary, tables]))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(tables);
    shell::run(shell::command("objcopy").arg(link).arg(&ours))
}

/// Manual pages and completions, as the binary itself writes them.
fn generated(recipe: &Recipe, tree: &Tree) -> Result<(), String> {
    let generated = tree.path("generated");
    let mut reference = shell::command(&recipe.binary);
    reference.arg("__reference").arg("--man").arg(tree.path("usr/share/man/man1"));
    reference.arg("--completions").arg(&generated);
    shell::output(&mut reference)?;
    for (file, dest) in [
        ("sluice.bash", "usr/share/bash-completion/completions/sluice"),
        ("_sluice", "usr/share/zsh/vendor-completions/_sluice"),
        ("sluice.fish", "usr/share/fish/vendor_completions.d/sluice.fish"),
    ] {
        tree.put(&generated.join(file), dest, 0o644)?;
    }
    shell::remove_folder(&generated)
}

/// Changelogs, the copyright, and the licences of what is linked in.
fn documents(recipe: &Recipe, metadata: &Metadata, tree: &Tree, epoch: u64) -> Result<(), String> {
    let doc = pages::FOLDER;
    tree.put(&shell::root().join("LICENSE"), &format!("{doc}/LICENSE"), 0o644)?;
    tree.write(&format!("{doc}/copyright"), &deb::copyright(metadata), 0o644)?;
    tree.put(&shell::root().join("CHANGELOG.md"), &format!("{doc}/changelog"), 0o644)?;
    tree.compress(&format!("{doc}/changelog"))?;
    let date = shell::output(shell::command("date").args(["-u", "-R", "-d", &format!("@{epoch}")]))?;
    tree.write(&format!("{doc}/changelog.Debian"), &deb::changelog(recipe, metadata, date.trim()), 0o644)?;
    tree.compress(&format!("{doc}/changelog.Debian"))?;
    if !recipe.quick {
        tree.write(&format!("{doc}/third-party-licences"), &notices::text()?, 0o644)?;
        tree.compress(&format!("{doc}/third-party-licences"))?;
    }
    Ok(())
}

/// The same tree without `etc`, which is the site's: unpacked over an older one it must not touch a configuration.
fn pack_tarball(recipe: &Recipe, stage: &Path, name: &str, tarball: &Path, epoch: u64) -> Result<(), String> {
    let mut tar = shell::command("tar");
    tar.arg("--create").arg("--file").arg(tarball).arg("--directory").arg(stage);
    tar.arg(if recipe.quick { "--use-compress-program=gzip -1n" } else { "--use-compress-program=gzip -9n" });
    tar.args(["--sort=name", "--format=gnu", "--numeric-owner"]);
    tar.args(["--owner=0", "--group=0", &format!("--mtime=@{epoch}"), &format!("--exclude={name}/etc"), name]);
    shell::run(&mut tar)
}

fn sums<'a>(out: &Path, made: impl Iterator<Item = &'a PathBuf>) -> Result<(), String> {
    let names = made.filter_map(|path| path.file_name());
    let sums = shell::output(shell::command("sha256sum").current_dir(out).arg("--").args(names))?;
    shell::write(&out.join("SHA256SUMS"), &sums)
}

/// The seconds that every file of a release is dated with.
fn source_date_epoch() -> Result<u64, String> {
    let told = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(told) => told,
        Err(_) => shell::output(shell::command("git").args(["log", "-1", "--format=%ct"]))
            .map_err(|error| format!("{error}: set SOURCE_DATE_EPOCH, where there is no git"))?,
    };
    let told = told.trim();
    told.parse().map_err(|_| format!("SOURCE_DATE_EPOCH is \"{told}\": seconds since 1970 are wanted"))
}

/// What Debian's own checker says of the package, where there is one. Its errors and warnings fail; what is meant is named in
/// deploy/debian/lintian-overrides.
fn lint(package: &Path) -> Result<(), String> {
    if shell::find("lintian").is_none() {
        println!("dist: lintian is not installed: the package is not checked by it");
        return Ok(());
    }
    // As root it wants to be told that this is meant.
    let root: &[&str] = if shell::is_root() { &["--allow-root"] } else { &[] };
    shell::run(shell::command("lintian").args(root).args(["--fail-on", "error,warning", "--info"]).arg(package))
}
