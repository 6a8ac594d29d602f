//! `sluice run` with something of every job: a feed from two files with losses, its store, its ring, a server of that ring,
//! a mirror of it, and a server of ledgers that go on for ever.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluice::cli::stat::get;

use crate::common::mirrors::{Shm, Sluice, tcp_address, until};

/// A feed's name that would be a program where it is taken for markup.
pub const NAME: &str = "<img src=x onerror=alert(1)>";

/// A running appliance and what it leaves behind when dropped.
pub struct Appliance {
    pub sluice: Sluice,
    pub control: SocketAddr,
    pub folder: tempfile::TempDir,
    _rings: [Shm; 2],
}

/// Runs a command of ours in `folder`; it must succeed.
fn done(folder: &Path, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.args(args).current_dir(folder).output().expect("our own program");
    assert!(output.status.success(), "sluice {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Appliance {
    /// Starts it and waits until the files are read and all is quiet but the ledgers.
    pub fn start() -> Appliance {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path();
        done(
            path,
            &["feed", "generate", "--protocol", "deep", "--messages", "20k", "--seed", "7", "--out", "s.pcapng"],
        );
        let losses = ["--loss-a", "0.03", "--loss-b", "0.03", "--seed", "7"];
        done(path, &[&["feed", "split", "s.pcapng", "--out-dir", "."][..], &losses].concat());
        let rings = [Shm::new("page-feed"), Shm::new("page-copy")];
        let control = tcp_address();
        let text = config(path, &rings, &control);
        std::fs::write(path.join("page.toml"), text).expect("writable");
        let sluice = Sluice::start(&["run", path.join("page.toml").to_str().expect("text")]);
        let control = control.parse().expect("an address");
        let appliance = Appliance { sluice, control, folder, _rings: rings };
        until("the files are read and stored, and the mirror has them", || {
            let status = appliance.status()?;
            let (feed, mirror) = (&status["capture"]["feeds"][0], &status["ring"]["mirror"][0]);
            let all = status["capture"]["queues"][0]["received"].as_u64()? > 0
                && status["capture"]["residue"] == 0
                && status["stores"][0]["in_flight"] == 0
                && feed["published"].as_u64()? > 10_000
                && mirror["next"].as_u64()? > feed["published"].as_u64()?
                && status["ledger"]["latest"].as_u64()? > 1;
            all.then_some(())
        });
        appliance
    }

    /// Its status, unless it does not answer.
    pub fn status(&self) -> Option<Value> {
        serde_json::from_str(&get(self.control, "/status").ok()?).ok()
    }

    /// The URL of its page.
    pub fn url(&self) -> String {
        format!("http://{}/", self.control)
    }
}

fn config(folder: &Path, [feed, copy]: &[Shm; 2], control: &str) -> String {
    let (cpu, bind, ledger) = (sluice::sys::cpu::allowed()[0], tcp_address(), tcp_address());
    let (folder, feed, copy) = (folder.display(), feed.text(), copy.text());
    let side = |name: &str, file: &str| {
        format!("{{ name = \"{name}\", source = \"file\", core = \"one\", file = \"{folder}/{file}\" }}")
    };
    let sides = [side("A", "a.pcap"), side("B", "b.pcap")].join(", ");
    format!(
        "core = [{{ name = \"one\", cpu = {cpu} }}]\n\
         [[feed]]\nname = \"{NAME}\"\nprotocol = \"iex-tp\"\ncore = \"one\"\nstore = \"main\"\npublish = \"{feed}\"\nside = [{sides}]\n\
         [[store]]\nname = \"main\"\npath = \"{folder}/store\"\ncore = \"one\"\nsegment = \"16MiB\"\nflush = \"50ms\"\nretain = \"64MiB\"\nretain_age = \"90min\"\nfree_min = \"1MiB\"\n\
         [[ring.serve]]\nname = \"out\"\ncore = \"one\"\nring = \"{feed}\"\nbind = \"{bind}\"\n\
         [[ring.mirror]]\nname = \"copy\"\ncore = \"one\"\nsource = \"{bind}\"\nring = \"{copy}\"\nfrom = \"oldest\"\nreconnect = \"10ms\"\n\
         [ledger.serve]\ncore = \"one\"\nlisten = \"{ledger}\"\nsynthetic_interval = \"200ms\"\nsynthetic_size = \"20KiB\"\nretention = 500\nretention_bytes = 0\ndata_dir = \"{folder}/ledgers\"\n\
         [control]\nlisten = \"{control}\"\n"
    )
}
