//! What the environment asks for, by OpenTelemetry's own variables.
//!
//! The library reads most of them itself, and passes over what it does not understand. Here that
//! is an error, before anything starts: an operator who finds no traces in the morning cannot ask
//! for those of the night.

use std::time::Duration;

use postrider_relay::secret::mask_url;
use reqwest::Url;

use crate::error::{CliError, Code};

const PROTOCOL: &str = "http/protobuf";
const ENDPOINT_DEFAULT: &str = "http://localhost:4318";
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// What an HTTP client of another library would need.
const CERTIFICATES: [&str; 3] = ["CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"];

/// What goes out; nothing, unless it is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) traces: Option<Signal>,
    pub(super) logs: Option<Signal>,
}

/// Where one kind of thing goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signal {
    /// What it is, in a word.
    pub(super) what: &'static str,
    /// The whole URL.
    pub(super) endpoint: String,
    /// Longest time for a request.
    pub(super) timeout: Duration,
}

/// A variable that cannot be followed: what is wrong with it, and what to do.
type Mistake = (String, String);

impl Settings {
    /// Reads the variables, and finds all mistakes at once. One that is empty is not set.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, CliError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_true = |value: String| value.trim().eq_ignore_ascii_case("true");
        if variable("OTEL_SDK_DISABLED").is_some_and(is_true) {
            return Ok(Self { traces: None, logs: None });
        }
        let mut reader = Reader { variable, mistakes: Vec::new() };
        let traces = reader.signal("traces");
        let logs = reader.signal("logs");
        if traces.is_some() {
            reader.check_sampler();
        }
        let mistakes = reader.mistakes;
        if mistakes.is_empty() { Ok(Self { traces, logs }) } else { Err(to_error(mistakes)) }
    }
}

struct Reader<V> {
    variable: V,
    mistakes: Vec<Mistake>,
}

impl<V: Fn(&str) -> Option<String>> Reader<V> {
    /// Where something goes, if it is asked for: by the name of an exporter, or of an endpoint.
    fn signal(&mut self, what: &'static str) -> Option<Signal> {
        let name = format!("OTEL_{}_EXPORTER", what.to_uppercase());
        let wanted = match (self.variable)(&name).as_deref().map(str::trim) {
            None => self.of(what, "ENDPOINT").is_some(),
            Some("otlp") => true,
            Some("none") => false,
            Some(other) => {
                let fix = format!("set {name} to otlp or none");
                self.mistake(format!("{name} is {other:?}, which postrider does not have"), fix);
                false
            }
        };
        if !wanted {
            return None;
        }
        self.check_protocol(what);
        self.check_compression(what);
        self.check_headers(what);
        self.check_certificates(what);
        let timeout = self.timeout(what);
        Some(Signal { what, endpoint: self.endpoint(what)?, timeout })
    }

    /// A variable of the exporter: the one for this alone, or the one for everything.
    fn of(&self, what: &str, suffix: &str) -> Option<(String, String)> {
        let alone = format!("OTEL_EXPORTER_OTLP_{}_{suffix}", what.to_uppercase());
        let names = [alone, format!("OTEL_EXPORTER_OTLP_{suffix}")];
        names.into_iter().find_map(|name| (self.variable)(&name).map(|value| (name, value)))
    }

    fn endpoint(&mut self, what: &str) -> Option<String> {
        let given = self.of(what, "ENDPOINT");
        let is_whole = given.as_ref().is_some_and(|(name, _)| name.contains(&what.to_uppercase()));
        let (name, base) = given.unwrap_or_else(|| (String::new(), ENDPOINT_DEFAULT.to_owned()));
        let endpoint = match is_whole {
            true => base.clone(),
            false => format!("{}/v1/{what}", base.trim_end_matches('/')),
        };
        let url = Url::parse(&endpoint).ok().filter(|url| url.has_host());
        let Some(url) = url.filter(|url| matches!(url.scheme(), "http" | "https")) else {
            let fix = format!("write, for example, {name}={ENDPOINT_DEFAULT}");
            self.mistake(format!("{name} is {:?}, no URL of HTTP", shown(&base)), fix);
            return None;
        };
        if !url.username().is_empty() || url.password().is_some() {
            let fix =
                "give them by OTEL_EXPORTER_OTLP_HEADERS, for example authorization=Basic%20…";
            self.mistake(format!("{name} has a user or a password, which are not sent"), fix);
            return None;
        }
        Some(endpoint)
    }

