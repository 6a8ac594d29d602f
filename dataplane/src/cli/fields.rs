//! Fields of a status as they are shown: what is missing, or of another kind, is nothing rather than a refusal.

use serde_json::Value;

/// A list's items; none where it is no list.
pub fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text; a dash where there is none.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("–")
}

/// A count; 0 where there is none.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// `1 finding`, `2 findings`.
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
