//! What the HTTP sink can be told, and whether it makes sense.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::{Host, Url};

use super::HttpSink;
use super::address::forbidden_range;
use super::request::is_reserved;
use super::resolver::{PublicResolver, SystemResolver};
use super::signature::Signer;
use crate::sink::SinkError;
use crate::sinks::option_reader::OptionReader;
use crate::sinks::problem::{misconfigured, zeros};
use crate::sinks::{PipelineFacts, Problem, Secret, TlsOptions};

/// Where to send events, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The endpoint. It may hold a token in its path or query, so it is never shown.
    pub url: Secret,
    /// Whether the endpoint may be on a private, loopback or otherwise special address.
    /// Defaults to false.
    pub allow_private: bool,
    /// The request that a check sends, HEAD or OPTIONS. Defaults to none, as an endpoint may take
    /// any request for an event.
    pub check_method: Option<Method>,
    /// Most requests at the same time. Defaults to 64.
    pub concurrency: usize,
    /// Longest time for a connection to come about. Defaults to 5 s, and is never more than half
    /// of `timeout`.
    pub connect_timeout: Duration,
    /// Largest body sent. Defaults to 1 MiB.
    pub event_bytes_max: usize,
    /// Headers that events may give although a server or a proxy acts upon them, such as
    /// `content-encoding`. Defaults to none.
    pub event_headers: Vec<String>,
    /// Headers that are sent with each request and must not be seen, such as `authorization`.
    pub secret_headers: Vec<(String, Secret)>,
    /// The secrets of Standard Webhooks, `whsec_…`: each of them signs every request.
    pub signing_secrets: Vec<Secret>,
    /// Longest time for a request, until the head of the answer is there. Defaults to 15 s.
    pub timeout: Duration,
    /// Whom to trust with https, and the sink's own certificate. Defaults to whom the system
    /// trusts, and none.
    pub tls: Option<TlsOptions>,
    /// What is known of the pipeline: headers that it gives each event are sent as they are.
    pub pipeline: PipelineFacts,
}

/// Options that make sense, in the form in which they are used.
pub(super) struct CheckedOptions {
    pub(super) url: Url,
    pub(super) signer: Signer,
    pub(super) secret_headers: HeaderMap,
    /// Headers that events may give although a server acts upon them.
    pub(super) event_headers: Vec<HeaderName>,
}

