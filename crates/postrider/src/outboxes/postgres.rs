//! What the clients of PostgreSQL share: the statements, events as parameters, and what errors
//! mean.
//!
//! The number, the transaction and the time of writing come from the database alone. Times and
//! headers travel as text, because the clients have no type for them in common.

use std::error::Error as StdError;
use std::time::SystemTime;

use uuid::Uuid;

use crate::error::{ServerError, WriteError};
use crate::event::Event;
use crate::schema::TableName;
use crate::timestamp;

/// Most bytes of events in one statement. The server takes messages up to 1 GiB.
const STATEMENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A violated primary key or unique index, from the server's table of error codes
/// (<https://www.postgresql.org/docs/current/errcodes-appendix.html>).
pub(crate) const UNIQUE_VIOLATION: &str = "23505";
/// A table, a column or a function that does not exist.
pub(crate) const UNDEFINED: [&str; 3] = ["42P01", "42703", UNDEFINED_FUNCTION];
pub(crate) const UNDEFINED_FUNCTION: &str = "42883";

/// Writes one [`Row`], whose fields are the parameters in order.
pub(crate) fn insert_event(table: &TableName) -> String {
    format!(
        "INSERT INTO {} (id, aggregate_type, aggregate_id, event_type, event_version, payload, \
         content_type, headers, topic, occurred_at, deliver_after) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $10::timestamptz, $11::timestamptz)",
        table.quoted()
    )
}

/// Writes [`Rows`], whose fields are the parameters in order; their order gives the numbers.
pub(crate) fn insert_events(table: &TableName) -> String {
    format!(
        "INSERT INTO {} (id, aggregate_type, aggregate_id, event_type, event_version, payload, \
         content_type, headers, topic, occurred_at, deliver_after) \
         SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload, \
         content_type, headers::jsonb, topic, occurred_at::timestamptz, deliver_after::timestamptz \
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bytea[], \
         $7::text[], $8::text[], $9::text[], $10::text[], $11::text[]) \
         WITH ORDINALITY AS event (id, aggregate_type, aggregate_id, event_type, event_version, \
         payload, content_type, headers, topic, occurred_at, deliver_after, position) \
         ORDER BY position",
        table.quoted()
    )
}

/// Writes one [`Row`] to the log alone; its fields are the parameters in order. Answers its id.
pub(crate) fn publish_message(table: &TableName) -> String {
    format!(
        "SELECT {}(id => $1, aggregate_type => $2, aggregate_id => $3, event_type => $4, \
         event_version => $5, payload => $6::bytea, content_type => $7, headers => $8::jsonb, \
         topic => $9, occurred_at => $10::timestamptz, deliver_after => $11::timestamptz)::text",
        table.publish_message().quoted()
    )
}

/// Behind an insert: answers the number of the transaction. It needs no right to read.
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) const RETURNING_TRANSACTION: &str = " RETURNING pg_current_xact_id()::text";

/// The number of the transaction, if it has changed anything. Fails if the transaction has
/// failed, where COMMIT would silently roll back.
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) const TRANSACTION: &str = "SELECT pg_current_xact_id_if_assigned()::text";

/// Whether an event with one of these ids is there, and what became of a transaction: after a
/// failover the server may not have come to that number yet. It needs no right to read.
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) fn select_outcome(table: &TableName) -> String {
    outcome(&format!("{}($1)", table.written().quoted()))
}

/// The same where there is no such function, as beside a table that is not of our making. It needs
/// the right to read ids.
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) fn select_outcome_by_table(table: &TableName) -> String {
    outcome(&format!("EXISTS (SELECT FROM {} WHERE id = ANY($1))", table.quoted()))
}

#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
fn outcome(found: &str) -> String {
    format!(
        "SELECT {found}, CASE WHEN $2::xid8 < pg_current_xact_id() THEN pg_xact_status($2::xid8) \
         WHEN $2 IS NOT NULL THEN 'aborted' END"
    )
}

/// What the answer to [`select_outcome`] says.
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) fn outcome_of(
    commit: &crate::commit::LostCommit,
    found: bool,
    status: Option<&str>,
) -> crate::commit::Outcome {
    use crate::commit::Outcome;
    match status {
        _ if found => Outcome::Written,
        Some("committed") if commit.event_ids().is_empty() => Outcome::Written,
        // A relay has deleted the events; or the server has crashed since, has lost the
        // transaction, and has given its number to another.
        Some("committed") => Outcome::Undecided,
        Some("aborted") => Outcome::NotWritten,
        None if commit.transaction().is_none() => Outcome::NotWritten,
        _ => Outcome::Undecided,
    }
}

/// An event as parameters.
pub(crate) struct Row<'e> {
    pub(crate) id: Uuid,
    pub(crate) aggregate_type: &'e str,
    pub(crate) aggregate_id: &'e str,
    pub(crate) event_type: &'e str,
    pub(crate) event_version: i64,
    pub(crate) payload: &'e [u8],
    pub(crate) content_type: &'e str,
    pub(crate) headers: String,
    pub(crate) topic: Option<&'e str>,
    pub(crate) occurred_at: String,
    pub(crate) deliver_after: Option<String>,
}

impl<'e> Row<'e> {
    pub(crate) fn of(event: &'e Event) -> Self {
        Row {
            id: event.id(),
            aggregate_type: event.aggregate_type(),
            aggregate_id: event.aggregate_id(),
            event_type: event.event_type(),
            event_version: event.event_version().into(),
            payload: event.payload(),
            content_type: event.content_type(),
            headers: serde_json::to_string(event.headers()).expect("a map of texts is JSON"),
            topic: event.topic(),
            occurred_at: time(event.occurred_at()),
            deliver_after: event.deliver_after().map(time),
        }
    }
}

