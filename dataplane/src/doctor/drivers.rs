//! What is known of drivers: from their sources and from reports of others, with the place. None of it was measured here;
//! a trial bind and what the driver itself tells come before it.

/// A kernel's first two numbers.
pub type Release = (u32, u32);

/// What a driver needs or lacks.
pub struct DriverNote {
    /// The module's name.
    pub name: &'static str,
    /// The first kernel whose own driver has AF_XDP zero-copy; none: it has none.
    pub zero_copy_since: Option<Release>,
    /// Largest MTU with a program that sees one buffer a frame.
    pub single_buffer_mtu_max: u32,
    /// The first kernel whose own driver takes programs that see several buffers; none: it takes none.
    pub multi_buffer_since: Option<Release>,
    /// XDP is refused when more than half of the most queues are in use: it takes a second set for sending.
    pub half_of_queues: bool,
}

const fn note(
    name: &'static str,
    zero_copy_since: Option<Release>,
    single_buffer_mtu_max: u32,
    multi_buffer_since: Option<Release>,
) -> DriverNote {
    DriverNote { name, zero_copy_since, single_buffer_mtu_max, multi_buffer_since, half_of_queues: false }
}

/// The table. MTU limits: Intel's drivers receive into 3,072 bytes, of which header, checksum and two tags take 26; ena and
/// mlx5 keep 598 bytes of a 4 KiB page; virtio_net and veth 590.
const NOTES: [DriverNote; 10] = [
    note("ice", Some((5, 5)), 3_046, Some((6, 3))),
    note("i40e", Some((4, 20)), 3_046, Some((6, 4))),
    note("ixgbe", Some((4, 20)), 3_046, None),
    note("igb", Some((6, 14)), 3_046, None),
    note("igc", Some((5, 14)), 1_500, None),
    note("mlx5_core", Some((5, 3)), 3_498, Some((5, 18))),
    DriverNote { half_of_queues: true, ..note("ena", None, 3_498, None) },
    note("virtio_net", Some((6, 11)), 3_506, Some((6, 3))),
    note("veth", None, 3_506, Some((5, 18))),
    note("bnxt_en", None, 3_498, Some((5, 19))),
];

/// What is known of a driver.
pub fn note_of(driver: &str) -> Option<&'static DriverNote> {
    NOTES.iter().find(|note| note.name == driver)
}

/// A kernel and driver that others had trouble with.
pub struct KnownBad {
    /// The module's name.
    pub driver: &'static str,
    /// From this kernel on.
    pub from: Release,
    /// And before this one.
    pub before: Release,
    /// Only the driver that did not come with the kernel.
    pub out_of_tree: bool,
    /// It is better not to begin.
    pub fails: bool,
    /// What happens.
    pub what: &'static str,
    /// Who told.
    pub told_in: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

const ANY: Release = (u32::MAX, 0);

/// The table.
const KNOWN_BAD: [KnownBad; 4] = [
    KnownBad {
        driver: "ice",
        from: (4, 18),
        before: (5, 5),
        out_of_tree: false,
        fails: true,
        what: "with a program in the driver all reception of the interface stops, its counters too",
        told_in: "firedancer-io/firedancer #273",
        remedy: "install a kernel from 6.1 on",
    },
    KnownBad {
        driver: "ice",
        from: (6, 6),
        before: (6, 7),
        out_of_tree: true,
        fails: true,
        what: "the kernel crashes when the program is detached",
        told_in: "intel/ethernet-linux-ice #23",
        remedy: "remove the vendor's package and use the kernel's own ice: modinfo -F filename ice",
    },
    KnownBad {
        driver: "ixgbe",
        from: (0, 0),
        before: ANY,
        out_of_tree: true,
        fails: false,
        what: "the bind in zero-copy mode is refused although the driver is listed as able",
        told_in: "xdp-project/xdp-tutorial #127",
        remedy: "remove the vendor's package and use the kernel's own ixgbe: modinfo -F filename ixgbe",
    },
    KnownBad {
        driver: "igc",
        from: (6, 14),
        before: (6, 15),
        out_of_tree: false,
        fails: false,
        what: "a bound socket blocks all other traffic of its queue (seen on I225-LM)",
        told_in: "xdp-project/xdp-tutorial #469",
        remedy: "capture on an interface that carries nothing else, or use another kernel",
    },
];

/// The rows that apply.
pub fn known_bad(driver: &str, kernel: Release, out_of_tree: bool) -> impl Iterator<Item = &'static KnownBad> {
    KNOWN_BAD.iter().filter(move |row| {
        row.driver == driver && row.from <= kernel && kernel < row.before && (!row.out_of_tree || out_of_tree)
    })
}

/// `6.1.0-18-amd64` as (6, 1).
pub fn release_of(text: &str) -> Option<Release> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        for (text, release) in [
            ("6.1.0-18-amd64", Some((6, 1))),
            ("6.18", Some((6, 18))),
            ("x", None),
            ("6", None),
            ("6.99999999999", None),
        ] {
            assert_eq!(release_of(text), release, "{text}");
        }
    }

    #[test]
    fn a_row_applies_within_its_kernels_and_its_origin() {
        let count = |driver, kernel, outside| known_bad(driver, kernel, outside).count();
        assert_eq!((count("ice", (5, 4), false), count("ice", (5, 5), false)), (1, 0));
        assert_eq!((count("ice", (6, 6), false), count("ice", (6, 6), true)), (0, 1));
        assert_eq!((count("igc", (6, 14), false), count("igc", (6, 15), false)), (1, 0));
    }
}
