//! Resolves names, and hides every address that the relay must not send to.
//!
//! The filter sits in the resolver of the HTTP client itself, so that the addresses it has
//! checked are those that are connected to: a name that answers differently the second time
//! (DNS rebinding) gains nothing. Addresses written in the URL do not come here; they are checked
//! with the options.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::forbidden_range;

/// Asks the system.
pub(super) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Passes on only addresses on the public internet.
pub(super) struct PublicResolver {
    inner: Arc<dyn Resolve>,
    forbidden: fn(IpAddr) -> Option<&'static str>,
}

impl PublicResolver {
    pub(super) fn new(inner: Arc<dyn Resolve>) -> Self {
        Self { inner, forbidden: forbidden_range }
    }

    /// With another rule: tests connect to loopback addresses alone.
    #[cfg(test)]
    pub(super) fn with_rule(
        inner: Arc<dyn Resolve>,
        forbidden: fn(IpAddr) -> Option<&'static str>,
    ) -> Self {
        Self { inner, forbidden }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (found, forbidden) = (self.inner.resolve(name), self.forbidden);
        Box::pin(async move {
            let (mut allowed, mut refused) = (Vec::<SocketAddr>::new(), None);
            for address in found.await? {
                match forbidden(address.ip()) {
                    Some(range) => refused = Some(range),
                    None => allowed.push(address),
                }
            }
            match refused {
                Some(range) if allowed.is_empty() => Err(ForbiddenAddress { range }.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// A name leads only to addresses that the relay must not send to.
#[derive(Debug, thiserror::Error)]
#[error("the name leads only to {range} addresses")]
pub(super) struct ForbiddenAddress {
    pub(super) range: &'static str,
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers every name with the same addresses.
    pub(in super::super) struct FixedResolver(pub(in super::super) Vec<SocketAddr>);

    impl Resolve for FixedResolver {
        fn resolve(&self, _name: Name) -> Resolving {
            let found = self.0.clone();
            Box::pin(async move { Ok(Box::new(found.into_iter()) as Addrs) })
        }
    }

    /// Answers every name with one address after the other.
    pub(in super::super) struct AlternatingResolver {
        pub(in super::super) addresses: Vec<SocketAddr>,
        pub(in super::super) asked: AtomicUsize,
    }

    impl Resolve for AlternatingResolver {
        fn resolve(&self, _name: Name) -> Resolving {
            let turn = self.asked.fetch_add(1, Ordering::SeqCst) % self.addresses.len();
            let found = self.addresses[turn];
            Box::pin(async move { Ok(Box::new([found].into_iter()) as Addrs) })
        }
    }

    async fn resolve(found: &[&str]) -> Result<Vec<String>, String> {
        let found = found.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0));
        let resolver = PublicResolver::new(Arc::new(FixedResolver(found.collect())));
        match resolver.resolve("hooks.example".parse().unwrap()).await {
            Ok(allowed) => Ok(allowed.map(|address| address.ip().to_string()).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[tokio::test]
    async fn only_public_addresses_pass() {
        let passed = resolve(&["127.0.0.1", "1.1.1.1", "::ffff:10.0.0.1"]).await.unwrap();
        assert_eq!(passed, ["1.1.1.1"]);
        let error = resolve(&["fe80::1", "169.254.169.254"]).await.unwrap_err();
        assert_eq!(error, "the name leads only to link-local addresses");
        assert!(resolve(&[]).await.unwrap().is_empty());
    }
}
