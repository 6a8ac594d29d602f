//! `sluice feed generate`: Write a deterministic, spec-true DEEP or TOPS session as pcapng.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::fields::counted;
use crate::cli::{Exit, Failure, Outcome};
use crate::config::parse_rate;
use crate::feed::generate::{Carriage, Generator, MESSAGES_PER_RUN_MIN, Product, Settings};
use crate::units::{NANOS_PER_SECOND, SIDES_MAX, Side};
use crate::wire::packet::LinkType;
use crate::wire::pcap::{InterfaceName, PcapngWriter};

/// Packets between two looks at the progress bar.
const PROGRESS_PACKETS: u64 = 4_096;
/// Written to the file in pieces of this size: one system call for some thousand packets.
const OUTPUT_BYTES: usize = 256 * 1024;
/// What the interfaces of the capture are called.
const INTERFACES: [&str; SIDES_MAX] = ["A", "B", "C", "D"];

/// Arguments of `sluice feed generate`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The product to speak.
    #[arg(long, value_enum)]
    pub protocol: Protocol,
    /// Messages in the whole session, exactly; takes k and m.
    #[arg(long, value_parser = messages, value_name = "N")]
    pub messages: u64,
    /// Seed of everything that is chosen: the same seed gives the same file.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// Restarts inside the session: a silence, then sequence 1 and offset 0 again under the same session id.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub restarts: u32,
    /// Where the capture goes: pcapng, gzip where the name ends in .gz; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub out: String,
    /// Packets a second while it trades, in the session's own time; takes k and m.
    #[arg(long, default_value = "20k", value_parser = rate, value_name = "R")]
    pub rate: u64,
    /// Time of the first packet, UTC.
    #[arg(long, default_value = "2024-03-15T13:29:50Z", value_parser = time, value_name = "TIME")]
    pub start: i64,
    /// Session id, decimal or 0x….
    #[arg(long, default_value = "0x4b210000", value_parser = number, value_name = "ID")]
    pub session: u32,
    /// Channel.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub channel: u32,
    /// One idle stretch in this many packets on average; 0 for none.
    #[arg(long, default_value_t = 1_000, value_name = "PACKETS")]
    pub idle_every: u64,
    /// Copies of the feed, each on an interface of its own in the file: 1 is side A alone.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub sides: u8,
    /// Destination groups, one for each side [default: 239.192.0.1, 239.192.0.2, …].
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS")]
    pub group: Vec<Ipv4Addr>,
    /// Destination ports, one for each side [default: 10378].
    #[arg(long, value_delimiter = ',', value_name = "PORT")]
    pub port: Vec<u16>,
    /// Source addresses, one for each side [default: 198.51.100.1, 198.51.100.2, …].
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS")]
    pub source: Vec<Ipv4Addr>,
    /// Print what was written as one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// `--protocol`.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// DEEP 1.0.
    Deep,
    /// TOPS 1.6.
    Tops,
}

/// How many messages; takes k and m.
fn messages(text: &str) -> Result<u64, String> {
    let least = MESSAGES_PER_RUN_MIN;
    let wrong = format!("write how many, at least {least} a run: for example \"{least}\", \"20k\" or \"1.5m\"");
    let messages = parse_rate(text).map_err(|_| format!("\"{text}\" is not a count; {wrong}"))?;
    whole(text, messages)
}

/// Whole packets a second; takes k and m.
fn rate(text: &str) -> Result<u64, String> {
    whole(text, parse_rate(text)?)
}

fn whole(text: &str, number: f64) -> Result<u64, String> {
    // Beyond 2^53 not every whole number is a float.
    let whole = number.fract() == 0.0 && number < (1u64 << 53) as f64;
    whole.then_some(number as u64).ok_or_else(|| format!("\"{text}\" is not a whole number"))
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}: write a decimal number or 0x and hexadecimal digits, below 2^32"))
}

fn time(text: &str) -> Result<i64, String> {
    let time: SystemTime =
        humantime::parse_rfc3339_weak(text).map_err(|error| format!("{error}: write it as 2024-03-15T13:29:50Z"))?;
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| "a capture's stamps begin at 1970".to_string())?;
    i64::try_from(since.as_nanos()).map_err(|_| "beyond the year 2262".to_string())
}

