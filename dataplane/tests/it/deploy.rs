//! Dashboard, alerts, runbooks and operating pages name only metrics and labels that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use sluice::cli::metrics;
use sluice::sync::metrics::Metric;

use crate::common::skip;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every metric by the name that it is scraped by.
fn known() -> BTreeMap<String, Metric> {
    let metrics = metrics::table().into_iter().flat_map(|(_, metrics)| metrics);
    metrics.map(|metric| (metric.scraped_name(), metric)).collect()
}

/// The names of metrics in a text, each with what follows it.
fn named(text: &str) -> Vec<(&str, &str)> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices("sluice_") {
        if at > 0 && (is_name(text.as_bytes()[at - 1]) || text.as_bytes()[at - 1] == b'-') {
            continue;
        }
        let end = text[at..].bytes().position(|byte| !is_name(byte)).map_or(text.len(), |length| at + length);
        found.push((&text[at..end], &text[end..]));
    }
    found
}

/// The labels that a selector behind a name asks for.
fn selected(rest: &str) -> Vec<&str> {
    let Some(inside) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) else { return Vec::new() };
    inside.0.split(',').filter_map(|part| part.split(['=', '!', '<']).next()).map(str::trim).collect()
}

/// What is wrong with the metrics of a text.
fn wrong(text: &str, known: &BTreeMap<String, Metric>) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, rest) in named(text) {
        // "sluice_ledger_relay_…" speaks of several.
        if name.ends_with('_') {
            if !known.keys().any(|known| known.starts_with(name)) {
                findings.push(format!("no metric begins with {name}"));
            }
            continue;
        }
        let Some(metric) = known.get(name) else {
            findings.push(format!("{name} is no metric"));
            continue;
        };
        for label in selected(rest) {
            let outside = matches!(label, "instance" | "job" | "");
            if !outside && !metric.labels.contains(&label) {
                findings.push(format!("{name} has no label {label}"));
            }
        }
    }
    findings
}

#[test]
fn names_are_found_and_judged() {
    let known = known();
    assert_eq!(
        wrong("sluice_store_full{store=\"a\"} and sluice_ledger_relay_ … _sluice_x", &known),
        Vec::<String>::new()
    );
    assert_eq!(wrong("sluice_store_empty == 1", &known), ["sluice_store_empty is no metric"]);
    assert_eq!(wrong("rate(sluice_capture_frames[5m])", &known), ["sluice_capture_frames is no metric"]);
    assert_eq!(wrong("sluice_store_full{feed=~\"a\",instance=\"x\"}", &known), ["sluice_store_full has no label feed"]);
    assert_eq!(wrong("sluice_other_*", &known), ["no metric begins with sluice_other_"]);
}

#[test]
fn documents_name_metrics_that_exist() {
    let known = known();
    let mut findings = Vec::new();
    for folder in ["docs/runbooks", "docs/operating", "docs"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&path).expect("text");
                findings.extend(wrong(&text, &known).into_iter().map(|what| format!("{}: {what}", path.display())));
            }
        }
    }
    findings.extend(wrong(&read("README.md"), &known).into_iter().map(|what| format!("README.md: {what}")));
    assert!(findings.is_empty(), "{findings:#?}");
}

/// Every `expr` of a JSON document.
fn expressions(value: &serde_json::Value, out: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            out.extend(map.get("expr").and_then(|expr| expr.as_str()).map(String::from));
            map.values().for_each(|value| expressions(value, out));
        }
        serde_json::Value::Array(items) => items.iter().for_each(|value| expressions(value, out)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    let text = read("deploy/grafana/sluice.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut shown = Vec::new();
    expressions(&dashboard, &mut shown);
    let known = known();
    let findings: Vec<String> = shown.iter().flat_map(|expression| wrong(expression, &known)).collect();
    assert!(findings.is_empty(), "{findings:#?}");
    assert!(shown.len() > 100, "{} expressions", shown.len());
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids.len(), panels.len(), "ids are there once");
    for panel in panels {
        let place = &panel["gridPos"];
        assert!(place["x"].as_u64().expect("x") + place["w"].as_u64().expect("w") <= 24, "{}", panel["title"]);
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()));
    }
}

/// An alert as its lines say it.
#[derive(Default, Debug)]
struct Alert {
    name: String,
    keys: BTreeMap<String, String>,
}

