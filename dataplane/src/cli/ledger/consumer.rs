//! The command of `sluice ledger follow --exec`: it reads ledgers from its descriptor 3, framed as a ledger node frames its meta stream.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::cli::{Exit, Failure, Outcome};
use crate::ledger::follow::Cancel;
use crate::ledger::rpc;
use crate::sys::process;

/// Bytes that the pipe should hold, as a ledger node's reader asks for; the kernel's own limit without privileges.
const PIPE_BYTES: usize = 1 << 20;

/// What stands before the command: the pipe comes as standard input and is moved to descriptor 3.
const REDIRECT: &str = "exec 3<&0 0</dev/null";

/// A running command.
pub struct Consumer {
    command: String,
    pipe: Option<ChildStdin>,
    ended: Receiver<io::Result<ExitStatus>>,
}

impl Consumer {
    /// Starts `command` with the shell. Its standard input is empty; its outputs are ours. When it ends, `cancel` ends the stream.
    pub fn start(command: &str, cancel: Cancel) -> Result<Consumer, Failure> {
        let failed = |error: io::Error| Failure::host(format!("--exec {command:?}: {error}"));
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("{REDIRECT}\n{command}")).stdin(Stdio::piped());
        let mut child = shell.spawn().map_err(failed)?;
        let pipe = child.stdin.take().ok_or_else(|| Failure::host(format!("--exec {command:?}: it has no pipe")))?;
        // One of 64 KiB works too, with more wake-ups.
        let _ = process::set_pipe_bytes(pipe.as_fd(), PIPE_BYTES);
        let (tell, ended) = channel();
        let watch = move |mut child: Child| {
            let _ = tell.send(child.wait());
            cancel.cancel();
        };
        let thread = std::thread::Builder::new().name("sluice-consumer".into());
        thread.spawn(move || watch(child)).map_err(failed)?;
        Ok(Consumer { command: command.into(), pipe: Some(pipe), ended })
    }

    /// Writes a ledger behind its mark; waits where the command is slow, and only this client with it. Whether the command still
    /// reads.
    pub fn write(&mut self, ledger: &[u8]) -> Result<bool, Failure> {
        let Some(pipe) = &mut self.pipe else { return Ok(false) };
        match pipe.write_all(&rpc::mark(ledger.len())).and_then(|()| pipe.write_all(ledger)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::host(format!("--exec {:?}: {error}", self.command))),
        }
    }

    /// Ends the command's stream and waits for the command: how it ended is how the run ends.
    pub fn finish(mut self) -> Outcome {
        self.pipe = None;
        let command = &self.command;
        match self.ended.recv() {
            Ok(Ok(status)) if status.success() => Ok(Exit::Done),
            Ok(Ok(status)) => Err(Failure::host(format!("--exec {command:?}: {status}"))),
            Ok(Err(error)) => Err(Failure::host(format!("--exec {command:?}: {error}"))),
            Err(_) => Err(Failure::host(format!("--exec {command:?}: nobody waits for it"))),
        }
    }
}
