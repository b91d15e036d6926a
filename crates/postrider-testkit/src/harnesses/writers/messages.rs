//! Events that are in the log of a server of PostgreSQL alone, read without the relay.

use serde_json::Value;
use tokio_postgres::Client;

use crate::suites::writer::Message;

/// The slot of a connection. It ends with it, and with a statement that fails.
const SLOT: &str = "'postrider_test_' || pg_backend_pid()";

/// Keeps what is written to the log from now on, for this connection.
pub async fn watch(client: &Client) {
    let sql = format!("SELECT pg_create_logical_replication_slot({SLOT}, 'test_decoding', true)");
    client.batch_execute(&sql).await.expect("a slot can be made");
}

/// The messages for the outbox that were committed since the last call, in order.
pub async fn messages(client: &Client) -> Vec<Message> {
    let sql = format!(
        "SELECT data, format('%I.outbox', current_schema()) FROM
         pg_logical_slot_get_binary_changes({SLOT}, NULL, NULL, 'force-binary', 'true')"
    );
    let rows = client.query(&sql, &[]).await.expect("the slot can be read");
    let read = |row: &tokio_postgres::Row| {
        let message = parse(row.get(0))?;
        // Other tests write to the same database.
        (message.fields["outbox"] == row.get::<_, &str>(1)).then_some(message)
    };
    rows.iter().filter_map(read).collect()
}

/// What `test_decoding` says, if that is a message of a transaction with our prefix.
fn parse(said: &[u8]) -> Option<Message> {
    let said = said.strip_prefix(b"message: transactional: 1 prefix: postrider, sz: ")?;
    let (_, content) = split(said, b" content:")?;
    let (fields, payload) = split(content, b"\n")?;
    let fields: Value = serde_json::from_slice(fields).expect("the first line is JSON");
    Some(Message { fields, payload: payload.to_vec() })
}

/// What is before and behind the first of these bytes.
fn split<'b>(bytes: &'b [u8], at: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let place = bytes.windows(at.len()).position(|found| found == at)?;
    Some((&bytes[..place], &bytes[place + at.len()..]))
}