/// The alerts of the file. It reads the block style that the file is written in, and nothing else of YAML.
fn alerts(text: &str) -> Vec<Alert> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut key = String::new();
    for words in text.lines().map(str::trim).filter(|words| !words.is_empty() && !words.starts_with('#')) {
        if words.starts_with("- name: ") || words == "rules:" {
            continue;
        }
        if let Some(name) = words.strip_prefix("- alert: ") {
            alerts.push(Alert { name: name.to_string(), ..Alert::default() });
        } else if let Some(alert) = alerts.last_mut() {
            let of_key = |known: &str| words.strip_prefix(known).and_then(|rest| rest.strip_prefix(':'));
            let keys = ["expr", "for", "labels", "annotations", "summary", "description", "runbook"];
            match keys.iter().find_map(|known| Some((*known, of_key(known)?))) {
                Some((found, value)) => {
                    key = found.to_string();
                    alert.keys.insert(key.clone(), value.trim().to_string());
                }
                None => {
                    let value = alert.keys.entry(key.clone()).or_default();
                    value.push(' ');
                    value.push_str(words);
                }
            }
        }
    }
    alerts
}

#[test]
fn every_alert_is_whole_and_of_metrics_that_exist() {
    let text = read("deploy/prometheus/sluice-alerts.yml");
    let (known, alerts) = (known(), alerts(&text));
    assert!(alerts.len() > 40, "{} alerts", alerts.len());
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let name = &alert.name;
        let value = |key: &str| alert.keys.get(key).unwrap_or_else(|| panic!("{name} has no {key}")).as_str();
        assert!(names.insert(name), "{name} is there twice");
        assert!(name.starts_with("Sluice"), "{name}");
        assert_eq!(wrong(value("expr"), &known), Vec::<String>::new(), "{name}");
        assert_eq!(wrong(value("description"), &known), Vec::<String>::new(), "{name}");
        let severity = value("labels");
        assert!(matches!(severity, "{severity: critical}" | "{severity: warning}"), "{name}: {severity}");
        assert!(value("summary").contains("$labels.instance"), "{name}");
        let runbook = value("runbook");
        let page =
            runbook.strip_prefix(INSTALLED).unwrap_or_else(|| panic!("{name}: {runbook} is not below {INSTALLED}"));
        assert!(root().join(page).is_file(), "{name}: there is no {page}");
        assert!(speaks_of(&read(page), name, value("expr")), "{name}: {page} names neither it nor a metric of it");
    }
}

/// Where the package puts the repository's documents.
const INSTALLED: &str = "/usr/share/doc/sluice/";

/// Whether a page names the alert, or a metric that it is made of.
fn speaks_of(page: &str, alert: &str, expression: &str) -> bool {
    let there: BTreeSet<&str> = named(page).into_iter().map(|(name, _)| name).collect();
    page.contains(alert) || named(expression).iter().any(|(name, _)| there.contains(name))
}

#[test]
fn a_page_speaks_of_an_alert_by_name_or_metric() {
    assert!(speaks_of("`sluice_store_full` is 1", "SluiceStoreFull", "sluice_store_full == 1"));
    assert!(speaks_of("for SluiceDown", "SluiceDown", "up == 0"));
    assert!(!speaks_of("`sluice_store_full_times_total` rises", "SluiceStoreFull", "sluice_store_full == 1"));
}

/// (alert, level, page) of each row of the operator's table of alerts.
fn rows(page: &str) -> BTreeSet<(String, String, String)> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let alert = cells.get(1)?.strip_prefix('`')?.strip_suffix('`').filter(|name| name.starts_with("Sluice"))?;
        let (_, target) = cells.get(4)?.split_once("](")?;
        let file = target.strip_suffix(')')?;
        let page =
            file.strip_prefix("../").map_or_else(|| format!("docs/operating/{file}"), |rest| format!("docs/{rest}"));
        Some((alert.to_string(), cells[2].to_string(), page))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_table_of_alerts_is_the_rules() {
    let rule = |alert: &Alert| {
        let value = |key: &str| alert.keys.get(key).map_or("", String::as_str);
        let level = value("labels").trim_start_matches("{severity: ").trim_end_matches('}');
        (alert.name.clone(), level.to_string(), value("runbook").trim_start_matches(INSTALLED).to_string())
    };
    let rules: BTreeSet<_> = alerts(&read("deploy/prometheus/sluice-alerts.yml")).iter().map(rule).collect();
    let rows = rows(&read("docs/operating/monitor.md"));
    let (missing, unknown) = (rules.difference(&rows), rows.difference(&rules));
    let (missing, unknown): (Vec<_>, Vec<_>) = (missing.collect(), unknown.collect());
    assert!(missing.is_empty() && unknown.is_empty(), "not in the table: {missing:#?}; not in the rules: {unknown:#?}");
}

/// Prometheus' own judgement, where it is at hand. (Debian's package is 96 MB and starts a server: setup does not fetch it.)
#[test]
fn promtool_finds_the_rules_right() {
    let rules = root().join("deploy/prometheus/sluice-alerts.yml");
    let Ok(output) = Command::new("promtool").args(["check", "rules"]).arg(rules).output() else {
        return skip("no promtool (Debian: prometheus)", false);
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
