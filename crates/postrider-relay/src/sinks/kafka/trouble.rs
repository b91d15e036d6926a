//! What is wrong with the connections to the cluster, as librdkafka tells it.

use rdkafka::error::RDKafkaErrorCode;

/// What is wrong, and at which broker.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    code: RDKafkaErrorCode,
    pub(super) reason: String,
    /// The broker closed a connection that had come about.
    pub(super) is_hang_up: bool,
}

impl Trouble {
    pub(super) fn new(code: RDKafkaErrorCode, reason: &str) -> Self {
        // What had no answer in time is disconnected here, and not there.
        let is_hang_up = reason.contains(" in state UP") && !reason.contains("timed out");
        // How long it took says nothing.
        let reason = reason.split(" (after ").next().unwrap_or(reason);
        Self { code, reason: reason.to_owned(), is_hang_up }
    }

    /// From a line of the log, `[thrd:…]: broker: reason`: a connection that was closed is
    /// nothing but that, unless none comes about.
    pub(super) fn logged(line: &str) -> Self {
        let text = line.split_once("]: ").map_or(line, |(_, text)| text);
        Self::new(RDKafkaErrorCode::BrokerTransportFailure, text)
    }

    /// Whether the cluster does not let us in: trying again does not help.
    pub(super) fn is_refusal(&self) -> bool {
        use RDKafkaErrorCode::{Authentication, SSL, SaslAuthenticationFailed};
        let is_refusal = matches!(self.code, Authentication | SaslAuthenticationFailed | SSL);
        is_refusal || self.is_alert()
    }

    /// Whether we may not be a producer.
    pub(super) fn is_forbidden(&self) -> bool {
        self.code == RDKafkaErrorCode::ClusterAuthorizationFailed
    }

    /// Whether the broker ends TLS, because it does not like what it sees of us.
    fn is_alert(&self) -> bool {
        self.reason.contains("SSL alert number")
    }

    /// Whether no connection comes about.
    pub(super) fn is_away(&self) -> bool {
        !self.is_hang_up && self.code != RDKafkaErrorCode::AllBrokersDown
    }

    /// Whether it should be told instead of what was told before. That all brokers are away is no
    /// reason, and what follows a refusal is no other trouble.
    pub(super) fn says_more_than(&self, before: &Self) -> bool {
        let is_reason = self.code != RDKafkaErrorCode::AllBrokersDown;
        is_reason && (self.is_refusal() || !before.is_refusal())
    }

    /// Which options to look at, if it may be because of them.
    pub(super) fn hint(&self) -> Option<&'static str> {
        if self.is_alert() {
            Some("see certificate_file and key_file of tls")
        } else if self.code == RDKafkaErrorCode::SSL {
            Some(
                "see tls: its ca_file has to be the authority of the brokers, and their \
                 certificates have to be for these host names",
            )
        } else if self.is_refusal() {
            Some("see username, password and sasl_mechanism")
        } else if self.reason.contains("closed by peer") {
            // A broker that stops does the same.
            Some("if that lasts, it may want another kind of connection: see tls, and username")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_librdkafka_says_leads_to_the_option() {
        use RDKafkaErrorCode::{Authentication, BrokerTransportFailure, SSL};
        for (code, reason, is_refusal, hint) in [
            (Authentication, "a: SASL authentication error: no", true, "username, password"),
            (SSL, "a: SSL handshake failed: certificate verify failed", true, "ca_file"),
            (BrokerTransportFailure, "a: Receive failed: SSL alert number 116", true, "key_file"),
            (BrokerTransportFailure, "a: Disconnected: closed by peer", false, "if that lasts"),
            (BrokerTransportFailure, "a: Connect failed: Connection refused", false, ""),
        ] {
            let trouble = Trouble::new(code, &format!("{reason} (after 3ms in state UP)"));
            assert_eq!(trouble.reason, reason);
            assert_eq!(trouble.is_refusal(), is_refusal, "{reason}");
            assert!(trouble.hint().unwrap_or_default().contains(hint), "{reason}");
            assert_eq!(trouble.hint().is_none(), hint.is_empty(), "{reason}");
        }
        let (down, refused) = (
            Trouble::new(RDKafkaErrorCode::AllBrokersDown, "1/1 brokers are down"),
            Trouble::new(Authentication, "a: SASL authentication error"),
        );
        let logged =
            Trouble::logged("[thrd:ssl://a:1/bootstrap]: ssl://a:1/bootstrap: Disconnected");
        assert_eq!(logged.reason, "ssl://a:1/bootstrap: Disconnected");
        assert!(!logged.is_hang_up && logged.is_away());
        let closed = Trouble::logged("[thrd:a:1/1]: a:1/1: Disconnected (after 9ms in state UP)");
        assert!(closed.is_hang_up && !closed.is_away());
        let silent = "a:1/1: 1 request(s) timed out: disconnect (after 60000ms in state UP)";
        assert!(Trouble::logged(silent).is_away() && !down.is_away());
        assert!(logged.says_more_than(&logged) && !down.says_more_than(&logged));
        assert!(refused.says_more_than(&logged) && !logged.says_more_than(&refused));
    }
}
