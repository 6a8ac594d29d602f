//! `cargo xtask bpf [--check]`: builds the XDP program, or proves that the committed object is what the sources build.
//!
//! The object is committed so that `cargo build` needs stable Rust alone. Building it needs a compiler that has the
//! source of its own `core` beside it, and an `llc` at least as new as that compiler's LLVM (docs in `bpf/README.md`).
//!
//! The rule of `--check`: sources changed since the object was built: it is stale. Same toolchain: every program
//! section, map and global must come out identical. Another toolchain: both objects must give the same verdicts under
//! `BPF_PROG_TEST_RUN` (the `verdicts` tests of `tests/net`, as root).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sections that make up the program; names and debug leftovers may differ between builds, these may not.
const SECTIONS: [&str; 6] = ["xdp", "xdp.frags", "maps", ".rodata", "license", ".bss"];
const TARGET: &str = "bpfel-unknown-none";
/// How far above the compiler's LLVM an installed `llc-N` is looked for; bitcode is readable by later versions only.
const LLC_MAJORS_AHEAD: u32 = 4;
/// Set by cargo and rustup for their child; they would choose another compiler for ours.
const LEAKED: [&str; 9] = [
    "CARGO",
    "RUSTC",
    "RUSTUP_TOOLCHAIN",
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET",
];

/// Builds `bpf/sluice.bpf.o` and its sidecar, or with `check` compares without writing either.
pub fn run(check: bool) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent directory")?;
    let bpf = root.join("bpf");
    let sources = source_hash(&bpf)?;
    if check {
        let sidecar = read_sidecar(&bpf)?;
        check_fresh(&bpf, &sidecar, &sources)?;
        let toolchain = Toolchain::find()?;
        let built = toolchain.build(&bpf)?;
        return check_same(root, &bpf, &sidecar, &toolchain, &built);
    }
    let toolchain = Toolchain::find()?;
    println!("bpf: building with {}", toolchain.identity);
    let built = toolchain.build(&bpf)?;
    let object = read(&built)?;
    write(&object_path(&bpf), &object)?;
    write(&sidecar_path(&bpf), sidecar(&sources, &hash_hex(&object), &toolchain.identity).as_bytes())?;
    println!("bpf: wrote {} ({} bytes)", object_path(&bpf).display(), object.len());
    Ok(())
}

fn object_path(bpf: &Path) -> PathBuf {
    bpf.join("sluice.bpf.o")
}

fn sidecar_path(bpf: &Path) -> PathBuf {
    bpf.join("sluice.bpf.toml")
}

fn sidecar(sources: &str, object: &str, toolchain: &str) -> String {
    format!(
        "# Written by `cargo xtask bpf` together with sluice.bpf.o; `cargo xtask bpf --check` compares.\n\
         sources = \"{sources}\"\nobject = \"{object}\"\ntoolchain = \"{toolchain}\"\n"
    )
}

fn read_sidecar(bpf: &Path) -> Result<BTreeMap<String, String>, String> {
    let path = sidecar_path(bpf);
    let text = String::from_utf8(read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// The committed object belongs to the committed sources.
fn check_fresh(bpf: &Path, sidecar: &BTreeMap<String, String>, sources: &str) -> Result<(), String> {
    if sidecar.get("sources").map(String::as_str) != Some(sources) {
        return Err(
            "bpf: the sources changed since bpf/sluice.bpf.o was built: run `cargo xtask bpf` and commit".into()
        );
    }
    let object = hash_hex(&read(&object_path(bpf))?);
    if sidecar.get("object") != Some(&object) {
        return Err("bpf: bpf/sluice.bpf.o is not the object that sluice.bpf.toml names: run `cargo xtask bpf`".into());
    }
    Ok(())
}

/// The committed object is what the sources build.
fn check_same(
    root: &Path,
    bpf: &Path,
    sidecar: &BTreeMap<String, String>,
    toolchain: &Toolchain,
    built: &Path,
) -> Result<(), String> {
    let committed = object_path(bpf);
    if sidecar.get("toolchain") == Some(&toolchain.identity) {
        let differing = differing_sections(&committed, built)?;
        if !differing.is_empty() {
            return Err(format!(
                "bpf: same toolchain ({}), but {} differ between {} and {}: run `cargo xtask bpf` and commit",
                toolchain.identity,
                differing.join(", "),
                committed.display(),
                built.display()
            ));
        }
        println!("bpf: {} is what the sources build ({})", committed.display(), toolchain.identity);
        return Ok(());
    }
    println!(
        "bpf: built with {}, here is {}: comparing verdicts",
        sidecar.get("toolchain").map_or("an unknown toolchain", String::as_str),
        toolchain.identity
    );
    if !is_root() {
        let told = "the verdict table of two toolchains' objects needs root (BPF_PROG_TEST_RUN)";
        if std::env::var("CI").is_ok_and(|value| value == "true") {
            return Err(format!("bpf: under CI=true this may not be missing: {told}"));
        }
        println!("SKIPPED bpf --check: {told}");
        return Ok(());
    }
    for object in [committed.as_path(), built] {
        run_verdicts(root, object)?;
    }
    println!("bpf: both objects give the same verdicts");
    Ok(())
}

fn run_verdicts(root: &Path, object: &Path) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let object = object.canonicalize().map_err(|e| format!("{}: {e}", object.display()))?;
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["test", "--quiet", "-p", "sluice", "--test", "net", "verdicts::"]);
    command.env("SLUICE_BPF_OBJECT", &object);
    finish(command, &format!("the verdict table on {}", object.display()))
}

