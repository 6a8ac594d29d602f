//! When the certificates of a PEM file are good: what a server would offer, or a client trust, that nobody takes any more.
//!
//! Of a certificate only the way to its two dates is read (RFC 5280, 4.1): everything else is rustls's business.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// How long before its end a certificate is told of: longer than a weekend with a holiday.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// DER's tags on the way.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// From when to when a certificate is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Not before.
    pub from: SystemTime,
    /// Not after.
    pub to: SystemTime,
}

/// A word of warning about the certificates in a file at the time `now`; `None` where all are good for a while, and where the file
/// cannot be read, which others tell.
pub fn warning(path: &Path, now: SystemTime) -> Option<String> {
    let certificates = CertificateDer::pem_file_iter(path).ok()?.flatten();
    let all: Vec<Validity> = certificates.filter_map(|certificate| validity(&certificate)).collect();
    let first = all.iter().min_by_key(|validity| validity.to)?;
    let shown = |time| humantime::format_rfc3339_seconds(time);
    let path = path.display();
    if first.to < now {
        return Some(format!("\"{path}\" expired at {}: the other side refuses it; renew it", shown(first.to)));
    }
    if let Some(early) = all.iter().find(|validity| validity.from > now) {
        let from = shown(early.from);
        return Some(format!(
            "\"{path}\" is good from {from} on: until then the other side refuses it; is this clock right?"
        ));
    }
    (first.to < now + SOON).then(|| format!("\"{path}\" expires at {}: renew it before", shown(first.to)))
}

/// The dates of a certificate in DER; `None` for what is none.
pub fn validity(certificate: &[u8]) -> Option<Validity> {
    let (outer, _) = inside(certificate, SEQUENCE)?;
    let (mut body, _) = inside(outer, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        body = after(body)?;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        body = after(body)?;
    }
    let (dates, _) = inside(body, SEQUENCE)?;
    let (from, rest) = time(dates)?;
    let (to, _) = time(rest)?;
    Some(Validity { from, to })
}

/// The first value: its tag, its content, what follows.
fn value(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(short), rest),
        // 0x80 is a length without end, which DER has not; four bytes are 4 GiB.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

fn inside(bytes: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = value(bytes)?;
    (tag == wanted).then_some((content, rest))
}

fn after(bytes: &[u8]) -> Option<&[u8]> {
    value(bytes).map(|(_, _, rest)| rest)
}

/// A date: `YYMMDDHHMMSSZ` (of 1950 to 2049) or `YYYYMMDDHHMMSSZ`.
fn time(bytes: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (tag, content, rest) = value(bytes)?;
    let digits = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let digits = match tag {
        UTC_TIME if digits.len() == 12 => {
            let century = if digits.get(..2)?.parse::<u8>().ok()? >= 50 { "19" } else { "20" };
            format!("{century}{digits}")
        }
        GENERALIZED_TIME if digits.len() == 14 => digits.to_string(),
        _ => return None,
    };
    let part = |from: usize, to: usize| digits.get(from..to);
    let [year, month, day] = [part(0, 4)?, part(4, 6)?, part(6, 8)?];
    let [hour, minute, second] = [part(8, 10)?, part(10, 12)?, part(12, 14)?];
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    Some((humantime::parse_rfc3339(&text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).expect("a time")
    }

    fn certificate(from: (i32, u8), to: (i32, u8)) -> (Vec<u8>, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec!["box.example".to_string()]).expect("a name");
        parameters.not_before = rcgen::date_time_ymd(from.0, from.1, 1);
        parameters.not_after = rcgen::date_time_ymd(to.0, to.1, 1);
        let certificate = parameters.self_signed(&key).expect("signed");
        (certificate.der().to_vec(), certificate.pem())
    }

    #[test]
    fn the_dates_are_those_that_were_signed() {
        for (from, to) in
            [((2020, 1), (2030, 2)), ((1999, 12), (2049, 11)), ((2049, 1), (2050, 1)), ((2051, 3), (2999, 1))]
        {
            let (der, _) = certificate(from, to);
            let text = |(year, month): (i32, u8)| at(&format!("{year:04}-{month:02}-01T00:00:00Z"));
            assert_eq!(validity(&der), Some(Validity { from: text(from), to: text(to) }), "{from:?}");
            // No prefix is read beyond its end.
            for end in 0..200.min(der.len()) {
                assert_eq!(validity(&der[..end]), None, "{end}");
            }
        }
        assert_eq!(validity(b"-----BEGIN"), None);
        assert_eq!(validity(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff, 0]), None);
    }

    #[test]
    fn what_expired_expires_soon_or_is_not_yet_good_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chain");
        let (good, old) = (certificate((2020, 1), (2030, 2)).1, certificate((2010, 1), (2027, 1)).1);
        std::fs::write(&path, format!("{good}\n{old}")).expect("writes");
        let told = |now: &str| warning(&path, at(now)).map(|text| text.replace(&path.display().to_string(), "F"));
        assert_eq!(told("2026-11-30T00:00:00Z"), None);
        assert_eq!(
            told("2026-12-20T00:00:00Z").as_deref(),
            Some("\"F\" expires at 2027-01-01T00:00:00Z: renew it before")
        );
        assert_eq!(
            told("2027-01-02T00:00:00Z").as_deref(),
            Some("\"F\" expired at 2027-01-01T00:00:00Z: the other side refuses it; renew it")
        );
        assert!(told("2019-01-01T00:00:00Z").expect("told").contains("is good from 2020-01-01T00:00:00Z on"));
        assert_eq!(warning(&folder.path().join("none"), at("2026-01-01T00:00:00Z")), None);
    }
}
