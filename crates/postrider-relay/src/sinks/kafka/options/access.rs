//! Who the sink is to the brokers, and by what way it reaches them.

use rdkafka::ClientConfig;

use super::{Options, name_of};
use crate::sinks::Problem;
use crate::sinks::broker_account::BrokerAccount;
use crate::sinks::broker_url::BrokerUrl;

/// How a password is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Sent as it is.
    Plain,
    /// By SCRAM with SHA-256.
    ScramSha256,
    /// By SCRAM with SHA-512.
    ScramSha512,
}

impl Mechanism {
    pub(super) const ALL: [(&str, Self); 3] = [
        ("PLAIN", Self::Plain),
        ("SCRAM-SHA-256", Self::ScramSha256),
        ("SCRAM-SHA-512", Self::ScramSha512),
    ];
}

impl Options {
    /// Sets what the brokers are reached with. The answer is what is less safe than it could be.
    pub(super) fn check_access(
        &self,
        url: &BrokerUrl,
        config: &mut ClientConfig,
        problems: &mut Vec<Problem>,
    ) -> Vec<String> {
        config.set("bootstrap.servers", url.servers_shown());
        let account = BrokerAccount::new(url, self.username.as_deref(), self.password.as_ref());
        problems.extend(account.twice("stands in the URL, too", "write it once"));
        self.check_tls(config, problems);
        let protocol = match (account.user, &self.tls) {
            (None, None) => "plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), None) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        let mechanism = self.sasl_mechanism.unwrap_or(Mechanism::ScramSha512);
        problems.extend(account.half());
        match (account.user, account.password) {
            (Some(user), Some(password)) => {
                config
                    .set("sasl.mechanism", name_of(&Mechanism::ALL, &mechanism))
                    .set("sasl.username", user)
                    .set("sasl.password", password.expose());
            }
            (None, None) if self.sasl_mechanism.is_some() => {
                let problem = Problem::new("sasl_mechanism", "is given without a user");
                problems.push(problem.with_hint("set username and password, or remove it"));
            }
            _ => {}
        }
        if account.user.is_some() && self.tls.is_none() && mechanism == Mechanism::Plain {
            return vec!["the password is sent to Kafka as it is; set tls = true".to_owned()];
        }
        Vec::new()
    }

    fn check_tls(&self, config: &mut ClientConfig, problems: &mut Vec<Problem>) {
        let Some(tls) = &self.tls else { return };
        problems.extend(tls.problems());
        for (setting, file) in [
            ("ssl.ca.location", &tls.ca_file),
            ("ssl.certificate.location", &tls.certificate_file),
            ("ssl.key.location", &tls.key_file),
        ] {
            if let Some(file) = file {
                config.set(setting, file.display().to_string());
            }
        }
    }
}
