//! What is refused, and what is said then.

use std::time::Duration;

use postrider::event::NAME_BYTES_MAX;
use postrider::inbox::VERSION_MAX;
use postrider::{Claim, InvalidEvent, Key, WriteError};
use uuid::Uuid;

use super::{OpenInbox, claim_count, event};
use crate::case;
use crate::suites::Case;
use crate::suites::writer::{Capabilities, End, Subject};

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_consumer_without_a_name_is_refused),
        case!(an_impossible_watermark_is_refused),
        case!(a_missing_table_of_the_inbox_names_the_fix),
    ]
}

/// Every call that names a consumer.
async fn calls(inbox: &mut dyn OpenInbox, consumer: &str) -> [Result<(), WriteError>; 6] {
    let event = event(1);
    [
        inbox.once(consumer, event.id()).await.map(drop),
        inbox.once_all(consumer, &[event.id()]).await.map(drop),
        inbox.advance(consumer, event.key(), 1).await.map(drop),
        inbox.store(consumer, &event).await.map(drop),
        inbox.bury(consumer, &event, "no stock", 1).await,
        inbox.revive(consumer, None).await.map(drop),
    ]
}

/// Before anything is sent, so that the transaction can go on.
async fn a_consumer_without_a_name_is_refused(database: Subject) {
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let mut client = database.client().await;
    let mut inbox = client.begin().await;
    for (consumer, expected) in [
        ("", "consumer is empty; give it a value"),
        (long.as_str(), "consumer has 256 bytes, the limit is 255"),
        ("a\0b", "consumer contains the control character U+0000"),
    ] {
        for refused in calls(&mut *inbox, consumer).await {
            let error = refused.expect_err("that is no name");
            assert!(matches!(error, WriteError::Invalid(_)), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
    let none = inbox.once_all("", &[]).await;
    none.expect_err("that is no name, and there is nothing to claim");
    let claim = inbox.once(&long[1..], Uuid::now_v7()).await;
    assert_eq!(claim.expect("that is a name"), Claim::First);
    inbox.end(End::Commit).await;
    assert_eq!(claim_count(&database).await, 1);
    assert!(database.kept().await.is_empty());
}

async fn an_impossible_watermark_is_refused(database: Subject) {
    let mut client = database.client().await;
    let mut inbox = client.begin().await;
    let key = |aggregate_type: &str, aggregate_id: &str| Key {
        aggregate_type: aggregate_type.to_owned(),
        aggregate_id: aggregate_id.to_owned(),
    };
    for (key, version) in
        [(key("Order", "42"), VERSION_MAX + 1), (key("", "42"), 1), (key("Order", ""), 1)]
    {
        let error = inbox.advance("billing", &key, version).await;
        let error = error.expect_err("that cannot be kept");
        let is_named = matches!(
            error,
            WriteError::Invalid(InvalidEvent::VersionTooHigh { .. } | InvalidEvent::Empty { .. })
        );
        assert!(is_named, "{error:?}");
    }
    inbox.end(End::Commit).await;
    assert_eq!(database.number("SELECT count(*) FROM inbox_versions").await, 0);
}

async fn a_missing_table_of_the_inbox_names_the_fix(database: Subject) {
    database.unmigrate().await;
    let mut client = database.client().await;
    let event = event(1);
    for number in 0..7 {
        let mut inbox = client.begin().await;
        // One at a time: a transaction may not survive it.
        let refused = match number {
            0 => inbox.once("billing", event.id()).await.map(drop),
            1 => inbox.once_all("billing", &[event.id()]).await.map(drop),
            2 => inbox.advance("billing", event.key(), 1).await.map(drop),
            3 => inbox.store("billing", &event).await.map(drop),
            4 => inbox.bury("billing", &event, "no stock", 1).await,
            5 => inbox.revive("billing", None).await.map(drop),
            _ => inbox.prune("billing", Duration::ZERO, 1).await.map(drop),
        };
        inbox.end(End::Rollback).await;
        let error = refused.expect_err("the table is missing");
        assert!(matches!(error, WriteError::NotMigrated { .. }), "{error:?}");
        let (message, fix) =
            (error.to_string(), "is missing or out of date; run `postrider migrate`");
        assert!(message.starts_with("the table inbox") && message.ends_with(fix), "{message}");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(source.is_some_and(|source| source.contains("inbox")), "{error:?}");
    }
}
