//! The JSON Schema of the configuration, judged by a validator that is not ours.

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

struct Judge {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Judge {
    fn new() -> Judge {
        let schema: Value = serde_json::from_str(&sluice::cli::check::schema_text()).expect("JSON");
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("sluice.schema.json", schema).expect("a schema");
        let index = compiler.compile("sluice.schema.json", &mut schemas).expect("compiles");
        Judge { schemas, index }
    }

    /// What is wrong with a TOML; `None`: nothing.
    fn wrong(&self, text: &str) -> Option<String> {
        let table: toml::Table = text.parse().expect("TOML");
        let value = serde_json::to_value(table).expect("JSON");
        self.schemas.validate(&value, self.index).err().map(|error| format!("{error:#}"))
    }
}

#[test]
fn every_file_of_config_is_valid() {
    let judge = Judge::new();
    for (path, text) in super::config_examples::files() {
        assert_eq!(judge.wrong(&text), None, "{}", path.display());
        assert!(text.starts_with("#:schema ../docs/reference/sluice.schema.json\n"), "{}", path.display());
    }
}

#[test]
fn what_the_parser_refuses_the_schema_refuses_too() {
    const GOOD: &str = include_str!("../../../config/default.toml");
    let judge = Judge::new();
    for (from, to, told) in [
        ("cpu = 0", "cpu = 0\ncolour = 3", "colour"),
        ("[control]", "[controls]", "controls"),
        ("idle = \"park\"", "idle = \"sleep\"", "idle"),
        ("cpu = 0", "cpu = \"0\"", "cpu"),
        ("drain = \"10s\"", "drain = 10", "drain"),
        ("drain = \"10s\"", "drain = \"soon\"", "drain"),
        ("block = \"256KiB\"", "block = \"256 potatoes\"", "block"),
        ("protocol = \"iex-tp\"", "", "protocol"),
        ("huge_pages = false", "huge_pages = \"no\"", "huge_pages"),
        ("linger = \"auto\"", "linger = \"sometimes\"", "linger"),
        ("from = \"latest\"", "from = \"yesterday\"", "from"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let text = GOOD.replacen(from, to, 1);
        let wrong = judge.wrong(&text).unwrap_or_else(|| panic!("{to} is valid"));
        assert!(wrong.contains(told), "{to}: {wrong}");
        assert!(sluice::config::parse(&text).is_err(), "{to}");
    }
    // Beyond a limit that `check` finds.
    assert!(judge.wrong(&GOOD.replacen("ring = 4096", "ring = 65536", 1)).is_some());
    // What both take.
    for (from, to) in [
        ("block = \"256KiB\"", "block = 262144"),
        ("from = \"latest\"", "from = 17"),
        ("linger = \"auto\"", "linger = \"50us\""),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_eq!(judge.wrong(&text), None, "{to}");
        assert!(sluice::config::parse(&text).is_ok(), "{to}");
    }
}
