//! The relay of the textbook: it locks a hundred rows, publishes them, updates each, and commits.
//!
//! It gets what it can use: prepared statements, a sink that answers at once, the same indexes,
//! and a thread of its own, so that no answer of the server waits for another thread to wake up.

use std::sync::Arc;

use postrider::Event;
use postrider::event::CONTENT_TYPE_JSON;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{Message, Sink as _};
use postrider_relay::sinks::memory::MemorySink;
use tokio_postgres::{Client, NoTls, Row};

use crate::Outcome;

const SELECT: &str = "SELECT id, aggregate_type, aggregate_id, event_type, payload \
     FROM outbox WHERE published_at IS NULL ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED";
const UPDATE: &str = "UPDATE outbox SET published_at = now() WHERE id = $1";

/// Publishes so many events; answers how many it were.
pub(super) async fn run(url: String, events: u64) -> Outcome<u64> {
    let on_one_thread = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            relay(&mut client, events).await
        })
    };
    tokio::task::spawn_blocking(on_one_thread).await?
}

async fn relay(client: &mut Client, events: u64) -> Outcome<u64> {
    let sink = MemorySink::keeping(0);
    let (select, update) = (client.prepare(SELECT).await?, client.prepare(UPDATE).await?);
    while sink.count() < events {
        let transaction = client.transaction().await?;
        let rows = transaction.query(&select, &[]).await?;
        if rows.is_empty() {
            break;
        }
        let messages = rows.iter().map(message).collect::<Outcome<Vec<_>>>()?;
        for result in sink.publish(&messages).await {
            result?;
        }
        for message in &messages {
            transaction.execute(&update, &[&message.event.id()]).await?;
        }
        transaction.commit().await?;
    }
    Ok(sink.count())
}

fn message(row: &Row) -> Outcome<Message> {
    let (aggregate_type, aggregate_id): (&str, &str) = (row.get(1), row.get(2));
    let (event_type, payload): (&str, Vec<u8>) = (row.get(3), row.get(4));
    let event = Event::builder(aggregate_type, aggregate_id, event_type)
        .id(row.get(0))
        .payload(payload, CONTENT_TYPE_JSON)
        .build()?;
    Ok(Encoding::default().encode(Arc::new(event))?)
}
