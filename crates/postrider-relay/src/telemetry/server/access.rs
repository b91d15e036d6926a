//! Who is answered: those who know the token, if there is one, and who mean this relay.
//!
//! A page in somebody's browser can have a name of its own lead to an address inside (DNS
//! rebinding), and so read what only the host of the relay should. The header `Host` gives it away:
//! it has that name. So a relay on a loopback address answers to numeric addresses, `localhost` and
//! the names in `hosts`. On another address it answers to any name, unless there are `hosts`:
//! whoever gathers metrics has a name for it that nobody told the relay.

use std::net::IpAddr;

use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};

use crate::config::HttpConfig;
use crate::secret::Secret;

/// The rules of one server.
#[derive(Debug)]
pub(super) struct Access {
    token: Option<Secret>,
    /// `None` is any.
    hosts: Option<Vec<String>>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Host,
    Token,
}

impl Access {
    pub(super) fn new(config: &HttpConfig) -> Self {
        let is_any = config.hosts.is_empty() && !config.listen.ip().to_canonical().is_loopback();
        let hosts = config.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self { token: config.token.clone(), hosts: (!is_any).then_some(hosts) }
    }

    pub(super) fn refusal<B>(&self, request: &Request<B>) -> Option<Refusal> {
        let headers = request.headers();
        let mut hosts = headers.get_all(HOST).iter();
        // HTTP/1.0 needs none, and no browser speaks it.
        let host = hosts.next().map(|host| host.to_str().unwrap_or("?"));
        let host = host.or_else(|| request.uri().authority().map(|it| it.as_str()));
        if hosts.next().is_some() || host.is_some_and(|host| !self.goes_by(host)) {
            return Some(Refusal::Host);
        }
        let token = self.token.as_ref()?;
        let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let (scheme, given) = given.split_at_checked(7).unwrap_or_default();
        let is_known = scheme.eq_ignore_ascii_case(b"bearer ") && is_same(given, token);
        (!is_known).then_some(Refusal::Token)
    }

    fn goes_by(&self, host: &str) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let name = name(host).to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok() || name == "localhost" || hosts.contains(&name)
    }
}

/// A host without its port.
fn name(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The colons of an address of IPv6 are inside brackets.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Takes the same time wherever the first difference is.
fn is_same(given: &[u8], token: &Secret) -> bool {
    let token = token.expose().as_bytes();
    let differences = given.iter().zip(token).fold(0, |found, (a, b)| found | (a ^ b));
    given.len() == token.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(listen: &str, hosts: &[&str], given: &[(&'static str, &str)]) -> Option<Refusal> {
        let access = Access::new(&HttpConfig {
            listen: listen.parse().unwrap(),
            token: None,
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        });
        let mut request = Request::new(());
        for (name, value) in given {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        access.refusal(&request)
    }

    #[test]
    fn a_relay_on_loopback_goes_by_addresses_localhost_and_its_hosts() {
        for host in
            ["127.0.0.1:8787", "localhost", "LOCALHOST:1", "[::1]:8787", "[::1]", "10.0.0.1"]
        {
            assert_eq!(refusal("127.0.0.1:0", &[], &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "evil.example:8787", "localhost.evil.example", "", "a b"] {
            let found = refusal("[::1]:0", &["relay"], &[("host", host)]);
            assert_eq!(found, Some(Refusal::Host), "{host}");
        }
        assert_eq!(refusal("[::1]:0", &["Relay"], &[("host", "relay:8787")]), None);
        let twice = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert_eq!(refusal("127.0.0.1:0", &[], &twice), Some(Refusal::Host));
        assert_eq!(refusal("127.0.0.1:0", &[], &[]), None);
    }

    #[test]
    fn elsewhere_it_goes_by_any_name_unless_it_is_told_its_own() {
        let evil = [("host", "evil.example")];
        assert_eq!(refusal("0.0.0.0:0", &[], &evil), None);
        assert_eq!(refusal("0.0.0.0:0", &["relay"], &evil), Some(Refusal::Host));
        assert_eq!(refusal("0.0.0.0:0", &["relay"], &[("host", "relay")]), None);
    }
}