/// A compiler with the source of its `core`, the cargo that goes with it, and an `llc` that reads its bitcode.
struct Toolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    llc: PathBuf,
    /// Compiler and code generator with their versions: what decides whether two builds must be identical.
    identity: String,
}

impl Toolchain {
    /// `$BPF_RUSTC`, then rustup's nightly and stable toolchains, then the system's compiler: the first that has its
    /// own source and a code generator.
    fn find() -> Result<Toolchain, String> {
        let mut tried = Vec::new();
        for rustc in candidates() {
            match Toolchain::of(&rustc) {
                Ok(toolchain) => return Ok(toolchain),
                Err(why) => tried.push(format!("  {}: {why}", rustc.display())),
            }
        }
        Err(format!(
            "bpf: no Rust compiler here can build for {TARGET}:\n{}\ninstall one of\n  \
             apt-get install rustc-web cargo-web rust-web-src llvm-22        (Debian 12 and later)\n  \
             rustup toolchain install nightly --component rust-src --component llvm-tools",
            tried.join("\n")
        ))
    }

    fn of(rustc: &Path) -> Result<Toolchain, String> {
        let sysroot = PathBuf::from(output(Command::new(rustc).args(["--print", "sysroot"]))?.trim());
        // Source of another version does not compile (measured), so only the compiler's own counts.
        let source = sysroot.join("lib/rustlib/src/rust/library/Cargo.lock");
        if !source.is_file() {
            return Err(format!("no {} (the rust-src component)", source.display()));
        }
        let version = output(Command::new(rustc).arg("-vV"))?;
        let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let llvm = field("LLVM version:").ok_or("rustc -vV names no LLVM version")?.to_owned();
        let host = field("host:").ok_or("rustc -vV names no host")?;
        let llc = find_llc(&sysroot, host, &llvm)?;
        let llc_version = llc_version(&llc)?;
        let name = version.lines().next().unwrap_or("rustc").trim();
        let beside = rustc.with_file_name("cargo");
        Ok(Toolchain {
            rustc: rustc.to_owned(),
            cargo: if beside.is_file() { beside } else { "cargo".into() },
            identity: format!("{name}, LLVM {llvm}, llc {llc_version}"),
            llc,
        })
    }

    /// Builds under `bpf/target`; the path of the object.
    fn build(&self, bpf: &Path) -> Result<PathBuf, String> {
        let target = bpf.join("target");
        let mut command = Command::new(&self.cargo);
        for name in LEAKED {
            command.env_remove(name);
        }
        command.current_dir(bpf).args(["build", "--quiet", "--release", "--locked", "--bin", "sluice"]);
        command.args(["--target", TARGET, "-Z", "build-std=core"]).arg("--target-dir").arg(&target);
        // Stable compilers take -Z flags only when told that they build a standard library.
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", &self.rustc).env("LLC", &self.llc);
        command.env("CARGO_ENCODED_RUSTFLAGS", format!("-Clinker={}", bpf.join("linker.sh").display()));
        finish(command, "building the XDP program")?;
        Ok(target.join(TARGET).join("release/sluice"))
    }
}

fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("BPF_RUSTC") {
        return vec![named.into()];
    }
    let mut found = Vec::new();
    let list = output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for channel in ["nightly", "stable"] {
        for name in names.iter().filter(|name| name.starts_with(channel)) {
            let mut command = Command::new("rustup");
            command.args(["which", "--toolchain", name, "rustc"]);
            found.extend(output(&mut command).map(|path| PathBuf::from(path.trim())));
        }
    }
    found.push("/usr/bin/rustc".into());
    found
}

/// `$BPF_LLC`, then the compiler's own (component llvm-tools), then the system's `llc-N` with N from the compiler's
/// LLVM upwards.
fn find_llc(sysroot: &Path, host: &str, llvm: &str) -> Result<PathBuf, String> {
    let major = major_of(llvm).ok_or_else(|| format!("LLVM version {llvm} is no number"))?;
    let mut places: Vec<PathBuf> = std::env::var_os("BPF_LLC").map(PathBuf::from).into_iter().collect();
    places.push(sysroot.join("lib/rustlib").join(host).join("bin/llc"));
    for newer in major..=major + LLC_MAJORS_AHEAD {
        places.push(format!("/usr/bin/llc-{newer}").into());
        places.push(format!("/usr/lib/llvm-{newer}/bin/llc").into());
    }
    let usable = |path: &PathBuf| llc_version(path).ok().and_then(|version| major_of(&version)) >= Some(major);
    places.into_iter().find(usable).ok_or_else(|| {
        format!("no llc of LLVM {major} or later (apt-get install llvm-{major}, or the llvm-tools component)")
    })
}

