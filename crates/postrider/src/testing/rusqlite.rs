//! The outbox of a SQLite database, read with rusqlite.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::SystemTime;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::{Published, Source};
use crate::event::Event;
use crate::outbox::Outbox;
use crate::timestamp;

impl Published for Connection {
    fn published(&self) -> Vec<Event> {
        Source::events(self, &Outbox::new())
    }
}

impl Source for Connection {
    fn events(&self, outbox: &Outbox) -> Vec<Event> {
        read(self, outbox, "true")
    }

    fn pending(&self, outbox: &Outbox) -> Vec<Event> {
        read(self, outbox, "published_at IS NULL")
    }

    fn settle(&mut self, outbox: &Outbox, event: &Event) {
        let table = outbox.table();
        let sql = format!("UPDATE {} SET published_at = ?1 WHERE id = ?2", table.quoted());
        let now = timestamp::to_text(SystemTime::now());
        if let Err(error) = self.execute(&sql, params![now, event.id().to_string()]) {
            panic!("event {} cannot be marked as published in {table}: {error}", event.id());
        }
    }
}

fn read(conn: &Connection, outbox: &Outbox, condition: &str) -> Vec<Event> {
    let table = outbox.table();
    match try_read(conn, &table.quoted(), condition) {
        Ok(events) => events,
        Err(error) => panic!("the events in {table} cannot be read: {error}"),
    }
}

fn try_read(conn: &Connection, table: &str, condition: &str) -> Result<Vec<Event>, Box<dyn Error>> {
    let mut statement = conn.prepare(&format!(
        "SELECT id, aggregate_type, aggregate_id, event_type, event_version, payload, content_type, \
         headers, topic, occurred_at, deliver_after FROM {table} WHERE {condition} ORDER BY seq"
    ))?;
    let mut rows = statement.query([])?;
    let mut events = Vec::new();
    while let Some(row) = rows.next()? {
        events.push(event(row)?);
    }
    Ok(events)
}

fn event(row: &Row<'_>) -> Result<Event, Box<dyn Error>> {
    let text = |column: &str| row.get::<_, String>(column);
    let headers: BTreeMap<String, String> = serde_json::from_str(&text("headers")?)?;
    // Programs in other languages may have written it as text.
    let payload = match row.get_ref("payload")? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes.to_vec(),
        other => return Err(format!("payload is {}", other.data_type()).into()),
    };
    let mut event =
        Event::builder(text("aggregate_type")?, text("aggregate_id")?, text("event_type")?)
            .id(Uuid::parse_str(&text("id")?)?)
            .version(row.get("event_version")?)
            .payload(payload, text("content_type")?)
            .headers(headers)
            .occurred_at(timestamp::from_text(&text("occurred_at")?)?);
    if let Some(topic) = row.get::<_, Option<String>>("topic")? {
        event = event.topic(topic);
    }
    if let Some(deliver_after) = row.get::<_, Option<String>>("deliver_after")? {
        event = event.deliver_after(timestamp::from_text(&deliver_after)?);
    }
    Ok(event.build()?)
}
