//! All that is wrong with a text that is no configuration: each error of its syntax, or each key that is not known, is missing,
//! or has a value of a wrong kind. serde stops at the first; here that one is taken out, and it is asked again.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::check::Finding;
use super::limits;
use super::load::Config;

/// Most that are told: whoever has more begins anew.
const MISTAKES_MAX: usize = 64;
/// Bytes of a value that are shown.
const VALUE_BYTES_MAX: usize = 60;

/// One step to a value.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

/// Every mistake of the text, in its order; empty for a configuration.
pub fn mistakes(text: &str) -> Vec<Finding> {
    let (mut table, syntax) = DeTable::parse_recoverable(text);
    if !syntax.is_empty() {
        let mut syntax: Vec<&Error> = syntax.iter().take(MISTAKES_MAX).collect();
        syntax.sort_by_key(|error| error.span().map(|span| span.start));
        return syntax.into_iter().map(|error| plain(text, error)).collect();
    }
    let mut found = Found { text, mistakes: Vec::new(), taken: Vec::new() };
    for _ in 0..MISTAKES_MAX {
        let Err(error) = Config::deserialize(Deserializer::from(table.clone())) else { break };
        let Some(path) = found.look(&table, &error) else {
            found.mistakes.push((error.span().map_or(0, |span| span.start), plain(text, &error)));
            break;
        };
        take_out(table.get_mut(), &path);
    }
    found.mistakes.sort_by_key(|(at, _)| *at);
    found.mistakes.dedup();
    found.mistakes.into_iter().map(|(_, mistake)| mistake).collect()
}

/// An error as the parser says it.
fn plain(text: &str, error: &Error) -> Finding {
    let line = error.span().map_or(1, |span| line(text, &span));
    let what = error.span().and_then(|span| twice(text, error.message(), span));
    Finding { key: format!("line {line}"), what: what.unwrap_or_else(|| error.message().to_string()) }
}

/// A key that is there twice, which the parser does not name, and the section that it stands in.
fn twice(text: &str, message: &str, span: Range<usize>) -> Option<String> {
    (message == "duplicate key").then_some(())?;
    let key = text.get(span.clone())?;
    let begin = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let header = |line: &str| line.trim_start().starts_with('[');
    // Of the key's own line only what stands before it: a header may be what is there twice.
    if header(&text[begin..span.start]) {
        return Some(format!("section \"{key}\" is there twice: join the two"));
    }
    let section = text[..begin].lines().rev().find(|line| header(line));
    let section = section.map_or("before the first section".into(), |line| format!("in {}", line.trim()));
    Some(format!("key \"{key}\" is there twice {section}: keep one"))
}

fn line(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}

/// What was found so far.
struct Found<'a> {
    text: &'a str,
    /// With the place of each.
    mistakes: Vec<(usize, Finding)>,
    /// Keys that were taken out, by the span of their table: that they are missing then is no mistake of its own.
    taken: Vec<(Range<usize>, String)>,
}

