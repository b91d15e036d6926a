//! Who a sink is at a broker: a user name and a password, each in the URL or in an option.

use super::broker_url::BrokerUrl;
use super::{Problem, Secret};

/// A user name and a password, wherever they are written.
#[derive(Debug)]
pub(super) struct BrokerAccount<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) password: Option<&'a Secret>,
    /// The options that say what the URL says already.
    twice: Vec<&'static str>,
}

impl<'a> BrokerAccount<'a> {
    /// The account of a URL and of the options `username` and `password`.
    pub(super) fn new(
        url: &'a BrokerUrl,
        username: Option<&'a str>,
        password: Option<&'a Secret>,
    ) -> Self {
        let twice = [
            ("username", url.user.is_some() && username.is_some()),
            ("password", url.password.is_some() && password.is_some()),
        ];
        Self {
            user: url.user.as_deref().or(username),
            password: url.password.as_ref().or(password),
            twice: twice.into_iter().filter(|(_, is)| *is).map(|(option, _)| option).collect(),
        }
    }

    /// A problem, in these words, for each option that says what the URL says already.
    pub(super) fn twice(&self, message: &str, hint: &str) -> impl Iterator<Item = Problem> {
        self.twice.iter().map(move |option| Problem::new(*option, message).with_hint(hint))
    }

    /// The problem of a user without a password, or of a password without a user.
    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    pub(super) fn half(&self) -> Option<Problem> {
        let missing = |option| Problem::new(option, "is missing");
        match (self.user, self.password) {
            (Some(_), None) => Some(missing("password").with_hint("set it, or remove the user")),
            (None, Some(_)) => {
                Some(missing("username").with_hint("set it, or remove the password"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> BrokerUrl {
        BrokerUrl::parse(text, 1).unwrap()
    }

    fn twice(url: &BrokerUrl, username: Option<&str>, password: Option<&Secret>) -> Vec<String> {
        let account = BrokerAccount::new(url, username, password);
        account.twice("is there", "remove it").map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn each_part_is_in_the_url_or_in_an_option() {
        let secret = Secret::new("p");
        for (text, username, password) in [
            ("x://u:p@h", None, None),
            ("x://u@h", None, Some(&secret)),
            ("x://:p@h", Some("u"), None),
            ("x://h", Some("u"), Some(&secret)),
        ] {
            let url = url(text);
            let account = BrokerAccount::new(&url, username, password);
            assert_eq!(account.user, Some("u"), "{text}");
            assert_eq!(account.password.map(Secret::expose), Some("p"), "{text}");
            assert!(twice(&url, username, password).is_empty(), "{text}");
        }
        let url = url("x://h");
        let nobody = BrokerAccount::new(&url, None, None);
        assert_eq!((nobody.user, nobody.password), (None, None));
    }

    #[test]
    fn what_is_given_twice_is_named_without_the_secret() {
        let (url, canary) = (url("x://u:canary@h"), Secret::new("canary"));
        let username = "username: is there; remove it";
        let password = "password: is there; remove it";
        assert_eq!(twice(&url, Some("u"), None), [username]);
        assert_eq!(twice(&url, None, Some(&canary)), [password]);
        assert_eq!(twice(&url, Some("u"), Some(&canary)), [username, password]);
        let account = BrokerAccount::new(&url, None, Some(&canary));
        assert!(!format!("{account:?}").contains("canary"));
    }

    #[cfg(any(feature = "kafka", feature = "rabbitmq"))]
    #[test]
    fn half_an_account_is_a_problem() {
        for (text, expected) in [
            ("x://u:p@h", None),
            ("x://h", None),
            ("x://u@h", Some("password: is missing; set it, or remove the user")),
            ("x://:p@h", Some("username: is missing; set it, or remove the password")),
        ] {
            let url = url(text);
            let half = BrokerAccount::new(&url, None, None).half();
            let found = half.map(|problem| problem.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
