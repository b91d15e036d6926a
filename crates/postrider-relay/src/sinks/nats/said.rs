//! What a server says without being asked: above all, that something is not allowed.
//!
//! A message that its sender may not publish gets no answer of its own. The server only says so
//! to the connection, so whoever waits for an answer must listen to that, too.

use std::sync::Arc;

use async_nats::{Event, ServerError};
use tokio::sync::watch;

use super::misconfigured;
use crate::sink::SinkError;

/// The client itself forgets what comes faster than it can be told.
const DENIALS_MAX: usize = 128;

/// All that a server has said over a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// The subjects that must not be published to.
    denied: Vec<String>,
    /// The inbox that must not be subscribed to.
    inbox_denied: Option<String>,
    last: Option<String>,
}

impl Said {
    /// Whether anything was not allowed.
    pub(super) fn denies(&self) -> bool {
        self.inbox_denied.is_some() || !self.denied.is_empty()
    }

    /// The last complaint, to be shown after something else: ` (the server said: …)`.
    pub(super) fn last_shown(&self) -> String {
        let last = self.last.as_ref();
        last.map(|last| format!(" (the server said: {last})")).unwrap_or_default()
    }

    /// Why nothing that was published to a subject will be answered, if that is so.
    pub(super) fn denial_of(&self, subject: &str) -> Option<SinkError> {
        if let Some(inbox) = &self.inbox_denied {
            let prefix = inbox.split('.').next().unwrap_or_default();
            return Some(misconfigured(format!(
                "the relay's user may not subscribe to {inbox}, where confirmations arrive; \
                 permit it: permissions {{ subscribe: [\"{prefix}.>\"] }}, or set inbox_prefix"
            )));
        }
        self.denied.iter().any(|denied| denied == subject).then(|| {
            SinkError::of_topic(format!(
                "the relay's user may not publish to {subject}; \
                 permit it: permissions {{ publish: [\"{subject}\"] }}"
            ))
        })
    }

    fn hear(&mut self, complaint: String) {
        let quoted = complaint.split('"').nth(1).unwrap_or_default().to_owned();
        if complaint.starts_with("Permissions Violation for Publish") {
            if self.denied.len() < DENIALS_MAX && !self.denied.contains(&quoted) {
                self.denied.push(quoted);
            }
        } else if complaint.starts_with("Permissions Violation for Subscription") {
            self.inbox_denied = Some(quoted);
        }
        self.last = Some(complaint);
    }
}

/// Hears what the server says. Clones hear the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Listener(Arc<watch::Sender<Said>>);

impl Listener {
    pub(super) fn hear(&self, event: Event) {
        if let Event::ServerError(error) = event {
            let complaint = match error {
                ServerError::Other(complaint) => complaint,
                other => other.to_string(),
            };
            self.0.send_modify(|said| said.hear(complaint));
        }
    }

    pub(super) fn said(&self) -> watch::Ref<'_, Said> {
        self.0.borrow()
    }

    pub(super) fn listen(&self) -> watch::Receiver<Said> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(complaints: &[&str]) -> Said {
        let listener = Listener::default();
        for complaint in complaints {
            listener.hear(Event::ServerError(ServerError::Other((*complaint).to_owned())));
        }
        listener.said().clone()
    }

    #[test]
    fn a_denial_concerns_its_subject_only() {
        let said = said(&["Permissions Violation for Publish to \"orders.a\"", "Stale Connection"]);
        assert!(said.denies());
        let message = said.denial_of("orders.a").unwrap().message;
        assert!(message.contains("publish: [\"orders.a\"]"), "{message}");
        assert_eq!(said.denial_of("orders.b"), None);
        assert_eq!(said.last_shown(), " (the server said: Stale Connection)");
    }

    #[test]
    fn without_an_inbox_nothing_is_answered() {
        let said = said(&["Permissions Violation for Subscription to \"_INBOX.x.*\""]);
        let message = said.denial_of("orders.a").unwrap().message;
        assert!(message.contains("subscribe: [\"_INBOX.>\"]"), "{message}");
    }

    #[test]
    fn denials_are_bounded() {
        let complaints: Vec<_> = (0..DENIALS_MAX + 10)
            .map(|number| format!("Permissions Violation for Publish to \"a.{number}\""))
            .collect();
        let complaints: Vec<_> = complaints.iter().map(String::as_str).collect();
        assert_eq!(said(&complaints).denied.len(), DENIALS_MAX);
        assert!(!said(&["Unknown Protocol Operation"]).denies());
    }
}