impl Options {
    /// The defaults for an endpoint.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: Secret::new(url),
            allow_private: false,
            check_method: None,
            concurrency: 64,
            connect_timeout: Duration::from_secs(5),
            event_bytes_max: 1024 * 1024,
            event_headers: Vec::new(),
            pipeline: PipelineFacts::default(),
            secret_headers: Vec::new(),
            signing_secrets: Vec::new(),
            timeout: Duration::from_secs(15),
            tls: None,
        }
    }

    pub(in crate::sinks) fn read(
        url: &str,
        facts: &PipelineFacts,
        reader: &mut OptionReader<'_>,
    ) -> Self {
        let default = Self::new(url);
        let methods = [("HEAD", Method::HEAD), ("OPTIONS", Method::OPTIONS)];
        Self {
            allow_private: reader.bool("allow_private").unwrap_or(default.allow_private),
            check_method: reader.choice("check_method", &methods),
            concurrency: reader.count("concurrency").unwrap_or(default.concurrency),
            connect_timeout: reader.duration("connect_timeout").unwrap_or(default.connect_timeout),
            event_bytes_max: reader.count("event_bytes_max").unwrap_or(default.event_bytes_max),
            event_headers: reader.texts("event_headers"),
            pipeline: facts.clone(),
            secret_headers: reader.secret_table("secret_headers"),
            signing_secrets: reader.secrets("signing_secrets"),
            timeout: reader.duration("timeout").unwrap_or(default.timeout),
            tls: TlsOptions::read(reader),
            url: default.url,
        }
    }

    /// Every mistake, without any I/O.
    pub fn problems(&self) -> Vec<Problem> {
        self.check().err().unwrap_or_default()
    }

    /// Makes a client. Whether the endpoint can be reached shows when it is used.
    pub async fn connect(&self) -> Result<HttpSink, SinkError> {
        let system = Arc::new(SystemResolver);
        if self.allow_private {
            self.connect_by(system)
        } else {
            self.connect_by(Arc::new(PublicResolver::new(system)))
        }
    }

    pub(super) fn connect_by(
        &self,
        resolver: Arc<dyn reqwest::dns::Resolve>,
    ) -> Result<HttpSink, SinkError> {
        let checked = self.check().map_err(misconfigured)?;
        HttpSink::new(self, checked, resolver)
    }

    fn check(&self) -> Result<CheckedOptions, Vec<Problem>> {
        let mut problems = Vec::new();
        let url = self.check_url(&mut problems);
        let signer = Signer::new(&self.signing_secrets)
            .map_err(|message| problems.push(Problem::new("signing_secrets", message)))
            .ok();
        let secret_headers = self.check_secret_headers(&mut problems);
        let event_headers = self.check_event_headers(&mut problems);
        problems.extend(self.tls.iter().flat_map(TlsOptions::problems));
        if self.tls.is_some() && url.as_ref().is_some_and(|url| url.scheme() == "http") {
            let problem = Problem::new("tls", "is of no use to http");
            problems.push(problem.with_hint("write https:// in url, or remove tls"));
        }
        problems.extend(zeros([
            ("concurrency", self.concurrency == 0),
            ("connect_timeout", self.connect_timeout.is_zero()),
            ("event_bytes_max", self.event_bytes_max == 0),
            ("timeout", self.timeout.is_zero()),
        ]));
        match (url, signer) {
            (Some(url), Some(signer)) if problems.is_empty() => {
                Ok(CheckedOptions { url, signer, secret_headers, event_headers })
            }
            _ => Err(problems),
        }
    }

    fn check_url(&self, problems: &mut Vec<Problem>) -> Option<Url> {
        let mut add = |message: String, hint: &str| {
            problems.push(Problem::new("url", message).with_hint(hint));
        };
        let url = Url::parse(self.url.expose())
            .map_err(|error| add(format!("is not a URL: {error}"), "write https://host/path"))
            .ok()?;
        match url.scheme() {
            "http" => {}
            "https" if cfg!(feature = "https") => {}
            "https" => add(
                "https is not part of this build".to_owned(),
                "install the full binary, or build with `--features https`",
            ),
            _ => add("must be http or https".to_owned(), "write https://host/path"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            add(
                "holds a user name or a password".to_owned(),
                "send them as secret_headers = { authorization = \"Basic …\" }",
            );
        }
        let private = match url.host() {
            Some(Host::Domain(name)) => {
                let name = name.trim_end_matches('.');
                (name == "localhost" || name.ends_with(".localhost")).then_some("loopback")
            }
            Some(Host::Ipv4(address)) => forbidden_range(address.into()),
            Some(Host::Ipv6(address)) => forbidden_range(address.into()),
            None => None,
        };
        if let (Some(range), false) = (private, self.allow_private) {
            let host = url.host_str().unwrap_or_default();
            let hint = "set allow_private = true if events are meant to go there";
            add(format!("{host} is a {range} address"), hint);
        }
        Some(url)
    }

    /// Headers that events may give: those that are named, and those that the pipeline gives each.
    fn check_event_headers(&self, problems: &mut Vec<Problem>) -> Vec<HeaderName> {
        let mut headers = Vec::new();
        for name in &self.event_headers {
            match HeaderName::try_from(name) {
                Ok(header) if is_reserved(&header) => {
                    let message = format!("`{name}` is set by the relay itself");
                    problems.push(Problem::new("event_headers", message));
                }
                Ok(header) => headers.push(header),
                Err(_) => {
                    let message = format!("`{name}` is not the name of an HTTP header");
                    problems.push(Problem::new("event_headers", message));
                }
            }
        }
        // What is wrong with these shows with the first event, as before.
        headers.extend(self.pipeline.header_names.iter().filter_map(|name| name.parse().ok()));
        headers
    }

    fn check_secret_headers(&self, problems: &mut Vec<Problem>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.secret_headers {
            let mut add = |message: &str| {
                problems.push(Problem::new(format!("secret_headers.{name}"), message));
            };
            let Ok(header) = HeaderName::try_from(name) else {
                add("is not the name of an HTTP header");
                continue;
            };
            if is_reserved(&header) {
                add("is set by the relay itself");
                continue;
            }
            match HeaderValue::try_from(value.expose()) {
                Ok(mut value) => {
                    value.set_sensitive(true);
                    headers.insert(header, value);
                }
                Err(_) => add("has a character that no HTTP header can hold"),
            }
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(options: &Options) -> Vec<String> {
        options.problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_that_are_not_public_need_leave() {
        for url in [
            "http://127.0.0.1:8080/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:10.0.0.1]/",
            "http://169.254.169.254/latest/meta-data",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://x.localhost/",
        ] {
            let mut options = Options::new(url);
            let found = problems(&options);
            assert_eq!(found.len(), 1, "{url}: {found:?}");
            assert!(found[0].contains("set allow_private = true"), "{url}: {found:?}");
            options.allow_private = true;
            assert!(problems(&options).is_empty(), "{url}");
        }
        for url in ["http://example.com/hook", "http://1.1.1.1/", "http://localhost.example.com/"] {
            assert!(problems(&Options::new(url)).is_empty(), "{url}");
        }
    }

    #[test]
    fn all_mistakes_are_found_at_once_and_no_secret_is_shown() {
        let options = Options {
            concurrency: 0,
            timeout: Duration::ZERO,
            secret_headers: vec![
                ("x y".to_owned(), Secret::new("canary")),
                ("Host".to_owned(), Secret::new("canary")),
                ("webhook-id".to_owned(), Secret::new("canary")),
                ("authorization".to_owned(), Secret::new("canary\n")),
            ],
            signing_secrets: vec![Secret::new("canary")],
            event_headers: vec!["x y".to_owned(), "host".to_owned(), "cookie".to_owned()],
            tls: Some(TlsOptions { key_file: Some("key".into()), ..TlsOptions::default() }),
            ..Options::new("http://user:canary@127.0.0.1/?token=canary")
        };
        let found = problems(&options);
        assert_eq!(found.len(), 13, "{found:#?}");
        assert!(found[0].contains("secret_headers"), "{found:#?}");
        assert!(!found.concat().contains("canary"), "{found:#?}");
        assert!(!format!("{options:?}").contains("canary"));
    }

    #[test]
    fn the_url_must_be_one_that_this_build_can_use() {
        assert!(problems(&Options::new("nonsense"))[0].contains("is not a URL"));
        assert!(problems(&Options::new("ftp://example.com/"))[0].contains("http or https"));
        let https = problems(&Options::new("https://example.com/"));
        if cfg!(feature = "https") {
            assert!(https.is_empty(), "{https:?}");
        } else {
            assert!(https[0].contains("build with `--features https`"), "{https:?}");
        }
    }
}
