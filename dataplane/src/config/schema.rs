//! The JSON Schema of the TOML, for editors: made from the structs themselves, so that keys, types, defaults and descriptions are
//! theirs; limits come from [`super::limits`].

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::ledger::{LedgerSync, Listen};
use super::limits::{Amount, LIMITS, Limit};
use super::load::Config;
use super::quantity::{Bytes, Span};
use super::report::TimeOfDay;
use super::ring::{Linger, MirrorStart};

/// A duration as `humantime` reads it.
const DURATION: &str = "([0-9]+ *[a-zA-Zµ]+ *)+";

/// A type that the TOML holds as text of its own form.
macro_rules! as_schema {
    ($type:ty, $name:literal, $schema:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

as_schema!(Span, "Duration", json_schema!({"type": "string", "pattern": format!("^{DURATION}$")}));
as_schema!(
    Bytes,
    "Bytes",
    json_schema!({"type": ["string", "integer"], "minimum": 0, "pattern": "^ *[0-9]+ *([kKmMgGtT]([iI]?[bB])|[bB])? *$"})
);
as_schema!(Linger, "Linger", json_schema!({"type": "string", "pattern": format!("^(auto|{DURATION})$")}));
as_schema!(
    LedgerSync,
    "Sync",
    json_schema!({"type": "string", "pattern": format!("^(seal|every-ledger|{DURATION})$")})
);
as_schema!(
    MirrorStart,
    "Start",
    json_schema!({"type": ["string", "integer"], "minimum": 1, "pattern": "^(latest|oldest|resume|[0-9]+)$"})
);
as_schema!(TimeOfDay, "TimeOfDay", json_schema!({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}));
as_schema!(Listen, "Listen", json_schema!({"type": "string", "pattern": "^.*:[0-9]+$"}));

/// The schema.
///
/// # Panics
/// Never: what it is made from is known when it is built.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft07().into_generator();
    let mut schema = generator.root_schema_for::<Config>().to_value();
    let root = schema.as_object_mut().expect("a struct is an object");
    root.insert("title".into(), json!("sluice"));
    root.insert(
        "description".into(),
        json!("The configuration of sluice: one TOML for capture, rings, ledgers and control."),
    );
    plain(&mut schema);
    // It has a default only so that the section can be made without one.
    let ledger = &mut schema["definitions"]["LedgerServe"];
    ledger["required"] = json!(["core"]);
    ledger["properties"]["core"].as_object_mut().expect("a key").remove("default");
    for limit in LIMITS {
        set_limit(&mut schema, limit);
    }
    schema
}

/// Takes out what a TOML cannot say (null), the marks of a Rust type that tell an editor nothing, and links between doc comments.
fn plain(value: &mut Value) {
    match value {
        Value::Object(object) => {
            plain_object(object);
            object.values_mut().for_each(plain);
        }
        Value::Array(list) => list.iter_mut().for_each(plain),
        _ => {}
    }
}

fn plain_object(object: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|kind| kind != "null");
        if types.len() == 1 {
            let kind = types.remove(0);
            object.insert("type".into(), kind);
        }
    }
    if let Some(Value::Array(choices)) = object.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
    }
    let of_rust = |format: &str| format.starts_with("int") || format.starts_with("uint");
    if object.get("format").and_then(Value::as_str).is_some_and(of_rust) {
        object.remove("format");
    }
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    if let Some(Value::String(text)) = object.get_mut("description") {
        *text = without_links(text);
    }
}

/// A doc comment as an editor shows it: one paragraph a line, links to Rust items by their last name.
fn without_links(text: &str) -> String {
    let text = text.replace("\n\n", "\u{0}").replace('\n', " ").replace('\u{0}', "\n\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("[`") {
        out.push_str(before);
        match after.split_once("`]") {
            Some((name, end)) => {
                out.push_str(&format!("`{}`", name.rsplit("::").next().unwrap_or(name)));
                rest = end;
            }
            None => {
                out.push_str("[`");
                rest = after;
            }
        }
    }
    out + rest
}

/// The definition of a section, as `ring.serve`.
fn section<'a>(schema: &'a mut Value, section: &str) -> &'a mut Value {
    let mut at = String::new();
    for part in section.split('.') {
        let property = &schema.pointer(&at).expect("a section")["properties"][part];
        at = reference(property).map(|name| format!("/definitions/{name}")).expect("a section is a definition");
    }
    schema.pointer_mut(&at).expect("a section")
}

/// The name of the definition that a property is, or is a list of.
pub fn reference(property: &Value) -> Option<&str> {
    let direct = property["$ref"].as_str().or_else(|| property["items"]["$ref"].as_str());
    let among = || ["allOf", "anyOf"].iter().find_map(|key| property[*key][0]["$ref"].as_str());
    direct.or_else(among).and_then(|path| path.strip_prefix("#/definitions/"))
}

fn set_limit(schema: &mut Value, limit: &Limit) {
    let property = &mut section(schema, limit.section)["properties"][limit.key];
    let Some(object) = property.as_object_mut() else { panic!("{}.{} is no key", limit.section, limit.key) };
    for (word, bound) in [("minimum", limit.least), ("maximum", limit.most)] {
        // A bound of bytes holds for a bare number too; one in text is for `check`.
        match bound {
            Some(Amount::Count(count)) => drop(object.insert(word.into(), json!(count))),
            Some(Amount::Bytes(bytes)) => drop(object.insert(word.into(), json!(bytes.0))),
            Some(Amount::Time(_)) | None => {}
        }
    }
    let text = object.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = format!("{text}\n\nLimits: {}.", limit.words());
    object.insert("description".into(), json!(text.trim()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_is_strict_and_every_key_is_described() {
        let schema = schema();
        let mut sections = vec![("".to_string(), &schema)];
        let definitions = schema["definitions"].as_object().expect("definitions");
        sections.extend(definitions.iter().map(|(name, of)| (name.clone(), of)));
        let mut keys = 0;
        for (name, section) in sections {
            let Some(properties) = section["properties"].as_object() else { continue };
            assert_eq!(section["additionalProperties"], false, "{name}");
            for (key, property) in properties {
                let text = property["description"].as_str().unwrap_or_default();
                assert!(!text.is_empty() && !text.contains("[`"), "{name}.{key}: {text:?}");
                assert!(!property.to_string().contains("null"), "{name}.{key}: {property}");
                keys += 1;
            }
        }
        assert!(keys > 120, "{keys}");
        assert!(schema["definitions"]["LedgerServe"]["properties"].get("trial").is_none());
        assert_eq!(schema["definitions"]["Interface"]["properties"]["ring"]["maximum"], 32_768);
    }

    #[test]
    fn links_of_doc_comments_become_names() {
        assert_eq!(without_links("see [`a::B`] and\nmore"), "see `B` and more");
        assert_eq!(without_links("plain [x] [`open"), "plain [x] [`open");
    }
}
