//! The URL of a broker: `scheme://user:password@host:port,host:port/path`.
//!
//! Brokers come in clusters, so unlike other URLs this one may name several servers.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::{Problem, Secret};

/// A URL, taken apart. User, password and path are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokerUrl {
    /// In lower case.
    pub(super) scheme: String,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    /// At least one.
    pub(super) servers: Vec<Server>,
    /// What stands after the slash behind the servers, if anything does.
    pub(super) path: Option<String>,
}

/// A server of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// A name or an address; one of IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl BrokerUrl {
    /// Takes a URL apart. A server without a port has the default one. Errors show nothing of it,
    /// as any part may hold a secret.
    pub(super) fn parse(url: &str, port_default: u16) -> Result<Self, Problem> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let scheme = scheme.to_ascii_lowercase();
        let example = format!("write {scheme}://host:{port_default}");
        let problem = |message: &str, hint: &str| Problem::new("url", message).with_hint(hint);
        let rest = rest
            .strip_prefix("//")
            .ok_or_else(|| problem("has no // after the scheme", &example))?;
        if rest.contains(['?', '#']) {
            let hint = "write options into the sink's section, and a `?` or `#` of a password as \
                        %3F or %23";
            return Err(problem("has a query or a fragment", hint));
        }
        // A user name or password may hold an `@` that was not encoded, a host cannot.
        let (user, address) = match rest.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, rest),
        };
        let (hosts, path) = match address.split_once('/') {
            Some((hosts, path)) => (hosts, Some(path).filter(|path| !path.is_empty())),
            None => (address, None),
        };
        if user.is_some_and(|user| user.contains('/')) {
            let hint = "write a `/` of a password as %2F";
            return Err(problem("has a `/` before an `@`", hint));
        }
        let decode = |text: &str| {
            let decoded = percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
            decoded.map_err(|_| problem("is not UTF-8 where it is percent-encoded", &example))
        };
        let (user, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            None => (None, None),
            Some((user, password)) => {
                let password = (!password.is_empty()).then(|| decode(password)).transpose()?;
                let user = (!user.is_empty()).then(|| decode(user)).transpose()?;
                (user, password.map(Secret::new))
            }
        };
        let servers = hosts.split(',').map(|server| server_of(server.trim(), port_default));
        let servers = servers.collect::<Option<Vec<_>>>();
        let servers =
            servers.ok_or_else(|| problem("names a server that is not host:port", &example))?;
        let path = path.map(decode).transpose()?;
        Ok(Self { scheme, user, password, servers, path })
    }

    /// The servers, for a message to people: `a:1,b:2`.
    pub(super) fn servers_shown(&self) -> String {
        self.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

fn server_of(text: &str, port_default: u16) -> Option<Server> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            let host = host.parse::<std::net::Ipv6Addr>().ok().map(|_| host)?;
            match port {
                "" => (host, None),
                port => (host, Some(port.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port =
        port.map_or(Some(port_default), |port| port.parse().ok().filter(|port| *port > 0))?;
    let is_of_host = |char: char| char.is_alphanumeric() || "-._:".contains(char);
    if host.is_empty() || !host.chars().all(is_of_host) {
        return None;
    }
    Some(Server { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<BrokerUrl, String> {
        BrokerUrl::parse(url, 9092).map_err(|problem| problem.to_string())
    }

    #[test]
    fn every_part_is_found() {
        let url = parse("KAFKA://us%40er:p%2Fa@ss@a,b.example:1,[::1]:2,[::2]/v%2Fh").unwrap();
        assert_eq!(url.scheme, "kafka");
        assert_eq!(url.user.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_ref().map(Secret::expose), Some("p/a@ss"));
        assert_eq!(url.servers_shown(), "a:9092,b.example:1,[::1]:2,[::2]:9092");
        assert_eq!(url.path.as_deref(), Some("v/h"));
    }

    #[test]
    fn parts_may_be_missing() {
        let url = parse("kafka://127.0.0.1").unwrap();
        assert_eq!((url.user, url.password, url.path), (None, None, None));
        assert_eq!(parse("redis://:secret@h").unwrap().user, None);
        assert_eq!(parse("amqp://h/").unwrap().path, None);
    }

    #[test]
    fn mistakes_are_named_without_the_secret() {
        for (url, expected) in [
            ("kafka:host", "has no // after the scheme; write kafka://host:9092"),
            ("kafka://", "names a server that is not host:port"),
            ("kafka://a,,b", "names a server that is not host:port"),
            ("kafka://canary:0", "names a server that is not host:port"),
            ("kafka://u:canary@h:x", "names a server that is not host:port"),
            ("kafka://u:can/ary@h", "has a `/` before an `@`; write a `/` of a password as %2F"),
            ("kafka://u:canary?@h", "has a query or a fragment"),
            ("kafka://h?acks=canary", "has a query or a fragment"),
            ("kafka://u:%FFcanary@h", "is not UTF-8"),
            ("kafka://[canary]:1", "names a server that is not host:port"),
        ] {
            let message = parse(url).unwrap_err();
            assert!(message.contains(expected), "{url}: {message}");
            assert!(!message.contains("canary"), "{message}");
        }
    }
}
