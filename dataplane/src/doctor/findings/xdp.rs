//! XDP and AF_XDP on the interfaces: can the driver, is the place free, is this kernel known for trouble, do frames fit.

use super::{Captured, Report, Rule, advice};
use crate::config::{AttachMode, Through, ZeroCopy};
use crate::doctor::drivers::{self, Release};
use crate::doctor::host::{Trial, Unread};
use crate::sys::nic::{self, FrameChoice, Interface};

const NATIVE: Rule = Rule {
    id: "xdp.native",
    why: "a driver that does not run the program itself leaves it to the kernel's generic path: a copy and an sk_buff \
          for every frame",
};
const ZERO_COPY: Rule = Rule {
    id: "xdp.zero_copy",
    why: "a bind without zero-copy falls back to copying without a word; only a bind tells for sure, and only the first \
          frame through the ring that it works",
};
const FOREIGN: Rule = Rule {
    id: "xdp.foreign_program",
    why: "an interface takes one program; one that was left behind, or another tool's, is in the way, and to take it off \
          can reset the link",
};
const KNOWN_BAD: Rule = Rule {
    id: "xdp.known_bad",
    why: "these pairs of kernel and driver stopped reception, crashed or lost traffic for others",
};
const ORIGIN: Rule = Rule {
    id: "xdp.driver_origin",
    why: "a vendor's own build differs from the kernel's driver in what it can and in its faults; prefer the kernel's, and \
          keep to versions that were tried",
};
const GRO_HW: Rule = Rule {
    id: "xdp.gro_hw",
    why: "while the host below a virtual machine merges segments or leaves checksums open, the driver refuses a program; \
          what remains is the generic path",
};
const MTU: Rule = Rule {
    id: "xdp.mtu",
    why: "a program that sees one buffer a frame is refused above the driver's limit, often without a hint; and a frame \
          that does not fit a chunk is lost in rx_dropped",
};

pub(super) const RULES: &[&Rule] = &[&NATIVE, &ZERO_COPY, &FOREIGN, &KNOWN_BAD, &ORIGIN, &GRO_HW, &MTU];

/// The first kernel with AF_XDP sockets for frames of several buffers.
const MULTI_BUFFER_SOCKETS: Release = (6, 6);

pub(super) fn judge(report: &mut Report<'_>) {
    let kernel = report.host.kernel.release.as_ref().ok().and_then(|text| drivers::release_of(text));
    let captured = report.interfaces.clone();
    for interface in captured.iter().filter(|interface| interface.section.through == Through::AfXdp) {
        native(report, interface);
        zero_copy(report, interface, kernel);
        foreign(report, interface);
        known_bad(report, interface, kernel);
        origin(report, interface);
        gro_hw(report, interface);
        mtu(report, interface, kernel);
    }
}

fn native(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, driver) = (interface.name(), interface.driver());
    match (interface.section.mode, &interface.nic.told.xdp) {
        (AttachMode::Generic, _) => report.ok(&NATIVE, name, "mode = \"generic\": by configuration"),
        (_, Ok(told)) if told.native => report.ok(&NATIVE, name, format!("{driver} runs programs")),
        (AttachMode::Native, Ok(_)) => {
            let seen = format!("{driver} runs no programs, and mode = \"native\"");
            let remedy = report.set("set mode = \"auto\", or use an interface of another driver");
            report.fail(&NATIVE, name, seen, remedy);
        }
        (AttachMode::Auto, Ok(_)) => {
            let remedy = advice("use an interface of another driver");
            report.warn(&NATIVE, name, format!("{driver} runs no programs"), remedy);
        }
        // Before kernel 6.3 nobody tells; the attach will.
        (_, Err(Unread::Absent)) if drivers::note_of(driver).is_some() => {
            report.ok(&NATIVE, name, format!("the kernel does not tell (6.3 does); {driver} is known to run programs"));
        }
        (_, Err(unread)) => report.unknown(&NATIVE, name, "what XDP can do", *unread),
    }
}