    fn check_protocol(&mut self, what: &str) {
        let Some((name, protocol)) = self.of(what, "PROTOCOL") else { return };
        if protocol != PROTOCOL {
            let fix = format!(
                "set {name}={PROTOCOL}, and let the endpoint be where the collector takes HTTP: \
                 port 4318 if nothing else was chosen"
            );
            self.mistake(format!("{name} is {protocol:?}, and postrider has only {PROTOCOL}"), fix);
        }
    }

    fn check_compression(&mut self, what: &str) {
        let Some((name, compression)) = self.of(what, "COMPRESSION") else { return };
        if !["gzip", "none"].contains(&compression.as_str()) {
            let what = format!("{name} is {compression:?}, which postrider does not have");
            self.mistake(what, format!("set {name} to gzip or none"));
        }
    }

    /// The values are secret, and so may be the names of what has none.
    fn check_headers(&mut self, what: &str) {
        let Some((name, headers)) = self.of(what, "HEADERS") else { return };
        let is_pair = |header: &str| header.split_once('=').is_some_and(|(key, _)| !key.is_empty());
        if !headers.split(',').filter(|header| !header.trim().is_empty()).all(is_pair) {
            let fix = "write name=value,name=value, with a comma of a value as %2C";
            self.mistake(format!("{name} has a header without a name or a value"), fix);
        }
    }

    fn check_certificates(&mut self, what: &str) {
        for suffix in CERTIFICATES {
            if let Some((name, _)) = self.of(what, suffix) {
                let fix = format!(
                    "unset {name}; SSL_CERT_FILE names a file of authorities that are trusted"
                );
                self.mistake(format!("{name} is set, which postrider does not have"), fix);
            }
        }
    }

    fn timeout(&mut self, what: &str) -> Duration {
        let Some((name, timeout)) = self.of(what, "TIMEOUT") else { return TIMEOUT_DEFAULT };
        let millis = timeout.trim().parse::<u64>().ok().filter(|millis| *millis > 0);
        millis.map(Duration::from_millis).unwrap_or_else(|| {
            let what = format!("{name} is {timeout:?}, no number of milliseconds");
            self.mistake(what, format!("write, for example, {name}=10000"));
            TIMEOUT_DEFAULT
        })
    }

    fn check_sampler(&mut self) {
        let Some(sampler) = (self.variable)("OTEL_TRACES_SAMPLER") else { return };
        if !SAMPLERS.contains(&sampler.as_str()) {
            let what = format!("OTEL_TRACES_SAMPLER is {sampler:?}, which postrider does not have");
            self.mistake(what, format!("choose one of {}", SAMPLERS.join(", ")));
        } else if sampler.ends_with("traceidratio") {
            let ratio = (self.variable)("OTEL_TRACES_SAMPLER_ARG");
            let ratio = ratio.and_then(|ratio| ratio.parse::<f64>().ok());
            if !ratio.is_some_and(|ratio| (0.0..=1.0).contains(&ratio)) {
                let what = "OTEL_TRACES_SAMPLER_ARG is no number from 0 to 1".to_owned();
                self.mistake(what, "write, for example, OTEL_TRACES_SAMPLER_ARG=0.1");
            }
        }
    }

    /// Both kinds of things may have the same one.
    fn mistake(&mut self, what: String, fix: impl Into<String>) {
        if !self.mistakes.iter().any(|(known, _)| *known == what) {
            self.mistakes.push((what, fix.into()));
        }
    }
}

/// Scheme and server of a URL, if it is one: a path may hold a token.
fn shown(url: &str) -> String {
    let masked = mask_url(url);
    match masked.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}", rest.split('/').next().unwrap_or_default())
        }
        None => masked,
    }
}

fn to_error(mut mistakes: Vec<Mistake>) -> CliError {
    if mistakes.len() == 1
        && let Some((what, fix)) = mistakes.pop()
    {
        return CliError::new(Code::Configuration, what).with_fix(fix);
    }
    let what = format!("{} variables of OpenTelemetry cannot be followed", mistakes.len());
    let mut error = CliError::new(Code::Configuration, what);
    error.why = mistakes.into_iter().map(|(what, fix)| format!("{what}; {fix}")).collect();
    error.with_fix("mend them, or set OTEL_SDK_DISABLED=true to go without")
}

#[cfg(test)]
mod tests;
