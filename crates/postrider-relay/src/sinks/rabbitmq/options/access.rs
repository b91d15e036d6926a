//! Who the sink is to the server, and by what way it reaches it.

use super::Options;
use crate::sinks::broker_account::BrokerAccount;
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::{Problem, Secret, TlsOptions};

/// The user that every RabbitMQ has at first, and its password.
const GUEST: &str = "guest";

/// How the sink proves who it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// By its certificate. The server needs the plugin `rabbitmq_auth_mechanism_ssl`.
    External,
    /// By a password.
    #[default]
    Plain,
}

impl Auth {
    pub(super) const ALL: [(&str, Self); 2] =
        [("external", Self::External), ("plain", Self::Plain)];
}

impl Options {
    pub(super) fn check_tls(
        &self,
        is_tls: bool,
        problems: &mut Vec<Problem>,
    ) -> Option<TlsOptions> {
        if let (false, Some(_)) = (is_tls, &self.tls) {
            let problem = Problem::new("tls", "is given, and the URL is without TLS");
            problems.push(problem.with_hint("write amqps://…"));
        }
        let tls = is_tls.then(|| self.tls.clone().unwrap_or_default())?;
        problems.extend(tls.problems());
        Some(tls)
    }

    /// Who the sink is.
    pub(super) fn check_user(
        &self,
        url: &BrokerUrl,
        problems: &mut Vec<Problem>,
    ) -> (String, Secret) {
        let account = BrokerAccount::new(url, self.username.as_deref(), self.password.as_ref());
        problems.extend(account.twice("stands in the URL, too", "write it once"));
        if self.auth == Auth::External {
            if account.user.is_some() || account.password.is_some() {
                let message = "is by a certificate, and there is a user or a password";
                problems.push(Problem::new("auth", message).with_hint("remove them"));
            }
            if self.tls.as_ref().is_none_or(|tls| tls.certificate_file.is_none()) {
                let problem = Problem::new("auth", "is by a certificate, and there is none");
                let hint = "set tls = { certificate_file = \"…\", key_file = \"…\" }";
                problems.push(problem.with_hint(hint));
            }
            return ("the certificate's user".to_owned(), Secret::new(""));
        }
        problems.extend(account.half());
        let guest = Secret::new(GUEST);
        (account.user.unwrap_or(GUEST).to_owned(), account.password.unwrap_or(&guest).clone())
    }
}
