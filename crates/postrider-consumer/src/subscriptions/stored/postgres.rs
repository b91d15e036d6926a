//! The table in PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use sqlx::PgPool;
use sqlx::postgres::PgRow;
use sqlx::{Row as _, query, query_as};
use uuid::Uuid;

use super::table::{Head, Key, Look, Message, Table, failed};
use crate::subscription::SubscriptionError;

/// Of consumer, the last key of before, and how many keys and due ones to look at.
const LOOK: &str = "\
WITH RECURSIVE head (aggregate_type, aggregate_id, is_due, keys, due) AS (
    (SELECT m.aggregate_type, m.aggregate_id, m.due_at <= statement_timestamp(), 1,
        (m.due_at <= statement_timestamp())::integer
     FROM inbox_messages AS m
     WHERE m.consumer = $1 AND NOT m.dead AND (m.aggregate_type, m.aggregate_id) > ($2, $3)
     ORDER BY m.aggregate_type, m.aggregate_id, m.position LIMIT 1)
    UNION ALL
    SELECT n.aggregate_type, n.aggregate_id, n.is_due, h.keys + 1, h.due + n.is_due::integer
    FROM head AS h CROSS JOIN LATERAL (
        SELECT m.aggregate_type, m.aggregate_id, m.due_at <= statement_timestamp() AS is_due
        FROM inbox_messages AS m
        WHERE m.consumer = $1 AND NOT m.dead
            AND (m.aggregate_type, m.aggregate_id) > (h.aggregate_type, h.aggregate_id)
        ORDER BY m.aggregate_type, m.aggregate_id, m.position LIMIT 1) AS n
    WHERE h.keys < $4 AND h.due < $5
)
SELECT aggregate_type, aggregate_id, is_due FROM head ORDER BY keys";

/// Locks the first messages of keys and answers the keys: of consumer, aggregate types and ids.
const LOCK: &str = "\
SELECT m.aggregate_type, m.aggregate_id
FROM unnest($2::text[], $3::text[]) AS k (aggregate_type, aggregate_id)
CROSS JOIN LATERAL (
    SELECT f.position FROM inbox_messages AS f
    WHERE f.consumer = $1 AND f.aggregate_type = k.aggregate_type
        AND f.aggregate_id = k.aggregate_id AND NOT f.dead
    ORDER BY f.position LIMIT 1) AS f
JOIN inbox_messages AS m ON m.consumer = $1 AND m.aggregate_type = k.aggregate_type
    AND m.aggregate_id = k.aggregate_id AND m.position = f.position AND NOT m.dead
WHERE m.due_at <= statement_timestamp()
FOR UPDATE OF m SKIP LOCKED";

/// Leases what follows the first messages: as [`LOCK`], with the number of each key and seconds.
const LEASE: &str = "\
WITH taken AS (
    SELECT t.event_id FROM unnest($2::text[], $3::text[]) AS k (aggregate_type, aggregate_id)
    CROSS JOIN LATERAL (
        SELECT m.event_id,
            bool_and(m.due_at <= statement_timestamp()) OVER (ORDER BY m.position) AS is_due
        FROM (SELECT event_id, position, due_at FROM inbox_messages
            WHERE consumer = $1 AND aggregate_type = k.aggregate_type
                AND aggregate_id = k.aggregate_id AND NOT dead
            ORDER BY position LIMIT $4) AS m) AS t
    WHERE t.is_due
)
UPDATE inbox_messages AS m SET due_at = clock_timestamp() + make_interval(secs => $5)
FROM taken AS t WHERE m.consumer = $1 AND m.event_id = t.event_id AND NOT m.dead
RETURNING m.position, m.event_id, m.aggregate_type, m.aggregate_id, m.event_type, m.event_version,
    m.payload, m.content_type, m.headers::text AS headers, m.topic,
    (extract(epoch FROM m.occurred_at) * 1000000)::bigint AS occurred_at,
    m.error IS NOT NULL AS is_revived";

/// Of consumer and event ids. `EXISTS` might read the whole inbox.
const REMOVE: &str = "\
DELETE FROM inbox_messages AS m
WHERE m.consumer = $1 AND m.event_id = ANY($2) AND NOT m.dead
    AND (m.due_at > statement_timestamp() OR coalesce((
        SELECT true FROM inbox AS i WHERE i.consumer = $1 AND i.event_id = m.event_id), false))";

/// Of consumer, event ids and seconds. What is being removed in this moment is passed over.
const SET_DUE: &str = "\
UPDATE inbox_messages SET due_at = clock_timestamp() + make_interval(secs => $3)
WHERE consumer = $1 AND event_id = ANY(ARRAY(
    SELECT event_id FROM inbox_messages WHERE consumer = $1 AND event_id = ANY($2) AND NOT dead
    FOR UPDATE SKIP LOCKED))";

#[async_trait]
impl Table for PgPool {
    async fn look(&self, consumer: &str, look: Look<'_>) -> Result<Vec<Head>, SubscriptionError> {
        let heads: Vec<(String, String, bool)> = query_as(LOOK)
            .bind(consumer)
            .bind(&look.after.0)
            .bind(&look.after.1)
            .bind(number(look.keys_max))
            .bind(number(look.due_max))
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
        let (types, ids): (Vec<&str>, Vec<&str>) =
            keys.iter().map(|key| (key.0.as_str(), key.1.as_str())).unzip();
        let mut tx = self.begin().await.map_err(failed)?;
        let locked: Vec<Key> = query_as(LOCK)
            .bind(consumer)
            .bind(types)
            .bind(ids)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let (types, ids): (Vec<String>, Vec<String>) = locked.into_iter().unzip();
        let rows = query(LEASE)
            .bind(consumer)
            .bind(types)
            .bind(ids)
            .bind(i64::from(number(of_key)))
            .bind(visibility.as_secs_f64())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        let messages: Result<Vec<_>, _> = rows.iter().map(message).collect();
        let mut messages = messages.map_err(failed)?;
        messages.sort_by_key(|message| message.position);
        Ok(messages)
    }

    async fn remove(&self, consumer: &str, event_ids: &[Uuid]) -> Result<(), SubscriptionError> {
        let removed = query(REMOVE).bind(consumer).bind(event_ids).execute(self).await;
        removed.map(drop).map_err(failed)
    }

    async fn set_due(
        &self,
        consumer: &str,
        event_ids: &[Uuid],
        after: Duration,
    ) -> Result<(), SubscriptionError> {
        let set = query(SET_DUE).bind(consumer).bind(event_ids).bind(after.as_secs_f64());
        set.execute(self).await.map(drop).map_err(failed)
    }
}

fn message(row: &PgRow) -> Result<Message, sqlx::Error> {
    let microseconds = row.try_get("occurred_at")?;
    let occurred_at = Timestamp::from_microsecond(microseconds);
    Ok(Message {
        position: row.try_get("position")?,
        event_id: row.try_get("event_id")?,
        aggregate_type: row.try_get("aggregate_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        event_version: row.try_get("event_version")?,
        payload: row.try_get("payload")?,
        content_type: row.try_get("content_type")?,
        headers: row.try_get("headers")?,
        topic: row.try_get("topic")?,
        occurred_at: occurred_at.map_err(|error| sqlx::Error::Decode(error.into()))?.to_string(),
        is_revived: row.try_get("is_revived")?,
    })
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