fn llc_version(llc: &Path) -> Result<String, String> {
    let text = output(Command::new(llc).arg("--version"))?;
    let version = text.split("LLVM version ").nth(1).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_owned).ok_or_else(|| format!("{} --version names no version", llc.display()))
}

fn major_of(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Files that decide the object, by path: manifests, lock, linker script, program, shared types.
fn source_hash(bpf: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    for top in ["Cargo.toml", "Cargo.lock", "linker.sh", "src", "common"] {
        collect(&bpf.join(top), &mut files)?;
    }
    files.sort();
    let mut hash = Fnv::new();
    for file in files {
        let name = file.strip_prefix(bpf).map_err(|e| e.to_string())?.display().to_string();
        let bytes = read(&file)?;
        hash.add(name.as_bytes());
        hash.add(&(bytes.len() as u64).to_le_bytes());
        hash.add(&bytes);
    }
    Ok(hash.hex())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))? {
            collect(&entry.map_err(|e| format!("{}: {e}", path.display()))?.path(), files)?;
        }
        return Ok(());
    }
    files.push(path.to_owned());
    Ok(())
}

/// FNV-1a, 64 bits: tells an edit, which is all that is asked of it here.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}

fn hash_hex(bytes: &[u8]) -> String {
    let mut hash = Fnv::new();
    hash.add(bytes);
    hash.hex()
}

/// Names of the program sections (and of their relocations) that differ between two objects.
fn differing_sections(a: &Path, b: &Path) -> Result<Vec<String>, String> {
    let elf_a = sections(&read(a)?).ok_or_else(|| format!("{}: not a readable ELF64 object", a.display()))?;
    let elf_b = sections(&read(b)?).ok_or_else(|| format!("{}: not a readable ELF64 object", b.display()))?;
    if !elf_a.contains_key("xdp") {
        return Err(format!("{}: has no program section \"xdp\"", a.display()));
    }
    let names = SECTIONS.iter().map(|name| (*name).to_owned()).chain(SECTIONS.iter().map(|name| format!(".rel{name}")));
    Ok(names.filter(|name| elf_a.get(name) != elf_b.get(name)).collect())
}

/// Section bytes by name. A relocation's symbol is given by its name, since symbol numbers may differ; `None` when
/// the object is malformed.
fn sections(elf: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    const SHT_REL: u64 = 9;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = elf.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    if elf.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let (table, entry, count) = (number(40, 8)? as usize, number(58, 2)? as usize, number(60, 2)? as usize);
    let header = |index: usize| table.checked_add(index.checked_mul(entry)?);
    let body = |index: usize| -> Option<&[u8]> {
        let at = header(index)?;
        let (offset, bytes) = (number(at + 24, 8)? as usize, number(at + 32, 8)? as usize);
        elf.get(offset..offset.checked_add(bytes)?)
    };
    let text = |strings: &[u8], at: usize| -> Option<String> {
        let rest = strings.get(at..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let names = body(number(62, 2)? as usize)?;
    let mut found = BTreeMap::new();
    for index in 1..count {
        let at = header(index)?;
        let name = text(names, number(at, 4)? as usize)?;
        let mut bytes = body(index)?.to_vec();
        if number(at + 4, 4)? == SHT_REL {
            let symbols = number(at + 40, 4)? as usize;
            let strings = body(number(header(symbols)? + 40, 4)? as usize)?;
            bytes = relocations(&bytes, body(symbols)?, |offset| text(strings, offset))?;
        }
        found.insert(name, bytes);
    }
    Some(found)
}

/// Each relocation as its place, its type and the name of its symbol.
fn relocations(rel: &[u8], symbols: &[u8], text: impl Fn(usize) -> Option<String>) -> Option<Vec<u8>> {
    let mut named = Vec::new();
    for entry in rel.as_chunks::<16>().0 {
        named.extend_from_slice(&entry[..12]);
        let symbol = u32::from_le_bytes(entry[12..16].try_into().ok()?) as usize;
        let name_at = symbols.get(symbol * 24..symbol * 24 + 4)?;
        named.extend_from_slice(text(u32::from_le_bytes(name_at.try_into().ok()?) as usize)?.as_bytes());
        named.push(0);
    }
    Some(named)
}

fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let done = command.output().map_err(|e| format!("{program}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&done.stderr).trim()));
    }
    String::from_utf8(done.stdout).map_err(|e| format!("{program}: {e}"))
}

fn finish(mut command: Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{what}: {}: {e}", command.get_program().to_string_lossy()))?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}