/// Several events as parameters: one array for each field.
#[derive(Default)]
pub(crate) struct Rows<'e> {
    pub(crate) id: Vec<Uuid>,
    pub(crate) aggregate_type: Vec<&'e str>,
    pub(crate) aggregate_id: Vec<&'e str>,
    pub(crate) event_type: Vec<&'e str>,
    pub(crate) event_version: Vec<i64>,
    pub(crate) payload: Vec<&'e [u8]>,
    pub(crate) content_type: Vec<&'e str>,
    pub(crate) headers: Vec<String>,
    pub(crate) topic: Vec<Option<&'e str>>,
    pub(crate) occurred_at: Vec<String>,
    pub(crate) deliver_after: Vec<Option<String>>,
}

impl<'e> Rows<'e> {
    pub(crate) fn of(events: &'e [Event]) -> Self {
        let mut rows = Rows::default();
        for row in events.iter().map(Row::of) {
            rows.id.push(row.id);
            rows.aggregate_type.push(row.aggregate_type);
            rows.aggregate_id.push(row.aggregate_id);
            rows.event_type.push(row.event_type);
            rows.event_version.push(row.event_version);
            rows.payload.push(row.payload);
            rows.content_type.push(row.content_type);
            rows.headers.push(row.headers);
            rows.topic.push(row.topic);
            rows.occurred_at.push(row.occurred_at);
            rows.deliver_after.push(row.deliver_after);
        }
        rows
    }
}

/// The events in as many statements as their size takes, nearly always one. An error in a later
/// one fails the whole transaction, so that there are all of them or none.
pub(crate) fn statements(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    let mut bytes = 0;
    events.chunk_by(move |event, next| {
        bytes += event.size_bytes();
        let fits = bytes + next.size_bytes() <= STATEMENT_BYTES_MAX;
        if !fits {
            bytes = 0;
        }
        fits
    })
}

/// A time as the server reads it. It has no year 0.
pub(crate) fn time(time: SystemTime) -> String {
    let text = timestamp::to_text(time);
    match text.strip_prefix("0000") {
        Some(rest) => format!("0001{rest} BC"),
        None => text,
    }
}

/// What the server said about a statement.
#[derive(Default)]
pub(crate) struct Refusal {
    /// Empty if the client does not tell.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) constraint: Option<String>,
    pub(crate) table: Option<String>,
    /// It may quote rows.
    pub(crate) detail: Option<String>,
}

/// What an error of PostgreSQL means to the writer of these events.
pub(crate) fn write_error(
    table: &str,
    event_ids: &[Uuid],
    said: Refusal,
    driver: impl StdError + Send + Sync + 'static,
) -> WriteError {
    let primary_key = format!("{table}_pkey");
    if said.code == UNIQUE_VIOLATION
        && said.constraint == Some(primary_key)
        && let Some(id) = named_id(event_ids, said.detail.as_deref())
    {
        return WriteError::Duplicate { id };
    }
    let is_undefined = UNDEFINED.contains(&said.code.as_str());
    let source = ServerError::new(said, driver).into();
    match is_undefined {
        true => WriteError::NotMigrated { table: table.to_owned(), source },
        false => WriteError::Database { source },
    }
}

/// The id that an error is about. The server tells it only to those who may read the column.
fn named_id(event_ids: &[Uuid], detail: Option<&str>) -> Option<Uuid> {
    match event_ids {
        [id] => Some(*id),
        ids => {
            let detail = detail?;
            ids.iter().copied().find(|id| detail.contains(&id.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event_of(payload_bytes: usize) -> Event {
        let payload = vec![0; payload_bytes];
        Event::builder("Order", "42", "T").payload(payload, "a/b").build().unwrap()
    }

    #[test]
    fn a_year_before_the_first_is_said_as_the_server_does() {
        let year = Duration::from_secs(366 * 24 * 60 * 60);
        let zero = SystemTime::UNIX_EPOCH - Duration::from_secs(62_167_219_200);
        assert_eq!(time(zero), "0001-01-01T00:00:00.000000Z BC");
        assert_eq!(time(zero + year), "0001-01-01T00:00:00.000000Z");
    }

    #[test]
    fn a_statement_is_bounded() {
        let megabyte = event_of(1024 * 1024);
        let events: Vec<Event> = std::iter::repeat_n(megabyte, 130).collect();
        let sizes: Vec<usize> = statements(&events).map(<[Event]>::len).collect();
        assert_eq!(sizes, [63, 63, 4]);
        assert_eq!(statements(&events[..1]).count(), 1);
        assert_eq!(statements(&[]).count(), 0);
    }

    #[test]
    fn a_duplicate_among_several_is_named_in_any_language() {
        let ids = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let detail = format!("Schlüssel »(id)=({})« existiert bereits.", ids[1]);
        let refusal = |detail: Option<&str>| Refusal {
            code: UNIQUE_VIOLATION.to_owned(),
            constraint: Some("outbox_pkey".to_owned()),
            detail: detail.map(str::to_owned),
            ..Refusal::default()
        };
        let write_error = |ids, refusal| write_error("outbox", ids, refusal, std::fmt::Error);
        let error = write_error(&ids, refusal(Some(&detail)));
        assert!(matches!(error, WriteError::Duplicate { id } if id == ids[1]), "{error:?}");
        let error = write_error(&ids, refusal(None));
        assert!(matches!(error, WriteError::Database { .. }), "{error:?}");
        let error = write_error(&ids[..1], refusal(None));
        assert!(matches!(error, WriteError::Duplicate { id } if id == ids[0]), "{error:?}");
    }
}
