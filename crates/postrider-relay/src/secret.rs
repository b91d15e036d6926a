//! Keeping secrets out of whatever people read: logs, errors and `Debug` output.
//!
//! A URL may hold a password in its user part, tokens in its query and, if it is one of HTTP, a
//! token in its path, so it is never printed as it is: [`mask_url`] hides them all. A value that
//! was taken from `${env:X}` or `${file:path}` is shown as that reference, whatever it holds.

use std::fmt;

/// What stands in the place of a secret.
pub const MASK: &str = "***";

/// What ends the host in a URL of HTTP.
const SLASHES: [char; 2] = ['/', '\\'];

/// A secret from the configuration. It shows as `***` wherever it is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// A URL that prints without its secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl {
    value: String,
    shown: String,
}

impl SecretUrl {
    /// A URL that prints as [`mask_url`] shows it.
    pub fn new(value: impl Into<String>) -> Self {
        let value = value.into();
        let shown = mask_url(&value);
        Self { value, shown }
    }

    /// A URL made from `written`, in which references to secrets still stand: it prints as that.
    pub fn from_reference(value: impl Into<String>, written: &str) -> Self {
        Self { value: value.into(), shown: mask_url(written) }
    }

    /// The URL with its secrets: for connecting, not for printing.
    pub fn expose(&self) -> &str {
        &self.value
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shown)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// The URL with its user part, query and fragment replaced by a mask, and for `http` and `https`
/// its path too.
///
/// Also works for text that is not a valid URL: in doubt it hides more.
pub fn mask_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (mut address, rest) = url.split_at(end);
    let mut rest = rest.chars();
    let mark = rest.next();

    let mut masked = String::with_capacity(url.len());
    let is_http = is_http(url);
    if is_http {
        // HTTP takes any number of slashes after the colon, in both directions.
        let (scheme, remainder) = address.split_once(':').unwrap_or((address, ""));
        masked.push_str(scheme);
        masked.push_str("://");
        address = remainder.trim_start_matches(SLASHES);
    } else if let Some((scheme, remainder)) = address.split_once("://") {
        masked.push_str(scheme);
        masked.push_str("://");
        address = remainder;
    }
    // A password may hold an unescaped `?` or `#`: then no part can be told from another.
    if rest.as_str().contains('@') && !address.contains('@') {
        return masked + MASK;
    }
    let address = mask_user(address);
    masked.push_str(&if is_http { mask_path(address) } else { address });
    if let Some(mark) = mark {
        masked.push(mark);
        masked.push_str(MASK);
    }
    masked
}

fn is_http(url: &str) -> bool {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| matches!(scheme.as_str(), "http" | "https"))
}

/// Masks the path of `host/path`, unless it is empty.
fn mask_path(mut address: String) -> String {
    if let Some(path) = address.find(SLASHES)
        && path + 1 < address.len()
    {
        address.replace_range(path + 1.., MASK);
    }
    address
}

/// Masks the user part of `user:password@host/path`.
fn mask_user(address: &str) -> String {
    let authority_end = address.find('/').unwrap_or(address.len());
    if let Some(at) = address[..authority_end].rfind('@') {
        return format!("{MASK}{}", &address[at..]);
    }
    // No user part, unless the password holds an unescaped `/`: then what stands before it is
    // not a host with a port.
    let port = address[..authority_end].rsplit_once(':').map(|(_, port)| port);
    let is_host = port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match address.rfind('@') {
        Some(at) if !is_host => format!("{MASK}{}", &address[at..]),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_masked() {
        for (url, expected) in [
            ("stdout:", "stdout:"),
            ("file:///var/lib/out.jsonl", "file:///var/lib/out.jsonl"),
            ("sqlite://app.db", "sqlite://app.db"),
            ("sqlite://app.db?key=canary", "sqlite://app.db?***"),
            ("http://localhost:8080", "http://localhost:8080"),
            ("http://localhost:8080/", "http://localhost:8080/"),
            ("http://localhost:8080/canary", "http://localhost:8080/***"),
            ("https://host/hooks/canary/", "https://host/***"),
            ("HTTP:host\\canary", "HTTP://host\\***"),
            ("http://localhost:8080/users/@canary", "http://localhost:8080/***"),
            ("http://u:canary@host/hook?token=canary#canary", "http://***@host/***?***"),
            ("http://u:can/ary@host/canary", "http://***@host/***"),
            ("http://host?canary", "http://host?***"),
            ("http://host/hook#canary", "http://host/***#***"),
            ("postgres://u:can/ary@host/db", "postgres://***@host/db"),
            ("postgres://u:canary?x@host/db", "postgres://***"),
            ("postgres://u:canary#x@host/db?a=b", "postgres://***"),
            ("http://host/hook?mail=x@canary", "http://***"),
            ("u:canary@host", "***@host"),
            ("", ""),
        ] {
            assert_eq!(mask_url(url), expected, "{url}");
            assert!(!mask_url(url).contains("canary"));
        }
    }

    #[test]
    fn a_url_never_prints_its_secrets() {
        let url = SecretUrl::from_reference("http://canary/canary", "http://${env:HOST}/x");
        let shown = "http://${env:HOST}/***";
        assert_eq!(format!("{url} {url:?}"), format!("{shown} {shown:?}"));
        assert_eq!(url.expose(), "http://canary/canary");
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Some(Secret::new("whsec_abc"))), "Some(***)");
    }
}
