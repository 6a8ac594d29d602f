//! docs/reference/config.md: every key of the TOML with its type, default, limits and meaning, from the schema and the limits.

use serde_json::Value;

use super::reference::{cell, sentence};
use crate::config::limits::limit;
use crate::config::schema::{reference, schema};

/// What stands before the tables.
const HEAD: &str = "# Configuration\n\n\
    Written by `cargo xtask docs` from the program itself; a check fails when it is stale. How the sections go together, and \
    working examples: [configure.md](../operating/configure.md). The same as a schema for editors: \
    [sluice.schema.json](sluice.schema.json).\n\n\
    Durations are text: `\"250us\"`, `\"20ms\"`, `\"3s\"`, `\"1h\"`. Sizes are text or a number of bytes: `\"64KiB\"`, `\"1GiB\"`, \
    `\"5TB\"`. A key without a default may be left out. Unknown keys are refused.\n";

/// The page.
pub fn markdown() -> String {
    let schema = schema();
    let mut page = String::from(HEAD);
    sections(&schema, &schema, "", &mut page);
    page
}

/// The sections among an object's properties, each with those inside of it.
fn sections(schema: &Value, object: &Value, parent: &str, page: &mut String) {
    for (name, property) in properties(object) {
        let Some(definition) = definition(schema, property).filter(|definition| definition["properties"].is_object())
        else {
            continue;
        };
        let path = if parent.is_empty() { name.to_string() } else { format!("{parent}.{name}") };
        let keys: Vec<_> = properties(definition).filter(|(_, key)| !is_section(schema, key)).collect();
        if !keys.is_empty() {
            let title = if property["type"] == "array" { format!("[[{path}]]") } else { format!("[{path}]") };
            page.push_str(&format!("\n## {title}\n\n{}\n\n", meaning(definition)));
            page.push_str("| key | type | default | limits | meaning |\n| --- | --- | --- | --- | --- |\n");
            let required = definition["required"].as_array().map_or(&[][..], Vec::as_slice);
            for (key, of) in keys {
                page.push_str(&row(schema, &path, key, of, required.iter().any(|name| name == key)));
            }
        }
        sections(schema, definition, &path, page);
    }
}

fn properties(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    object["properties"].as_object().into_iter().flatten().map(|(name, property)| (name.as_str(), property))
}

fn definition<'a>(schema: &'a Value, property: &Value) -> Option<&'a Value> {
    reference(property).map(|name| &schema["definitions"][name])
}

fn is_section(schema: &Value, property: &Value) -> bool {
    definition(schema, property).is_some_and(|definition| definition["properties"].is_object())
}

fn row(schema: &Value, section: &str, key: &str, property: &Value, required: bool) -> String {
    let limits = limit(section, key).map(|limit| limit.words()).unwrap_or_default();
    let default = match (required, &property["default"]) {
        (true, _) => "required".into(),
        (false, Value::Null) => String::new(),
        (false, default) => format!("`{}`", toml_text(default)),
    };
    let (kind, choices) = kind(schema, property);
    let meaning = format!("{} {choices}", sentence(&meaning(property)));
    format!("| `{key}` | {} | {} | {} | {} |\n", cell(&kind), cell(&default), cell(&limits), cell(&meaning))
}

/// The description without the limits, which have a column of their own.
fn meaning(of: &Value) -> String {
    let text = of["description"].as_str().unwrap_or_default();
    text.split("\n\nLimits: ").next().unwrap_or_default().replace("\n\n", " ")
}

/// A key's type in words, and what its words mean where they are a closed set.
fn kind(schema: &Value, property: &Value) -> (String, String) {
    if property["type"] == "array" {
        return (format!("list of {}", kind(schema, &property["items"]).0), String::new());
    }
    match reference(property) {
        Some("Duration") => ("duration".into(), String::new()),
        Some("Bytes") => ("size".into(), String::new()),
        Some("Linger" | "Sync") => ("word or duration".into(), String::new()),
        Some("Start") => ("word or number".into(), String::new()),
        Some("Listen") => ("address and port".into(), String::new()),
        Some(name) => words(&schema["definitions"][name]),
        None => {
            let kind = match property["type"].as_str() {
                Some("integer") => "number",
                Some("boolean") => "true or false",
                _ => "text",
            };
            (kind.into(), String::new())
        }
    }
}

/// A closed set of words.
fn words(definition: &Value) -> (String, String) {
    let choices = definition["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
    let word = |choice: &Value| choice["const"].as_str().or_else(|| choice["enum"][0].as_str()).map(String::from);
    let names: Vec<String> = choices.iter().filter_map(word).map(|word| format!("`\"{word}\"`")).collect();
    let told: Vec<String> = choices
        .iter()
        .filter_map(|choice| Some(format!("`\"{}\"`: {}", word(choice)?, sentence(&meaning(choice)))))
        .collect();
    match names.is_empty() {
        // An address, whose form its value shows.
        true => ("text".into(), String::new()),
        false => (names.join(", "), told.join(" ")),
    }
}

/// A value as it is written in the TOML.
fn toml_text(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_and_key_is_on_the_page() {
        let page = markdown();
        let file = include_str!("../../../config/default.toml");
        let mut section = "";
        let mut keys = 0;
        for line in file.lines() {
            let line = line.strip_prefix("# ").filter(|line| line.contains(" = ")).unwrap_or(line);
            if line.starts_with('[') {
                section = line;
                assert!(page.contains(&format!("## {section}\n")), "{section}");
            } else if let Some((key, _)) = line.split_once(" = ")
                && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            {
                let part = page.split_once(&format!("## {section}\n")).expect("seen").1;
                let part = part.split("\n## ").next().unwrap_or_default();
                assert!(part.contains(&format!("| `{key}` |")), "{section} {key}");
                keys += 1;
            }
        }
        assert!(keys > 120, "{keys}");
        assert!(page.contains("| `ring` | number | `4096` | 64 to 32768; a power of two |"), "{page}");
        assert!(page.contains("| `cpu` | number | required |"), "{page}");
        assert!(page.contains("`\"park\"`: Polls briefly"), "{page}");
    }

    /// The other way round: the annotated file has every key of the schema, the commented optional ones too.
    #[test]
    fn every_key_of_the_schema_is_in_the_annotated_file() {
        let page = markdown();
        let file = include_str!("../../../config/default.toml");
        for part in page.split("\n## ").skip(1) {
            let (section, table) = part.split_once('\n').expect("a title");
            let from = file.find(&format!("\n{section}\n")).unwrap_or_else(|| panic!("{section} is not in the file"));
            let rest = &file[from + section.len() + 1..];
            let end = rest.find("\n[").unwrap_or(rest.len());
            for row in table.lines().filter_map(|line| line.strip_prefix("| `")) {
                let key = row.split('`').next().unwrap_or_default();
                let stands = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} = "));
                // The first of several: [[core]] stands there twice.
                assert!(rest[..end].lines().any(stands), "{section} {key} is not in the annotated file");
            }
        }
    }
}
