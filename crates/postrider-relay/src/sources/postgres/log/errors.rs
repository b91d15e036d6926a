//! Errors of the replication, for whoever has to mend them.

use postrider_replication::RefusedAuth;
use tokio_postgres::error::SqlState;

use super::super::error::auth_hint;
use crate::source::{SourceError, SourceErrorKind};

/// An error of the replication as one of the source.
pub(in super::super) fn cannot(doing: &str, error: postrider_replication::Error) -> SourceError {
    use SourceErrorKind::{Misconfigured, Unavailable};
    use postrider_replication::Error;
    let code = error.code().map(SqlState::code);
    let refused = match &error {
        Error::Authentication(err) => err.downcast_ref::<RefusedAuth>(),
        _ => None,
    };
    let (kind, hint) = match (&error, code) {
        _ if let Some(refused) = refused => (Misconfigured, Some(auth_hint(*refused))),
        (_, Some("42501")) => (
            Misconfigured,
            Some("let ALTER ROLE give the relay's role REPLICATION; or write mode = \"poll\""),
        ),
        (_, Some("53400")) => (
            Unavailable,
            Some("raise max_replication_slots and max_wal_senders, or drop a slot nobody reads"),
        ),
        // So does pgbouncer refuse it.
        (_, Some("08P01")) | (Error::Protocol(_), _) => (
            Misconfigured,
            Some("a pooler cannot carry the log: name the server itself, or write mode = \"poll\""),
        ),
        (_, Some("28000" | "28P01")) | (Error::Authentication(_), _) => (
            Misconfigured,
            Some("let the role connect for replication: pg_hba.conf, and the password in the URL"),
        ),
        (Error::Config(_) | Error::Tls(_), _) => (Misconfigured, None),
        _ => (Unavailable, None),
    };
    let failed = SourceError::new(kind, format!("cannot {doing}")).with_source(error);
    match hint {
        Some(hint) => failed.with_hint(hint),
        None => failed,
    }
}

/// The same for whoever cannot poll instead.
pub(in super::super) fn without_polling(mut error: SourceError) -> SourceError {
    if let Some(hint) = &mut error.hint
        && let Some(end) = hint.find(" or write mode = ")
    {
        hint.truncate(end);
        hint.truncate(hint.trim_end_matches([',', ';']).len());
    }
    error
}

/// Whether an error says that the slot, or what it needs, is not there any more.
pub(super) fn is_of_slot(error: &postrider_replication::Error) -> bool {
    let codes = [
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::UNDEFINED_OBJECT,
        SqlState::UNDEFINED_FILE,
    ];
    error.code().is_some_and(|code| codes.contains(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_cannot_poll_is_not_told_to() {
        let hint = |text: &str| {
            let error = SourceError::new(SourceErrorKind::Misconfigured, "x").with_hint(text);
            without_polling(error).hint.unwrap()
        };
        assert_eq!(
            hint("name the server itself, or write mode = \"poll\""),
            "name the server itself"
        );
        assert_eq!(hint("grant it; or write mode = \"poll\""), "grant it");
        assert_eq!(hint("drop a slot"), "drop a slot");
        let refused = postrider_replication::Error::Protocol("x".into());
        let error = without_polling(cannot("connect", refused));
        assert!(!error.details().contains("poll\""), "{}", error.details());
    }
}
