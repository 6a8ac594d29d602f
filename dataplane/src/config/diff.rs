//! What is different in another configuration, key by key.

use serde_json::Value;

use super::load::Config;

/// A key whose value is another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The section: `store "main"`, `ledger.serve`, `control`.
    pub section: String,
    /// The key in it; empty where the whole section came or went.
    pub key: String,
    /// The value so far; `null` where there was none.
    pub from: String,
    /// The value now.
    pub to: String,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Change { section, key, from, to } = self;
        match (key.is_empty(), from.as_str()) {
            (true, "null") => write!(f, "{section}: is new"),
            (true, _) => write!(f, "{section}: is gone, or another"),
            (false, _) => write!(f, "{section}: {key} = {to} (so far {from})"),
        }
    }
}

/// Every change from one configuration to another. Sections of which there may be several are told apart by their name.
pub fn changes(from: &Config, to: &Config) -> Vec<Change> {
    let value = |config: &Config| serde_json::to_value(config).expect("a configuration has only text keys");
    let mut changes = Vec::new();
    compare("", &value(from), &value(to), &mut changes);
    changes
}

/// `path`: the section so far.
fn compare(path: &str, from: &Value, to: &Value, changes: &mut Vec<Change>) {
    let keys = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
    let mut all = keys(from).unwrap_or_default();
    all.extend(keys(to).unwrap_or_default().into_iter().filter(|key| from.get(key).is_none()));
    for key in all {
        let (before, after) = (from.get(&key).unwrap_or(&Value::Null), to.get(&key).unwrap_or(&Value::Null));
        if before == after {
            continue;
        }
        let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if is_named(before) || is_named(after) {
            compare_named(&inner, before, after, changes);
        } else if before.is_object() && after.is_object() {
            compare(&inner, before, after, changes);
        } else {
            let section = if path.is_empty() { inner } else { path.to_string() };
            let key = if path.is_empty() { String::new() } else { key };
            changes.push(Change { section, key, from: before.to_string(), to: after.to_string() });
        }
    }
}

/// Sections of one kind, each with a name.
fn is_named(value: &Value) -> bool {
    value.as_array().is_some_and(|rows| rows.first().is_some_and(|row| row.get("name").is_some()))
}

fn compare_named(path: &str, from: &Value, to: &Value, changes: &mut Vec<Change>) {
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let find = |rows: &[Value], name: &Value| rows.iter().find(|row| row["name"] == *name).cloned();
    let (before, after) = (rows(from), rows(to));
    let gone = before.iter().filter(|row| find(&after, &row["name"]).is_none());
    let mut told = changes.len();
    for row in after.iter().chain(gone) {
        let section = format!("{path} {}", row["name"]);
        match (find(&before, &row["name"]), find(&after, &row["name"])) {
            (Some(before), Some(after)) => compare(&section, &before, &after, changes),
            (before, after) => {
                let text = |row: Option<Value>| row.unwrap_or_default().to_string();
                changes.push(Change { section, key: String::new(), from: text(before), to: text(after) });
            }
        }
    }
    // The same sections in another order: workers are polled in the file's order.
    told = changes.len() - told;
    if told == 0 {
        changes.push(Change { section: path.into(), key: "order".into(), from: names(&before), to: names(&after) });
    }
}

fn names(rows: &[Value]) -> String {
    rows.iter().map(|row| row["name"].to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const FILE: &str = r#"
        [[core]]
        name = "rx"
        cpu = 0
        [[core]]
        name = "disk"
        cpu = 1
        [[store]]
        name = "main"
        path = "/var/lib/sluice/main"
        core = "disk"
        retain = "1GiB"
        [ledger.serve]
        core = "rx"
        source = "synthetic"
    "#;

    fn told(edit: impl Fn(&str) -> String) -> Vec<String> {
        let from = parse(FILE).expect("parses");
        let to = parse(&edit(FILE)).expect("parses");
        changes(&from, &to).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_change_is_named_by_its_section_and_key() {
        assert_eq!(told(str::to_string), [""; 0]);
        assert_eq!(told(|file| file.replace("1GiB", "2GiB")), ["store \"main\": retain = \"2GiB\" (so far \"1GiB\")"]);
        assert_eq!(told(|file| file.replace("cpu = 1", "cpu = 3")), ["core \"disk\": cpu = 3 (so far 1)"]);
        assert_eq!(
            told(|file| format!("{file}retention = 7\n[control]\ndrain = \"1s\"")),
            ["control: drain = \"1s\" (so far \"10s\")", "ledger.serve: retention = 7 (so far 10000)"]
        );
        assert_eq!(
            told(|file| file.replace("\"main\"", "\"other\"")),
            ["store \"other\": is new", "store \"main\": is gone, or another"]
        );
        let swapped = |file: &str| {
            file.replace("\"rx\"\n        cpu = 0", "X")
                .replace("\"disk\"\n        cpu = 1", "\"rx\"\n        cpu = 0")
                .replace('X', "\"disk\"\n        cpu = 1")
        };
        assert_eq!(told(swapped), ["core: order = \"disk\", \"rx\" (so far \"rx\", \"disk\")"]);
        assert_eq!(
            told(|file| format!("{file}tokens = \"/etc/t\"")),
            ["ledger.serve: tokens = \"/etc/t\" (so far null)"]
        );
        let without: fn(&str) -> String = |file| file[..file.find("[ledger").expect("there")].to_string();
        assert_eq!(told(without), ["ledger: is gone, or another"]);
    }
}