/// What was written.
#[derive(Default)]
struct Written {
    packets: u64,
    heartbeats: u64,
    messages: u64,
    bytes: u64,
    runs: u32,
    first_ns: i64,
    last_ns: i64,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let generator =
        Generator::new(settings(&args)?).map_err(|error| Failure::usage(format!("feed generate: {error}")))?;
    let host = |error: io::Error| Failure::host(format!("feed generate: {}: {error}", args.out));
    let written = match args.out.as_str() {
        "-" => write(generator, &args, io::stdout().lock(), &host)?.0,
        path => {
            let file = BufWriter::with_capacity(OUTPUT_BYTES, File::create(path).map_err(host)?);
            if path.ends_with(".gz") {
                let (written, gzip) = write(generator, &args, GzEncoder::new(file, Compression::default()), &host)?;
                gzip.finish().and_then(|mut file| file.flush()).map_err(host)?;
                written
            } else {
                write(generator, &args, file, &host)?.0
            }
        }
    };
    report(&args, &written);
    Ok(Exit::Done)
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let product = match args.protocol {
        Protocol::Deep => Product::Deep,
        Protocol::Tops => Product::Tops,
    };
    for (name, given) in [("group", args.group.len()), ("port", args.port.len()), ("source", args.source.len())] {
        if given > 1 && given != usize::from(args.sides) {
            let sides = args.sides;
            return Err(Failure::usage(format!(
                "feed generate: --{name} has {given} values for {sides} sides: give one, or one for each side"
            )));
        }
    }
    let sides = (0..args.sides).map(Side).map(|side| {
        let usual = Carriage::of(side);
        // One value stands for every side.
        let at = |given: usize| side.index().min(given.saturating_sub(1));
        Carriage {
            source: args.source.get(at(args.source.len())).copied().unwrap_or(usual.source),
            source_port: usual.source_port,
            group: args.group.get(at(args.group.len())).copied().unwrap_or(usual.group),
            port: args.port.get(at(args.port.len())).copied().unwrap_or(usual.port),
        }
    });
    Ok(Settings {
        rate: args.rate,
        start_ns: args.start,
        session: args.session,
        channel: args.channel,
        restarts: args.restarts,
        idle_every: args.idle_every,
        sides: sides.collect(),
        ..Settings::new(product, args.messages, args.seed)
    })
}

/// Writes the session; gives the output back.
fn write<W: Write>(
    mut generator: Generator,
    args: &Args,
    out: W,
    host: &dyn Fn(io::Error) -> Failure,
) -> Result<(Written, W), Failure> {
    let interfaces: Vec<InterfaceName<'_>> = INTERFACES
        .iter()
        .take(usize::from(args.sides))
        .map(|name| InterfaceName { name, link: LinkType::Ethernet })
        .collect();
    let mut writer = PcapngWriter::new(out, &interfaces).map_err(host)?;
    let bar = progress(args.messages);
    let mut written = Written::default();
    while let Some(packet) = generator.next_packet() {
        let frame_bytes = packet.frame.len() as u32;
        writer.packet(u32::from(packet.side.0), packet.capture_ns, frame_bytes, packet.frame).map_err(host)?;
        if written.packets == 0 {
            written.first_ns = packet.capture_ns;
        }
        written.last_ns = packet.capture_ns;
        written.packets += 1;
        written.bytes += u64::from(frame_bytes);
        written.runs = packet.run + 1;
        if packet.side == Side::A {
            written.heartbeats += u64::from(packet.count == 0);
            written.messages += u64::from(packet.count);
        }
        if written.packets.is_multiple_of(PROGRESS_PACKETS) {
            bar.set_position(written.messages);
        }
    }
    bar.finish_and_clear();
    Ok((written, writer.finish().map_err(host)?))
}

fn progress(messages: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} messages, {eta} left");
    ProgressBar::new(messages).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn report(args: &Args, written: &Written) {
    let seconds = (written.last_ns - written.first_ns) as f64 / NANOS_PER_SECOND as f64;
    if args.json {
        let report = serde_json::json!({
            "out": args.out, "packets": written.packets, "heartbeats": written.heartbeats,
            "messages": written.messages, "runs": written.runs, "sides": args.sides, "bytes": written.bytes,
            "seed": args.seed, "seconds": seconds,
        });
        // With the capture itself on standard output the report goes to standard error.
        match args.out == "-" {
            true => eprintln!("{report}"),
            false => println!("{report}"),
        }
        return;
    }
    eprintln!(
        "{}: {} packets, {} messages and {} heartbeats a side, {}, {}, {} bytes of frames, {seconds:.1} s \
         of session time, seed {}",
        args.out,
        written.packets,
        written.messages,
        written.heartbeats,
        counted(written.runs.into(), "run"),
        counted(args.sides.into(), "side"),
        written.bytes,
        args.seed
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_refused_as_a_count_with_its_least() {
        assert_eq!((messages("1.5k"), rate("20k")), (Ok(1_500), Ok(20_000)));
        for wrong in ["1x", "0", ""] {
            let told = messages(wrong).expect_err("no count");
            assert!(
                told.starts_with(&format!("\"{wrong}\" is not a count; write how many, at least 100 a run")),
                "{told}"
            );
        }
        assert_eq!(messages("1.5"), Err("\"1.5\" is not a whole number".into()));
        assert!(rate("1x").expect_err("no rate").contains("per second"));
    }
}
