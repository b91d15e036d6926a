//! The table in SQLite.
//!
//! One statement writes at a time, so that nothing needs to be locked before it is leased.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::timestamp;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, query, query_as};
use uuid::Uuid;

use super::table::{Head, Key, Look, Message, Table, failed};
use crate::subscription::SubscriptionError;

/// Of consumer, the last key of before, how many keys and due ones to look at, and the time. The
/// next key is looked for first in the same aggregate type: by a comparison of pairs, SQLite would
/// pass the messages of a key one by one.
const LOOK: &str = "\
WITH RECURSIVE head (position, keys, due) AS (
    SELECT coalesce((
            SELECT f.position FROM inbox_messages AS f
            WHERE f.consumer = ?1 AND NOT f.dead AND f.aggregate_type = ?2 AND f.aggregate_id > ?3
            ORDER BY f.aggregate_id, f.position LIMIT 1), (
            SELECT f.position FROM inbox_messages AS f
            WHERE f.consumer = ?1 AND NOT f.dead AND f.aggregate_type > ?2
            ORDER BY f.aggregate_type, f.aggregate_id, f.position LIMIT 1)),
        1, 0
    UNION ALL
    SELECT coalesce((
            SELECT n.position FROM inbox_messages AS n
            WHERE n.consumer = ?1 AND NOT n.dead AND n.aggregate_type = m.aggregate_type
                AND n.aggregate_id > m.aggregate_id
            ORDER BY n.aggregate_id, n.position LIMIT 1), (
            SELECT n.position FROM inbox_messages AS n
            WHERE n.consumer = ?1 AND NOT n.dead AND n.aggregate_type > m.aggregate_type
            ORDER BY n.aggregate_type, n.aggregate_id, n.position LIMIT 1)),
        h.keys + 1, h.due + (m.due_at <= ?6)
    FROM head AS h CROSS JOIN inbox_messages AS m ON m.position = h.position
    WHERE h.keys < ?4 AND h.due + (m.due_at <= ?6) < ?5
)
SELECT m.aggregate_type, m.aggregate_id, m.due_at <= ?6
FROM head AS h CROSS JOIN inbox_messages AS m ON m.position = h.position ORDER BY h.keys";

/// Of consumer, keys in JSON, how many of each, the time, and when they are due again. A key ends
/// before the first message that is not due, among those that may be taken at all.
const LEASE: &str = "\
WITH key (aggregate_type, aggregate_id) AS MATERIALIZED (
    SELECT value ->> 0, value ->> 1 FROM json_each(?2)
), run AS MATERIALIZED (
    SELECT k.aggregate_type, k.aggregate_id, coalesce((
        SELECT l.position FROM inbox_messages AS l
        WHERE l.consumer = ?1 AND NOT l.dead AND l.aggregate_type = k.aggregate_type
            AND l.aggregate_id = k.aggregate_id
        ORDER BY l.position LIMIT 1 OFFSET ?3 - 1), 9223372036854775807) AS last
    FROM key AS k
), ended AS MATERIALIZED (
    SELECT r.aggregate_type, r.aggregate_id, r.last, (
        SELECT u.position FROM inbox_messages AS u
        WHERE u.consumer = ?1 AND NOT u.dead AND u.aggregate_type = r.aggregate_type
            AND u.aggregate_id = r.aggregate_id AND u.position <= r.last AND u.due_at > ?4
        ORDER BY u.position LIMIT 1) AS undue
    FROM run AS r
)
UPDATE inbox_messages SET due_at = ?5 WHERE position IN (
    SELECT m.position FROM ended AS e CROSS JOIN inbox_messages AS m
        ON m.consumer = ?1 AND NOT m.dead AND m.aggregate_type = e.aggregate_type
        AND m.aggregate_id = e.aggregate_id AND m.position <= e.last
    WHERE e.undue IS NULL OR m.position < e.undue)
RETURNING position, event_id, aggregate_type, aggregate_id, event_type, event_version, payload,
    content_type, headers, topic, occurred_at, error IS NOT NULL AS is_revived";

/// Of consumer, event ids in JSON and the time.
const REMOVE: &str = "\
DELETE FROM inbox_messages
WHERE consumer = ?1 AND event_id IN (SELECT value FROM json_each(?2)) AND NOT dead
    AND (due_at > ?3 OR EXISTS (
        SELECT 1 FROM inbox AS i
        WHERE i.consumer = inbox_messages.consumer AND i.event_id = inbox_messages.event_id))";

/// Of consumer, event ids in JSON and a time.
const SET_DUE: &str = "\
UPDATE inbox_messages SET due_at = ?3
WHERE consumer = ?1 AND event_id IN (SELECT value FROM json_each(?2)) AND NOT dead";

#[async_trait]
impl Table for SqlitePool {
    async fn look(&self, consumer: &str, look: Look<'_>) -> Result<Vec<Head>, SubscriptionError> {
        let heads: Vec<(String, String, bool)> = query_as(LOOK)
            .bind(consumer)
            .bind(&look.after.0)
            .bind(&look.after.1)
            .bind(number(look.keys_max))
            .bind(number(look.due_max))
            .bind(time(Duration::ZERO))
            .fetch_all(self)
            .await
            .map_err(failed)?;
        let head = |(aggregate_type, aggregate_id, is_due)| Head {
            key: (aggregate_type, aggregate_id),
            is_due,
        };
        Ok(heads.into_iter().map(head).collect())
    }

    async fn lease(
        &self,
        consumer: &str,
        keys: &[Key],
        of_key: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, SubscriptionError> {
        let rows = query(LEASE)
            .bind(consumer)
            .bind(json(keys))
            .bind(number(of_key))
            .bind(time(Duration::ZERO))
            .bind(time(visibility))
            .fetch_all(self)
            .await
            .map_err(failed)?;
        let messages: Result<Vec<_>, _> = rows.iter().map(message).collect();
        let mut messages = messages.map_err(failed)?;
        messages.sort_by_key(|message| message.position);
        Ok(messages)
    }

    async fn remove(&self, consumer: &str, event_ids: &[Uuid]) -> Result<(), SubscriptionError> {
        let remove = query(REMOVE).bind(consumer).bind(json(&texts(event_ids)));
        let removed = remove.bind(time(Duration::ZERO)).execute(self).await;
        removed.map(drop).map_err(failed)
    }

    async fn set_due(
        &self,
        consumer: &str,
        event_ids: &[Uuid],
        after: Duration,
    ) -> Result<(), SubscriptionError> {
        let set = query(SET_DUE).bind(consumer).bind(json(&texts(event_ids))).bind(time(after));
        set.execute(self).await.map(drop).map_err(failed)
    }
}

fn message(row: &SqliteRow) -> Result<Message, sqlx::Error> {
    let event_id: &str = row.try_get("event_id")?;
    Ok(Message {
        position: row.try_get("position")?,
        event_id: event_id.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
        aggregate_type: row.try_get("aggregate_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        event_version: row.try_get("event_version")?,
        payload: row.try_get("payload")?,
        content_type: row.try_get("content_type")?,
        headers: row.try_get("headers")?,
        topic: row.try_get("topic")?,
        occurred_at: row.try_get("occurred_at")?,
        is_revived: row.try_get("is_revived")?,
    })
}

/// The time after a while from now, as the table has it.
fn time(after: Duration) -> String {
    timestamp::to_text(SystemTime::now() + after)
}

fn texts(event_ids: &[Uuid]) -> Vec<String> {
    event_ids.iter().map(Uuid::to_string).collect()
}

fn json(value: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("texts are JSON")
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