impl Found<'_> {
    /// Notes an error, and says what is to be taken out; `None` where its place is not known.
    fn look(&mut self, table: &Spanned<DeTable<'_>>, error: &Error) -> Option<Vec<Step>> {
        let (span, message) = (error.span()?, error.message());
        let mut path = Vec::new();
        if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
            find_table(table.get_ref(), &span, &mut path).then_some(())?;
            if !self.taken.contains(&(span.clone(), key.to_string())) {
                let mut of = path.clone();
                of.push(Step::Key(key.into()));
                let what = format!("line {}: is missing: add it", line(self.text, &span));
                self.mistakes.push((span.start, Finding { key: shown(table.get_ref(), &of), what }));
            }
            return Some(path);
        }
        let of = find(table.get_ref(), &span, table.span(), &mut path)?;
        let key =
            path.iter().rev().find_map(|step| if let Step::Key(key) = step { Some(key.clone()) } else { None })?;
        let near = message.starts_with("unknown field").then(|| near(&key, &names(message))).flatten();
        let what = match message.starts_with("unknown field") {
            true => unknown(message, near.as_deref()),
            false => self.wrong(message, &span, &path),
        };
        let what = format!("line {}: {what}", line(self.text, &span));
        self.mistakes.push((span.start, Finding { key: shown(table.get_ref(), &path), what }));
        self.taken.extend([Some(key), near].into_iter().flatten().map(|key| (of.clone(), key)));
        Some(path)
    }

    /// A value that the key cannot have.
    fn wrong(&self, message: &str, span: &Range<usize>, path: &[Step]) -> String {
        let value = value(self.text.get(span.clone()).unwrap_or_default());
        let must = match (message.split_once(", expected "), message.starts_with("unknown variant")) {
            (Some(_), true) => {
                let names = names(message);
                let given = value.trim_matches('"');
                let near = near(given, &names).map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default();
                format!("must be one of {}{near}", listed(&names))
            }
            (Some((_, expected)), false) => format!("must be {}", kind(expected)),
            (None, _) => match message.strip_prefix("must be ") {
                Some(_) => message.into(),
                // In words of its own, which show the value or need none.
                None if message.contains(value.trim_matches('"')) => return message.into(),
                None => return format!("is {value}: {message}"),
            },
        };
        let bounds = limit(path).map(|words| format!(" ({words})")).unwrap_or_default();
        format!("is {value}, but {must}{bounds}")
    }
}

/// A value as the text has it, shortened.
fn value(text: &str) -> String {
    let text = text.lines().next().unwrap_or_default();
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= VALUE_BYTES_MAX).last().unwrap_or(0);
    if text.len() <= VALUE_BYTES_MAX { text.into() } else { format!("{}…", &text[..end]) }
}

/// The bounds of a key in words.
fn limit(path: &[Step]) -> Option<String> {
    let keys = path.iter().filter_map(|step| if let Step::Key(key) = step { Some(key.as_str()) } else { None });
    let mut section: Vec<&str> = keys.collect();
    let key = section.pop()?;
    limits::limit(&section.join("."), key).map(limits::Limit::words)
}

fn unknown(message: &str, near: Option<&str>) -> String {
    match near {
        Some(name) => format!("there is no such key: did you mean \"{name}\"?"),
        None => format!("there is no such key: remove it, or write one of {}", listed(&names(message))),
    }
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// The names that serde would have taken: what stands in backticks behind "expected".
fn names(message: &str) -> Vec<String> {
    let (_, expected) = message.split_once("expected").unwrap_or_default();
    expected.split('`').skip(1).step_by(2).map(String::from).collect()
}

/// What serde expected, in words of the TOML.
fn kind(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "a boolean" => "true or false".into(),
        "a string" | "path string" => "text in quotes".into(),
        "a sequence" => "a list ([[SECTION]] for each section, [\"…\", \"…\"] for values)".into(),
        // What serde calls a struct is a section.
        other if other.starts_with("struct ") || other == "a map" => "a section".into(),
        other => other.into(),
    }
}

/// The name that is nearest to what was written, if one is near.
fn near(written: &str, names: &[String]) -> Option<String> {
    let far = (written.len() / 3).clamp(1, 3);
    let distances = names.iter().map(|name| (distance(written, name), name));
    distances.filter(|(distance, _)| *distance <= far).min().map(|(_, name)| name.clone())
}

/// Letters to change, to add and to leave out (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (at, against) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *against);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

/// The first key or value with this span; the span of its table.
fn find(table: &DeTable<'_>, span: &Range<usize>, own: Range<usize>, path: &mut Vec<Step>) -> Option<Range<usize>> {
    for (key, value) in table {
        path.push(Step::Key(key.get_ref().to_string()));
        if key.span() == *span || value.span() == *span {
            return Some(own);
        }
        if let Some(of) = find_in(value, span, &own, path) {
            return Some(of);
        }
        path.pop();
    }
    None
}

