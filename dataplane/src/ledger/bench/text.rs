//! Durations, sizes and rates as people read them.

/// A duration in the unit that reads best, three decimals from a millisecond on: `870 ns`, `12.3 µs`, `1.234 ms`, `2.500 s`.
pub fn duration(ns: i64) -> String {
    let value = ns as f64;
    match ns.unsigned_abs() {
        0..1_000 => format!("{ns} ns"),
        // 999.95 µs and more would be written as 1000.0 µs.
        1_000..999_950 => format!("{:.1} µs", value / 1e3),
        999_950..999_999_500 => format!("{:.3} ms", value / 1e6),
        _ => format!("{:.3} s", value / 1e9),
    }
}

/// Milliseconds with three decimals, so that a column of them can be compared: `7.612 ms`, `-0.004 ms`.
pub fn milliseconds(ns: i64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A size: `14.49 MiB`.
pub fn size(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_024 => format!("{bytes} B"),
        1_024..1_048_576 => format!("{:.2} KiB", value / 1_024.0),
        1_048_576..1_073_741_824 => format!("{:.2} MiB", value / 1_048_576.0),
        _ => format!("{:.2} GiB", value / 1_073_741_824.0),
    }
}

/// Bytes per second as megabytes: `25.3 MB/s`. Nothing passed in no time: `-`.
pub fn rate(bytes: u64, ns: i64) -> String {
    match ns > 0 {
        true => format!("{:.1} MB/s", bytes as f64 * 1e3 / ns as f64),
        false => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.0 µs"),
            (66_049, "66.0 µs"),
            (999_949, "999.9 µs"),
            (999_950, "1.000 ms"),
            (1_234_567, "1.235 ms"),
            (-7_500_000, "-7.500 ms"),
            (999_999_499, "999.999 ms"),
            (999_999_500, "1.000 s"),
            (61_250_000_000, "61.250 s"),
            (i64::MIN, "-9223372036.855 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
        assert_eq!(milliseconds(-4_000), "-0.004 ms");
    }

    #[test]
    fn sizes_and_rates_read_well() {
        for (bytes, text) in
            [(0, "0 B"), (1_023, "1023 B"), (204_800, "200.00 KiB"), (15_196_160, "14.49 MiB"), (3 << 30, "3.00 GiB")]
        {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(rate(15_196_160, 600_000_000), "25.3 MB/s");
        assert_eq!(rate(15_196_160, 0), "-");
    }
}
