//! The headers of a request as those of a message.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::refusal::Refusal;

/// Names that belong to the request and not to the event. Some hold secrets, which must not get
/// into a dead letter.
const TRANSPORT: [&str; 20] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-real-ip",
];
const TRANSPORT_PREFIX: &str = "x-forwarded-";
/// What names of headers with secrets have in them.
const SECRET: [&str; 6] = ["api-key", "apikey", "auth", "password", "secret", "token"];

/// The name under which the id is looked for first.
const OWN_ID: &str = "postrider-id";

/// The headers of a message: the facts beside the body are decoded, what belongs to the request is
/// left out. The id is the signed one, whatever the other headers say.
pub(super) fn headers(id: &str, headers: &HeaderMap) -> Result<Vec<(String, String)>, Refusal> {
    let mut texts = Vec::with_capacity(headers.len() + 1);
    texts.push((OWN_ID.to_owned(), id.to_owned()));
    for (name, value) in headers {
        if is_transport(name) || name == OWN_ID {
            continue;
        }
        let text = if is_fact(name) {
            let decoded = decoded(value);
            Some(decoded.ok_or_else(|| Refusal::BadHeader { name: name.to_string() })?)
        } else {
            // What is no text was added on the way: an event's headers are.
            std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned)
        };
        texts.extend(text.map(|text| (name.to_string(), text)));
    }
    Ok(texts)
}

fn is_transport(name: &HeaderName) -> bool {
    let name = name.as_str();
    TRANSPORT.contains(&name)
        || name.starts_with(TRANSPORT_PREFIX)
        || SECRET.iter().any(|part| name.contains(part))
}

/// Whether a header is a fact about the event; these are percent-encoded.
fn is_fact(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ce-") || name.starts_with("postrider-") || ["id", "eventtype"].contains(&name)
}

/// A text as the HTTP binding of CloudEvents has it (3.1.3.2): quoted or not, then
/// percent-encoded. `None` if it is none.
fn decoded(value: &HeaderValue) -> Option<String> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?;
    let text = unquoted(text);
    percent_decode_str(&text).decode_utf8().ok().map(Cow::into_owned)
}

fn unquoted(text: &str) -> Cow<'_, str> {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let Some(inner) = inner else { return Cow::Borrowed(text) };
    let mut unescaped = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        let escaped = if char == '\\' { chars.next() } else { None };
        unescaped.push(escaped.unwrap_or(char));
    }
    Cow::Owned(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: (&'static str, &'static [u8])) -> Result<Vec<(String, String)>, Refusal> {
        let value = HeaderValue::from_bytes(header.1).unwrap();
        let map = HeaderMap::from_iter([(HeaderName::from_static(header.0), value)]);
        let mut texts = headers("1", &map)?;
        assert_eq!(texts.remove(0), (OWN_ID.to_owned(), "1".to_owned()));
        Ok(texts)
    }

    #[test]
    fn facts_are_decoded_and_others_are_not() {
        for (name, value, expected) in [
            ("ce-subject", &b"Z%C3%BCrich%20100%25"[..], "Z\u{fc}rich 100%"),
            ("ce-subject", b"\"a \\\"b\\\" %41\"", "a \"b\" A"),
            ("ce-subject", b"\"", "\""),
            ("ce-subject", b"100%", "100%"),
            ("eventtype", b"Order%20Paid", "Order Paid"),
            ("postrider-key", b"a%2Fb", "a/b"),
            ("tenant", b"100%25 \"x\"", "100%25 \"x\""),
            ("tenant", b"\xc3\xbc", "\u{fc}"),
        ] {
            let expected = vec![(name.to_owned(), expected.to_owned())];
            assert_eq!(read((name, value)).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_text_is_refused_in_facts_and_passed_over_elsewhere() {
        for value in [&b"%FF"[..], b"\xff"] {
            let refusal = read(("ce-type", value)).unwrap_err();
            assert!(matches!(refusal, Refusal::BadHeader { name } if name == "ce-type"));
        }
        assert_eq!(read(("x-office", b"Z\xfcrich")).unwrap(), []);
    }

    #[test]
    fn headers_of_the_request_and_ids_that_nobody_signed_are_left_out() {
        for name in ["authorization", "host", "x-api-key", "x-forwarded-for", OWN_ID] {
            assert_eq!(read((name, b"canary")).unwrap(), [], "{name}");
        }
    }
}