fn zero_copy(report: &mut Report<'_>, interface: &Captured<'_>, kernel: Option<Release>) {
    let (name, driver, wanted) = (interface.name(), interface.driver(), interface.section.zero_copy);
    let section = &interface.section.name;
    let mend = report.set(format_args!("set zero_copy = \"prefer\" or \"off\" in [[interface]] \"{section}\""));
    if wanted == ZeroCopy::Off {
        report.ok(&ZERO_COPY, name, "zero_copy = \"off\": by configuration");
        return;
    }
    let level = if wanted == ZeroCopy::Require { super::Level::Fail } else { super::Level::Warn };
    match &interface.nic.told.trial {
        Some(Trial::ZeroCopy) => return report.ok(&ZERO_COPY, name, format!("{driver}: a trial bind got zero-copy")),
        Some(Trial::Copy) => return report.add(&ZERO_COPY, level, name, "a trial bind got copy mode", mend),
        Some(Trial::Refused(why)) => return report.add(&ZERO_COPY, level, name, format!("refused: {why}"), mend),
        Some(Trial::LeftAlone(_)) | None => {}
    }
    let able = can_zero_copy(interface, kernel);
    let told = match able {
        Some(true) => format!("{driver} says that it can"),
        Some(false) => format!("{driver} has no zero-copy on this kernel"),
        None => format!("whether {driver} can is not known"),
    };
    match (&interface.nic.told.trial, able) {
        (_, Some(false)) => report.add(&ZERO_COPY, level, name, told, mend),
        (Some(Trial::LeftAlone(why)), _) => {
            let command = report.doctor_command(" --trial-bind   # when nothing uses the interface");
            report.warn(&ZERO_COPY, name, format!("{told}; the trial was left alone: {why}"), command);
        }
        _ => {
            let command = report.doctor_command(" --trial-bind   # before the session: some drivers reset the queue");
            report.warn(&ZERO_COPY, name, format!("{told}; not tried"), command);
        }
    }
}

/// By what the driver tells, else by what is known of it.
fn can_zero_copy(interface: &Captured<'_>, kernel: Option<Release>) -> Option<bool> {
    if let Ok(told) = interface.nic.told.xdp {
        return Some(told.zero_copy);
    }
    let note = drivers::note_of(interface.driver())?;
    match (note.zero_copy_since, interface.nic.out_of_tree) {
        // A vendor's build may have what the kernel's own has not.
        (None, Ok(true)) => None,
        (since, _) => Some(since.is_some_and(|since| kernel.is_some_and(|kernel| kernel >= since))),
    }
}

fn foreign(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let Some((mode, program)) = &interface.nic.link.xdp else {
        report.ok(&FOREIGN, name, "no program is attached");
        return;
    };
    let seen = format!("program {program} is attached ({mode})");
    let look = format!("bpftool prog show id {program}   # whose it is; then: ip link set dev {name} xdp off");
    if report.runs("sluice") {
        report.warn(&FOREIGN, name, format!("{seen}; a sluice is running, it may be its own"), look);
    } else if interface.section.replace {
        report.warn(&FOREIGN, name, format!("{seen}; replace = true will take it off"), look);
    } else {
        report.fail(&FOREIGN, name, format!("{seen}, and run refuses to take its place"), look);
    }
}

fn known_bad(report: &mut Report<'_>, interface: &Captured<'_>, kernel: Option<Release>) {
    let (name, driver) = (interface.name(), interface.driver());
    let Some(kernel) = kernel else {
        return report.unknown(&KNOWN_BAD, name, "the kernel's release", Unread::Garbled);
    };
    let mut clean = true;
    for row in drivers::known_bad(driver, kernel, is_out_of_tree(interface)) {
        clean = false;
        let seen = format!("{driver} on {}.{}: {} ({})", kernel.0, kernel.1, row.what, row.told_in);
        let level = if row.fails { super::Level::Fail } else { super::Level::Warn };
        report.add(&KNOWN_BAD, level, name, seen, advice(row.remedy));
    }
    if clean {
        report.ok(&KNOWN_BAD, name, format!("{driver} on {}.{}: nothing known", kernel.0, kernel.1));
    }
}

fn is_out_of_tree(interface: &Captured<'_>) -> bool {
    interface.nic.out_of_tree == Ok(true)
}

fn origin(report: &mut Report<'_>, interface: &Captured<'_>) {
    let (name, driver) = (interface.name(), interface.driver());
    let absent = format!("{driver} is built into the kernel");
    let fact = interface.nic.out_of_tree;
    match report.known_or(&ORIGIN, name, "the driver's origin", &fact, &absent) {
        Some(true) => {
            let version = interface.nic.told.driver.as_ref().map_or("?", |told| told.version.as_str());
            let seen = format!("{driver} {version} did not come with the kernel");
            report.warn(
                &ORIGIN,
                name,
                seen,
                format!("modinfo -F filename {driver}   # and remove the vendor's package"),
            );
        }
        Some(false) => report.ok(&ORIGIN, name, format!("{driver} came with the kernel")),
        None => {}
    }
}

