//! What an answer, or the lack of one, means for the pipeline.
//!
//! Errors name the status and the host. They show nothing of the body, since endpoints echo what
//! they were sent, and nothing of the path and query, since these often hold a token.

use std::error::Error;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use url::Url;

use super::resolver::ForbiddenAddress;
use crate::sink::{FailureKind, SinkError};

/// Longest pause that an endpoint can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The verdict on an answer's status.
pub(super) fn verdict(
    status: StatusCode,
    headers: &HeaderMap,
    url: &Url,
    now: SystemTime,
) -> Result<(), SinkError> {
    let retry_after = retry_after(headers, now);
    let (kind, advice) = match status.as_u16() {
        200..=299 => return Ok(()),
        // Of one answer nobody can tell whether it is about this event or about everybody: a
        // firewall refuses single bodies, and some endpoints do not know single aggregates.
        300..=399 => (FailureKind::Refused, redirect_advice(headers, url)),
        401 | 403 => (FailureKind::Refused, "check the credentials in secret_headers".into()),
        404 => (FailureKind::Refused, "check the path of url".into()),
        405 => (FailureKind::Refused, "url must take POST requests".into()),
        407 => (FailureKind::Refused, "a proxy on the way wants credentials".into()),
        410 => (FailureKind::Refused, "the endpoint says that it is gone; check url".into()),
        429 => (FailureKind::Throttled, String::new()),
        503 if retry_after.is_some() => (FailureKind::Throttled, String::new()),
        502..=504 => (FailureKind::Unavailable, String::new()),
        400..=499 if status != StatusCode::REQUEST_TIMEOUT => (
            FailureKind::Rejected,
            "the endpoint does not accept this event; its log may say why".into(),
        ),
        _ => (FailureKind::Failed, String::new()),
    };
    let mut message = format!("{} answered {status}", origin(url));
    if !advice.is_empty() {
        message.push_str("; ");
        message.push_str(&advice);
    }
    let throttled = kind == FailureKind::Throttled;
    let error = match kind {
        FailureKind::Rejected => SinkError::rejected_by_target(message),
        _ => SinkError::new(kind, message),
    };
    Err(error.with_retry_after(retry_after.filter(|_| throttled)))
}

/// The verdict on a request that got no answer.
pub(super) fn no_answer(error: reqwest::Error, url: &Url, timeout: Duration) -> SinkError {
    let (connecting, timed_out) = (error.is_connect(), error.is_timeout());
    let error = error.without_url();
    if connecting {
        return no_connection(&error, url);
    }
    let message = if timed_out {
        format!("{} did not answer within {timeout:?}", origin(url))
    } else {
        format!("{} gave no valid answer: {}", origin(url), cause(&error))
    };
    SinkError::new(FailureKind::Failed, message)
}

/// The verdict on a connection that did not come about.
pub(super) fn no_connection(error: &(dyn Error + 'static), url: &Url) -> SinkError {
    let origin = origin(url);
    if let Some(forbidden) = chain(error).find_map(|error| error.downcast_ref::<ForbiddenAddress>())
    {
        let range = forbidden.range;
        return SinkError::new(
            FailureKind::Misconfigured,
            format!(
                "{origin} leads only to {range} addresses; set allow_private = true if events are \
                 meant to go there"
            ),
        );
    }
    // The words of `rustls::Error::InvalidCertificate`.
    let certificate = chain(error)
        .map(ToString::to_string)
        .find(|text| text.contains("invalid peer certificate"));
    match certificate {
        Some(text) => SinkError::new(
            FailureKind::Misconfigured,
            format!("the certificate of {origin} is not trusted: {text}"),
        ),
        None => SinkError::new(
            FailureKind::Unavailable,
            format!("cannot connect to {origin}: {}", cause(error)),
        ),
    }
}

/// Scheme, host and port: all of a URL that can be shown.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn redirect_advice(headers: &HeaderMap, url: &Url) -> String {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    match location.and_then(|location| url.join(location).ok()) {
        Some(target) => {
            let host = target.host_str().unwrap_or("another place");
            format!("redirects (here to {host}) are not followed; set url to the final address")
        }
        None => "redirects are not followed; set url to the final address".to_owned(),
    }
}

/// Seconds or a date, as RFC 9110 has it.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date: Timestamp = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            SystemTime::from(date).duration_since(now).unwrap_or_default()
        }
    };
    Some(pause.min(RETRY_AFTER_MAX))
}

/// The first cause of an error, which names the trouble; what wraps it says only where it was.
fn cause(error: &(dyn Error + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn url() -> Url {
        Url::parse("http://hooks.example:8080/canary?token=canary").unwrap()
    }

    fn error(status: u16, headers: &[(reqwest::header::HeaderName, &str)]) -> SinkError {
        let pair = |(name, value): &(_, &str)| {
            (reqwest::header::HeaderName::clone(name), HeaderValue::from_str(value).unwrap())
        };
        let headers = headers.iter().map(pair).collect();
        // Sunday, 6 November 1994, 08:49:37.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let status = StatusCode::from_u16(status).unwrap();
        let error = verdict(status, &headers, &url(), now).unwrap_err();
        assert!(!error.message.contains("canary"), "{}", error.message);
        assert!(error.message.starts_with("http://hooks.example:8080 answered "), "{error}");
        error
    }

    #[test]
    fn each_status_has_its_kind() {
        use FailureKind::*;
        let kinds = [
            (Failed, &[100, 101, 408, 500, 501, 505, 599][..]),
            (Refused, &[300, 301, 302, 304, 307, 308, 401, 403, 404, 405, 407, 410]),
            (Rejected, &[400, 402, 409, 411, 413, 415, 418, 422]),
            (Throttled, &[429]),
            (Unavailable, &[502, 503, 504]),
        ];
        for (kind, statuses) in kinds {
            for status in statuses {
                let error = error(*status, &[]);
                assert_eq!(error.kind, kind, "{status}");
                // Whatever is answered to everything can be told from bad events.
                assert_eq!(error.by_target, kind == Rejected, "{status}");
            }
        }
        for status in [200, 201, 202, 204, 299] {
            let status = StatusCode::from_u16(status).unwrap();
            let now = SystemTime::now();
            assert_eq!(verdict(status, &HeaderMap::new(), &url(), now), Ok(()));
        }
    }

    #[test]
    fn an_endpoint_can_ask_for_a_pause() {
        let pauses = [
            ("7", Some(7)),
            ("0", Some(0)),
            ("99999999999", Some(3600)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("soon", None),
            ("-1", None),
        ];
        for (text, seconds) in pauses {
            let error = error(429, &[(RETRY_AFTER, text)]);
            assert_eq!(error.retry_after, seconds.map(Duration::from_secs), "{text}");
        }
        let error = error(503, &[(RETRY_AFTER, "7")]);
        assert_eq!(error.kind, FailureKind::Throttled);
        assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_redirect_names_the_host_it_leads_to() {
        let there = error(307, &[(LOCATION, "https://other.example/canary?canary")]);
        assert!(there.message.contains("(here to other.example) are not followed"), "{there}");
        let here = error(308, &[(LOCATION, "/canary")]);
        assert!(here.message.contains("here to hooks.example"), "{here}");
        assert!(error(300, &[]).message.contains("set url to the final address"));
    }

    #[test]
    fn a_certificate_that_is_not_trusted_is_an_operators_matter() {
        let inner = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        let error = no_connection(&std::io::Error::other(inner), &url());
        assert_eq!(error.kind, FailureKind::Misconfigured);
        assert!(error.message.contains("UnknownIssuer"), "{}", error.message);
    }
}
