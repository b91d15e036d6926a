//! Events that are in the log of a server of PostgreSQL alone, read without the relay.

use std::collections::HashSet;

use bytes::Bytes;
use postrider_replication::pgoutput::{Column, Message as Logged, Tuple, Value as Sent, decode};
use serde_json::{Map, Value, json};
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::suites::writer::Message;

/// The slot of a connection, and its publication. The slot ends with the connection, and with a
/// statement that fails.
const NAME: &str = "postrider_test_";
/// From 1970 to 2000, in microseconds.
const EPOCH_2000_US: i64 = 946_684_800_000_000;

/// Keeps what is written to the log from now on, for this connection.
pub async fn watch(client: &Client) {
    let publication = format!(
        "DO $$ BEGIN
             EXECUTE format('DROP PUBLICATION IF EXISTS %I', '{NAME}' || pg_backend_pid());
             EXECUTE format('CREATE PUBLICATION %I FOR TABLE outbox
                 WITH (publish = insert, publish_via_partition_root = true)',
                 '{NAME}' || pg_backend_pid());
         END $$"
    );
    let slot = format!(
        "SELECT pg_create_logical_replication_slot('{NAME}' || pg_backend_pid(), 'pgoutput', true)"
    );
    // As a pipeline writes down that it reads the log.
    let checkpoint = "INSERT INTO outbox_checkpoints (pipeline, progress, lsn)
         VALUES ('watch', 'cursor', '0/1') ON CONFLICT DO NOTHING"
        .to_owned();
    for sql in [publication, slot, checkpoint] {
        client.batch_execute(&sql).await.expect("the log can be watched");
    }
}

/// The events that were committed since the last call and are in no table, in order.
pub async fn messages(client: &Client) -> Vec<Message> {
    let sql = format!(
        "SELECT data FROM pg_logical_slot_get_binary_changes('{NAME}' || pg_backend_pid(), NULL,
             NULL, 'proto_version', '1', 'binary', 'true',
             'publication_names', '{NAME}' || pg_backend_pid())"
    );
    let rows = client.query(&sql, &[]).await.expect("the slot can be read");
    let ids = client.query("SELECT id FROM outbox", &[]).await.expect("the outbox can be read");
    let kept: HashSet<Uuid> = ids.iter().map(|row| row.get(0)).collect();
    let mut columns = Vec::new();
    let mut found = Vec::new();
    for row in rows {
        let data = Bytes::copy_from_slice(row.get(0));
        match decode(data, false).expect("the log can be read") {
            Logged::Relation(relation) => columns = relation.columns,
            Logged::Insert { new, .. } => found.push(message(&columns, &new)),
            _ => {}
        }
    }
    found.retain(|message| !kept.contains(&message.id()));
    found
}

fn message(columns: &[Column], row: &Tuple) -> Message {
    let (mut fields, mut payload) = (Map::new(), Vec::new());
    for (column, sent) in columns.iter().zip(row.values()) {
        match sent {
            Sent::Binary(bytes) if column.name == "payload" => payload = bytes.to_vec(),
            Sent::Binary(bytes) => {
                let ty = Type::from_oid(column.type_oid).expect("it is a type of the server's own");
                fields.insert(column.name.clone(), field(&ty, &bytes));
            }
            Sent::Null => drop(fields.insert(column.name.clone(), Value::Null)),
            other => panic!("{}: {other:?}", column.name),
        }
    }
    Message { fields: fields.into(), payload }
}

/// A value as the server sends it in binary. Times are microseconds since 1970.
fn field(ty: &Type, bytes: &[u8]) -> Value {
    let number = || i64::from_be_bytes(bytes.try_into().expect("it has eight bytes"));
    match *ty {
        Type::INT8 | Type::XID8 => json!(number()),
        Type::INT4 => json!(i32::from_be_bytes(bytes.try_into().expect("it has four bytes"))),
        Type::JSONB => serde_json::from_slice(&bytes[1..]).expect("it is JSON"),
        Type::TIMESTAMPTZ => json!(number() + EPOCH_2000_US),
        Type::UUID => json!(Uuid::from_slice(bytes).expect("it is an id").to_string()),
        _ => json!(std::str::from_utf8(bytes).expect("it is text")),
    }
}