fn gro_hw(report: &mut Report<'_>, interface: &Captured<'_>) {
    let name = interface.name();
    let feature = interface.feature("rx-gro-hw");
    let absent = "the driver has none";
    let Some(feature) = report.known_or(&GRO_HW, name, "rx-gro-hw", &feature, absent) else { return };
    match (feature.on, feature.fixed, interface.section.mode) {
        (false, ..) => report.ok(&GRO_HW, name, "off"),
        (true, false, _) => report.warn(&GRO_HW, name, "on", format!("ethtool -K {name} rx-gro-hw off")),
        (true, true, AttachMode::Generic) => report.ok(&GRO_HW, name, "on and fixed; mode = \"generic\" does not mind"),
        (true, true, mode) => {
            let level = if mode == AttachMode::Native { super::Level::Fail } else { super::Level::Warn };
            let command = "start the virtual machine with guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off, or \
                           set mode = \"generic\"";
            let seen = "on, and fixed by the host below: the driver refuses programs";
            report.add(&GRO_HW, level, name, seen, advice(command));
        }
    }
}

fn mtu(report: &mut Report<'_>, interface: &Captured<'_>, kernel: Option<Release>) {
    let (name, link) = (interface.name(), &interface.nic.link);
    let asked = Interface {
        index: link.index,
        name: link.name.clone(),
        alternative_names: Vec::new(),
        mtu: link.mtu,
        address: Vec::new(),
        up: link.up,
        carrier: link.carrier,
        rx_queues_max: link.rx_queues,
        xdp: None,
    };
    // Some ten times the largest that can be; what a capture holds may be anything.
    if link.mtu > 1 << 20 {
        return report.unknown(&MTU, name, "the MTU", Unread::Garbled);
    }
    match nic::choose_frames(&asked, None, None) {
        Err(error) => report.fail(&MTU, name, error.to_string(), format!("ip link set dev {name} mtu 1500")),
        Ok(choice) if choice.multi_buffer => multi_buffer(report, interface, choice, kernel),
        Ok(choice) => single_buffer(report, interface, choice),
    }
}

fn single_buffer(report: &mut Report<'_>, interface: &Captured<'_>, choice: FrameChoice) {
    let (name, driver, mtu) = (interface.name(), interface.driver(), interface.nic.link.mtu);
    match drivers::note_of(driver) {
        Some(note) if mtu > note.single_buffer_mtu_max && interface.section.mode != AttachMode::Generic => {
            let limit = note.single_buffer_mtu_max;
            let seen = format!("MTU {mtu}: {driver} takes a program of one buffer a frame up to about {limit}");
            report.warn(&MTU, name, seen, format!("ip link set dev {name} mtu {limit}"));
        }
        _ => report.ok(&MTU, name, format!("MTU {mtu}: one chunk of {} bytes a frame", choice.frame_bytes)),
    }
}

fn multi_buffer(report: &mut Report<'_>, interface: &Captured<'_>, choice: FrameChoice, kernel: Option<Release>) {
    let (name, driver, mtu) = (interface.name(), interface.driver(), interface.nic.link.mtu);
    let note = drivers::note_of(driver);
    let lower =
        format!("ip link set dev {name} mtu {}", note.map_or(1_500, |note| note.single_buffer_mtu_max.min(3_498)));
    let told = interface.nic.told.xdp.ok();
    let buffers = choice.packet_bytes_max.div_ceil(choice.frame_bytes - nic::CHUNK_HEADROOM_BYTES);
    let takes = match (told, note) {
        (Some(told), _) => Some(told.multi_buffer),
        (None, Some(note)) => {
            Some(note.multi_buffer_since.is_some_and(|since| kernel.is_some_and(|kernel| kernel >= since)))
        }
        (None, None) => None,
    };
    let too_many = told.filter(|told| told.zero_copy && told.zero_copy_buffers_max < buffers);
    if kernel.is_some_and(|kernel| kernel < MULTI_BUFFER_SOCKETS) {
        let seen = format!("MTU {mtu} needs sockets for frames of several buffers: kernel 6.6 and later have them");
        report.fail(&MTU, name, seen, lower);
    } else if takes == Some(false) {
        let seen = format!("MTU {mtu}: {driver} takes no program that sees several buffers a frame");
        report.fail(&MTU, name, seen, lower);
    } else if let (Some(told), ZeroCopy::Require) = (too_many, interface.section.zero_copy) {
        let max = told.zero_copy_buffers_max;
        let seen = format!("MTU {mtu} needs {buffers} buffers a frame; {driver} gives {max} in zero-copy mode");
        report.fail(&MTU, name, seen, lower);
    } else if takes.is_none() {
        report.warn(
            &MTU,
            name,
            format!("MTU {mtu}: whether {driver} takes several buffers a frame is not known"),
            lower,
        );
    } else {
        report.ok(&MTU, name, format!("MTU {mtu}: {buffers} chunks of {} bytes a frame", choice.frame_bytes));
    }
}
