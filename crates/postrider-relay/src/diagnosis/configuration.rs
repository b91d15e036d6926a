//! Checks of the configuration, beyond the mistakes that keep a relay from starting.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::{Finding, Fix, Level};
use crate::amounts::age;
use crate::config::{Config, PipelineConfig};
#[cfg(unix)]
use crate::shell::word;

/// Published events that go sooner cannot be published again after a night.
const KEEP_MIN: Duration = Duration::from_secs(24 * 60 * 60);
/// What the name of a secret ends with.
const SECRET_NAMES: [&str; 7] =
    ["password", "passphrase", "secret", "token", "credentials", "signing_key", "api_key"];

/// Checks of what the configuration says.
pub fn configuration(config: &Config) -> Vec<Finding> {
    let mut findings = vec![retention(config)];
    findings.extend(config.pipelines.iter().map(cleartext));
    findings
}

/// Who may read or change a configuration file with this text, besides its owner.
pub fn exposure(path: &Path, text: &str) -> Finding {
    let has_secrets = secrets(text).iter().any(|finding| finding.level == Level::Warn);
    file_permissions(path, has_secrets)
}

#[cfg(unix)]
fn file_permissions(path: &Path, has_secrets: bool) -> Finding {
    use std::os::unix::fs::PermissionsExt as _;
    const CHECK: &str = "config-permissions";
    let mode = match std::fs::metadata(path) {
        Ok(found) => found.permissions().mode() & 0o777,
        Err(error) => return Finding::skip(CHECK, format!("cannot look at it: {error}")),
    };
    let shown = path.display();
    let word = word(&path.to_string_lossy()).into_owned();
    let fix = |mode: &str| Fix::command(format!("chmod {mode} {word}"));
    if mode & 0o022 != 0 {
        let found = format!("{shown} can be changed by others (mode {mode:o})");
        return Finding::warn(CHECK, found).with(fix("go-w"));
    }
    if has_secrets && mode & 0o044 != 0 {
        let found = format!("{shown} has a secret in it and can be read by others (mode {mode:o})");
        return Finding::warn(CHECK, found).with(fix("600"));
    }
    Finding::ok(CHECK, format!("{shown} has mode {mode:o}"))
}

#[cfg(not(unix))]
fn file_permissions(_path: &Path, _has_secrets: bool) -> Finding {
    Finding::skip("config-permissions", "this system has no file modes")
}

/// Secrets that stand in the file itself, one finding for each; a single good one if there are
/// none.
pub fn secrets(text: &str) -> Vec<Finding> {
    const CHECK: &str = "config-secrets";
    let Ok(root) = text.parse::<toml::Table>() else {
        return vec![Finding::skip(CHECK, "the file is not TOML")];
    };
    let mut places = Vec::new();
    walk(&toml::Value::Table(root), "", &mut places);
    if places.is_empty() {
        return vec![Finding::ok(CHECK, "no secret stands in the file itself")];
    }
    let fix = "write ${env:NAME} or ${file:path} in its place";
    places
        .into_iter()
        .map(|place| Finding::warn(CHECK, format!("{place} has a secret in it")))
        .map(|finding| finding.with(Fix::advice(fix)))
        .collect()
}

fn walk(value: &toml::Value, place: &str, places: &mut Vec<String>) {
    let below = |key: &str| {
        if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
    };
    match value {
        toml::Value::String(text) if is_secret(place, text) => places.push(place.to_owned()),
        toml::Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{place}[{index}]"), places);
            }
        }
        toml::Value::Table(table) => {
            for (key, value) in table {
                walk(value, &below(key), places);
            }
        }
        _ => {}
    }
}

fn is_secret(place: &str, text: &str) -> bool {
    let name = place.rsplit('.').next().unwrap_or(place).to_ascii_lowercase();
    // One of several is named as all of them are, or stands in a section of that name.
    let name = name.split('[').next().unwrap_or_default().trim_end_matches('s');
    let is_of = |secret: &&str| name.ends_with(secret.trim_end_matches('s'));
    let named = SECRET_NAMES.iter().any(is_of) || place.contains("secret_");
    let value = if named { Some(text) } else { password_of(text) };
    // A reference is no secret, whatever stands around it.
    value.is_some_and(|value| !value.is_empty() && !value.contains("${"))
}

/// The password of a URL.
fn password_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

/// How long what is published can be published again.
fn retention(config: &Config) -> Finding {
    const CHECK: &str = "retention";
    let Some(prune) = &config.prune else {
        return Finding::warn(CHECK, "published events are never removed, and the table grows")
            .with(Fix::advice("add [prune] with keep = \"7d\" to the configuration"));
    };
    let longest = config.pipelines.iter().map(|it| it.options.retry.horizon()).max();
    let needed = longest.unwrap_or_default().max(KEEP_MIN);
    let keep = age(prune.keep);
    if prune.keep < needed && prune.archive.is_none() {
        let needed = age(needed);
        let found = format!(
            "published events are removed after {keep}: what a broker loses later, or a consumer \
             that was down for longer asks for, cannot be published again"
        );
        let fix = format!("keep them for {needed} at least, or name an archive in [prune]");
        return Finding::warn(CHECK, found).with(Fix::advice(fix));
    }
    Finding::ok(CHECK, format!("published events are kept for {keep}"))
}

