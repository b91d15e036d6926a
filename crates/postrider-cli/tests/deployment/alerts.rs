//! The alerts, their tests and their pages.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::Fixture;
use crate::{documents, read, root};

const HEADINGS: [&str; 4] =
    ["What it means", "How to look", "How to mend it", "How to know that it is over"];

fn promtool(args: &[&str]) -> String {
    let ran = Command::new("promtool").args(args).current_dir(root()).output();
    let ran =
        ran.unwrap_or_else(|error| panic!("promtool: {error}: run `cargo xtask services up`"));
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(ran.status.success(), "promtool {}: {said}", args.join(" "));
    said
}

fn rules() -> Vec<Value> {
    let rules: Value = yaml_serde::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    rules["groups"][0]["rules"].as_array().unwrap().clone()
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    promtool(&["check", "rules", "deploy/prometheus/rules.yml"]);
    let said = promtool(&["test", "rules", "deploy/prometheus/rules_test.yml"]);
    assert!(said.contains("SUCCESS"), "{said}");
}

/// As rules they are read by the same parser as in Grafana's data source.
#[test]
fn queries_of_the_dashboard_are_queries() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/postrider.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let rules: Vec<Value> = targets
        .map(|target| {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            serde_json::json!({ "record": "a_query", "expr": query, "labels": { "id": query } })
        })
        .collect();
    assert!(rules.len() > 20, "{}", rules.len());
    let fixture = Fixture::new();
    let file = serde_json::json!({ "groups": [{ "name": "queries", "rules": rules }] });
    fixture.write("queries.yml", yaml_serde::to_string(&file).unwrap());
    promtool(&["check", "rules", &fixture.path("queries.yml").display().to_string()]);
}

#[test]
fn every_alert_is_tested_and_has_a_page() {
    let tests = read("deploy/prometheus/rules_test.yml");
    let guide = read("docs/guides/monitoring.md");
    let mut alerts = BTreeSet::new();
    for rule in rules() {
        let alert = rule["alert"].as_str().unwrap().to_owned();
        let fires = format!("labels: ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"");
        assert!(tests.contains(&fires), "no test expects {alert}");
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning"].contains(&severity), "{alert}: {severity}");
        let annotations = &rule["annotations"];
        for name in ["summary", "description"] {
            assert!(annotations[name].as_str().is_some_and(|text| !text.is_empty()), "{alert}");
        }
        let page = format!("docs/runbooks/{alert}.md");
        let url = annotations["runbook_url"].as_str().unwrap();
        assert!(url.starts_with("https://") && url.ends_with(&format!("/{page}")), "{url}");
        let text = read(&page);
        assert!(text.starts_with(&format!("# {alert}\n\nSeverity: {severity}.\n")), "{page}");
        let headings: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "{page}");
        let row = format!("| [{alert}](../runbooks/{alert}.md) | {severity} |");
        assert!(guide.contains(&row), "`{row}` is not in docs/guides/monitoring.md");
        alerts.insert(alert);
    }
    let pages: BTreeSet<String> =
        documents("docs/runbooks").into_iter().map(|(name, _)| name).collect();
    assert_eq!(alerts, pages);
}
