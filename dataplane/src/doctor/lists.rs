//! Lists of CPUs as the kernel writes them: `0-3,8`.

/// Linux numbers CPUs below 8,192 (NR_CPUS).
const CPUS_MAX: usize = 8_192;

/// The CPUs of a list, ascending; `None` when it is no list. An empty text is the empty list.
pub fn parse(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The list as the kernel would write it.
pub fn format(cpus: &[usize]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = cpus;
    while let Some(first) = rest.first() {
        let length = rest.iter().enumerate().take_while(|(at, cpu)| **cpu == first + at).count();
        parts.push(if length == 1 { first.to_string() } else { format!("{first}-{}", rest[length - 1]) });
        rest = &rest[length..];
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, cpus) in [("0-3,8", vec![0, 1, 2, 3, 8]), ("", vec![]), ("5", vec![5]), ("2-2,1\n", vec![1, 2])] {
            assert_eq!(parse(text), Some(cpus), "{text:?}");
        }
        for text in ["x", "3-1", "1-", "-1", "0-99999999", "1,,x"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(format(&[0, 1, 2, 3, 8]), "0-3,8");
        assert_eq!(format(&[]), "");
    }
}