/// Whether events go to another host without TLS.
fn cleartext(pipeline: &PipelineConfig) -> Finding {
    const CHECK: &str = "sink-encryption";
    let url = pipeline.sink.url.as_str();
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let scheme = scheme.to_ascii_lowercase();
    let has_tls = || match pipeline.sink.options.get("tls") {
        Some(toml::Value::Boolean(is_on)) => *is_on,
        Some(_) => true,
        None => false,
    };
    let (is_open, fix) = match scheme.as_str() {
        "http" => (true, "write https:// in url"),
        "amqp" => (true, "write amqps:// in url"),
        "redis" => (!has_tls(), "write rediss:// in url"),
        "kafka" | "nats" => (!has_tls(), "add tls = true to [pipeline.sink]"),
        _ => (false, ""),
    };
    let finding = match (is_open, leaves_host(rest)) {
        (false, _) => Finding::ok(CHECK, "events are encrypted on their way, or stay on this host"),
        (true, false) => Finding::ok(CHECK, "events do not leave this host"),
        (true, true) => {
            Finding::warn(CHECK, format!("events go to another host as they are, by {scheme}"))
                .with(Fix::advice(fix))
        }
    };
    finding.about(&pipeline.name)
}

/// Whether one of the hosts of `//user@host:port,host/path` is another than this one.
fn leaves_host(rest: &str) -> bool {
    let authority = rest.trim_start_matches('/').split(['/', '?', '#']).next().unwrap_or_default();
    let hosts = authority.rsplit('@').next().unwrap_or_default();
    hosts.split(',').any(|host| {
        let name = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_loopback = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        !(is_loopback || name.is_empty() || name == "localhost" || name.ends_with(".localhost"))
    })
}

#[cfg(test)]
#[cfg(all(feature = "http", feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::config::Environment;

    fn config(prune: &str, url: &str) -> Config {
        let private = if url.starts_with("http") { "allow_private = true" } else { "" };
        let text = format!(
            "{prune}\n[source]\nurl = \"sqlite:app.db\"\n[[pipeline]]\nname = \"a\"\n\
             [pipeline.sink]\nurl = \"{url}\"\n{private}\n"
        );
        Config::parse(&text, "p.toml", &Environment::from_iter([("X", "y")])).unwrap()
    }

    #[test]
    fn secrets_in_the_file_are_named_and_never_shown() {
        let text = "
            [source]
            url = \"postgres://me:canary@host/shop\"
            [[pipeline]]
            [pipeline.sink]
            url = \"kafka://u:${env:P}@host:9092\"
            signing_secrets = [\"canary\"]
            secret_headers = { authorization = \"canary\" }
            sasl = { password = \"canary\", user = \"ann\" }
            token = \"${file:/run/token}\"";
        let found = secrets(text);
        let shown = format!("{found:?}");
        assert!(!shown.contains("canary"), "{shown}");
        let places: Vec<&str> = found.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(
            places,
            [
                "pipeline[0].sink.sasl.password has a secret in it",
                "pipeline[0].sink.secret_headers.authorization has a secret in it",
                "pipeline[0].sink.signing_secrets[0] has a secret in it",
                "source.url has a secret in it",
            ]
        );
        let clean = secrets("[source]\nurl = \"postgres://me@host/shop\"");
        assert_eq!((clean.len(), clean[0].level), (1, Level::Ok));
        assert_eq!(secrets("[source")[0].level, Level::Skip);
    }

    #[test]
    fn what_leaves_the_host_in_the_clear_is_named() {
        for (url, level) in [
            ("http://localhost:8080/hook", Level::Ok),
            ("http://127.0.0.1/hook", Level::Ok),
            ("http://[::1]:8080/hook", Level::Ok),
            ("stdout:", Level::Ok),
            ("file:out.jsonl", Level::Ok),
            #[cfg(feature = "https")]
            ("https://hooks.example.com/x", Level::Ok),
            ("http://hooks.example.com/x", Level::Warn),
            #[cfg(feature = "kafka")]
            ("kafka://localhost:9092,other:9092", Level::Warn),
        ] {
            assert_eq!(cleartext(&config("", url).pipelines[0]).level, level, "{url}");
        }
    }

    #[test]
    fn a_short_retention_is_named() {
        for (prune, level) in [
            ("", Level::Warn),
            ("[prune]\nkeep = \"1h\"", Level::Warn),
            ("[prune]\nkeep = \"1h\"\narchive = \"old\"", Level::Ok),
            ("[prune]\nkeep = \"7d\"", Level::Ok),
        ] {
            assert_eq!(retention(&config(prune, "stdout:")).level, level, "{prune}");
        }
    }
}