fn find_in(
    value: &Spanned<DeValue<'_>>,
    span: &Range<usize>,
    own: &Range<usize>,
    path: &mut Vec<Step>,
) -> Option<Range<usize>> {
    match value.get_ref() {
        DeValue::Table(inner) => find(inner, span, value.span(), path),
        DeValue::Array(list) => list.iter().enumerate().find_map(|(index, item)| {
            path.push(Step::Index(index));
            let of = if item.span() == *span { Some(own.clone()) } else { find_in(item, span, own, path) };
            if of.is_none() {
                path.pop();
            }
            of
        }),
        _ => None,
    }
}

/// The innermost table with this span.
fn find_table(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<Step>) -> bool {
    table.iter().any(|(key, value)| {
        path.push(Step::Key(key.get_ref().to_string()));
        is_or_has_table(value, span, path) || path.pop().is_none()
    })
}

fn is_or_has_table(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut Vec<Step>) -> bool {
    match value.get_ref() {
        DeValue::Table(inner) => find_table(inner, span, path) || value.span() == *span,
        DeValue::Array(list) => list.iter().enumerate().any(|(index, item)| {
            path.push(Step::Index(index));
            is_or_has_table(item, span, path) || path.pop().is_none()
        }),
        _ => false,
    }
}

/// A path as a finding has it: `feed "deep" side "B": queues`.
fn shown(table: &DeTable<'_>, path: &[Step]) -> String {
    let mut text = String::new();
    let mut at: Option<&DeValue<'_>> = None;
    for (index, step) in path.iter().enumerate() {
        let last = path[index..].iter().filter(|step| matches!(step, Step::Key(_))).count() <= 1;
        match step {
            Step::Key(key) => {
                let before = match (text.is_empty(), last, &path[..index]) {
                    (true, ..) => "",
                    (_, true, _) => ": ",
                    (_, _, [.., Step::Index(_)]) => " ",
                    _ => ".",
                };
                text.push_str(before);
                text.push_str(key);
                at = match at {
                    None => table.get(key.as_str()),
                    Some(DeValue::Table(inner)) => inner.get(key.as_str()),
                    Some(_) => None,
                }
                .map(Spanned::get_ref);
            }
            Step::Index(number) => {
                at = at.and_then(DeValue::as_array).and_then(|list| list.get(*number)).map(Spanned::get_ref);
                // Without a name the line tells which one: the number of what is left here is not that of the text.
                let name = at.and_then(DeValue::as_table).and_then(|element| element.get("name")?.get_ref().as_str());
                text.extend(name.map(|name| format!(" \"{name}\"")));
            }
        }
    }
    text
}

/// Takes the value out.
fn take_out(table: &mut DeTable<'_>, path: &[Step]) {
    match path {
        [Step::Key(key)] => drop(table.remove(key.as_str())),
        [Step::Key(key), rest @ ..] => {
            if let Some(value) = table.get_mut(key.as_str()) {
                take_out_of(value.get_mut(), rest);
            }
        }
        _ => {}
    }
}

fn take_out_of(value: &mut DeValue<'_>, path: &[Step]) {
    match (value, path) {
        (DeValue::Table(inner), _) => take_out(inner, path),
        (DeValue::Array(list), [Step::Index(out)]) => {
            let mut left = DeArray::new();
            list.iter().enumerate().filter(|(index, _)| index != out).for_each(|(_, item)| left.push(item.clone()));
            *list = left;
        }
        (DeValue::Array(list), [Step::Index(index), rest @ ..]) => {
            if let Some(item) = list.get_mut(*index) {
                take_out_of(item.get_mut(), rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        mistakes(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_with_its_section() {
        let text = "[[core]]\nname = \"rx\"\ncpu = 1\n  cpu = 2\n";
        assert_eq!(told(text), ["config line 4: key \"cpu\" is there twice in [[core]]: keep one"]);
        let text = "[process]\nuser = \"x\"\n[control]\n[process]\n";
        assert_eq!(told(text), ["config line 4: section \"process\" is there twice: join the two"]);
        assert_eq!(
            told("a = 1\na = 2\n"),
            ["config line 2: key \"a\" is there twice before the first section: keep one"]
        );
    }

    #[test]
    fn each_mistake_is_told_with_its_key_its_line_and_what_to_do() {
        let text = r#"
[[core]]
name = "rx"
cpu = "0"
colour = 3
[[core]]
nme = "disk"
cpu = -1
[[core]]
name = "third"
[procces]
user = "x"
[[feed]]
name = "deep"
protocol = "iex-tp"
core = "rx"
hold = "5 parsecs"
publish_arena = true
[[feed.side]]
name = "A"
source = "fil"
groups = [1, "239.0.0.1:1"]
[ledger.serve]
core = "rx"
insecure = "yes"
[control]
listen = "here"
"#;
        assert_eq!(
            told(text),
            [
                "config core \"rx\": cpu: line 4: is \"0\", but must be a whole number, 0 or more (0 to 1023; one `[[core]]` a CPU)",
                "config core \"rx\": colour: line 5: there is no such key: remove it, or write one of \"name\", \"cpu\", \"idle\"",
                "config core: nme: line 7: there is no such key: did you mean \"name\"?",
                "config core: cpu: line 8: is -1, but must be a whole number, 0 or more (0 to 1023; one `[[core]]` a CPU)",
                "config core \"third\": cpu: line 9: is missing: add it",
                "config procces: line 11: there is no such key: did you mean \"process\"?",
                "config feed \"deep\": hold: line 17: \"5 parsecs\" is not a duration (unknown time unit \"parsecs\", supported units: ns, us/µs, ms, sec, min, hours, days, weeks, months, years (and few variations)); write for example \"20ms\" or \"3s\"",
                "config feed \"deep\": publish_arena: line 18: is true, but must be a size in quotes, for example \"64KiB\", or a number of bytes (128KiB to 1TiB; a power of two)",
                "config feed \"deep\" side \"A\": source: line 21: is \"fil\", but must be one of \"af_xdp\", \"file\"; did you mean \"file\"?",
                "config feed \"deep\" side \"A\": groups: line 22: is 1, but must be text in quotes (IPv4 address and port; on one interface each belongs to one side)",
                "config ledger.serve: insecure: line 25: is \"yes\", but must be true or false",
                "config control: listen: line 27: is \"here\": invalid socket address syntax",
            ]
        );
    }

    #[test]
    fn a_section_in_the_wrong_form_is_told() {
        assert_eq!(
            told("[core]\nname = \"a\"\ncpu = 0\n"),
            [
                "config core: line 1: is [core], but must be a list ([[SECTION]] for each section, [\"…\", \"…\"] for values)"
            ]
        );
    }

    #[test]
    fn every_error_of_the_syntax_is_told_with_its_line() {
        let told = told("[[core]]\nname = \"a\ncpu = 0\n[control\nlog = 5\n");
        assert!(told.len() >= 2, "{told:?}");
        assert!(told[0].starts_with("config line 2: ") && told.iter().any(|line| line.contains("line 4")), "{told:?}");
    }

    #[test]
    fn what_is_right_has_none() {
        assert_eq!(told(include_str!("../../../config/default.toml")), Vec::<String>::new());
    }

    #[test]
    fn the_nearest_name_is_near() {
        let names = ["window".to_string(), "hold".into(), "link".into()];
        assert_eq!(near("windw", &names), Some("window".into()));
        assert_eq!(near("hodl", &names), None);
        assert_eq!(near("colour", &names), None);
        assert_eq!((distance("", "abc"), distance("abc", "abc"), distance("flaw", "lawn")), (3, 0, 2));
    }
}
