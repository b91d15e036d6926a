//! A backlog of events, written by the server itself.

use tokio_postgres::Client;

use super::server::Server;
use crate::Outcome;

pub(super) const PAYLOAD_BYTES: usize = 200;
pub(super) const KEYS: u64 = 10_000;
/// Before the number of an event in its payload.
pub(super) const PAYLOAD_START: &str = "{\"number\":\"";
/// Digits of that number.
pub(super) const NUMBER_BYTES: usize = 10;
/// Behind it.
const PAYLOAD_MIDDLE: &str = "\",\"note\":\"";
const PAYLOAD_END: &str = "\"}";

/// Whether rows are marked as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    No,
    Yes,
}

/// How many rows are written, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) rows: u64,
    /// Rows of one transaction.
    pub(super) together: u64,
    pub(super) payload_bytes: usize,
}

/// Writes rows, without waiting for the disk.
pub(super) async fn fill(client: &Client, rows: u64, published: Published) -> Outcome<()> {
    let shape = Shape { rows, together: 1_000, payload_bytes: PAYLOAD_BYTES };
    fill_as(client, shape, published).await
}

/// The same with so many keys.
pub(super) async fn fill_keys(client: &Client, rows: u64, keys: usize) -> Outcome<()> {
    let shape = Shape { rows, together: 1_000, payload_bytes: PAYLOAD_BYTES };
    write(client, shape, keys as u64, Published::No).await
}

/// The same with transactions and payloads of another size.
pub(super) async fn fill_as(client: &Client, shape: Shape, published: Published) -> Outcome<()> {
    write(client, shape, KEYS, published).await
}

async fn write(client: &Client, shape: Shape, keys: u64, published: Published) -> Outcome<()> {
    let Shape { rows, together, payload_bytes } = shape;
    let published = match published {
        Published::No => "NULL",
        Published::Yes => "clock_timestamp()",
    };
    let note = "x".repeat(
        payload_bytes
            - PAYLOAD_START.len()
            - NUMBER_BYTES
            - PAYLOAD_MIDDLE.len()
            - PAYLOAD_END.len(),
    );
    let sql = format!(
        "DO $$ BEGIN FOR transaction IN 1..{} LOOP
           INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
           SELECT 'Order', (n % {keys})::text, 'OrderPlaced', convert_to('{PAYLOAD_START}'
             || lpad(n::text, {NUMBER_BYTES}, '0') || '{PAYLOAD_MIDDLE}{note}{PAYLOAD_END}', 'UTF8'),
             {published}
           FROM generate_series((transaction - 1) * {together}, transaction * {together} - 1) AS n;
           COMMIT;
         END LOOP; END $$",
        rows / together
    );
    // One by one: statements that are sent together are one transaction.
    client.batch_execute("SET synchronous_commit = off").await?;
    client.batch_execute(&sql).await?;
    client.batch_execute("RESET synchronous_commit").await?;
    Ok(())
}

/// The payload of one event, of so many bytes.
pub(super) fn payload(number: usize, bytes: usize) -> String {
    let start = format!("{PAYLOAD_START}{number:0NUMBER_BYTES$}{PAYLOAD_MIDDLE}");
    let note = "x".repeat(bytes - start.len() - PAYLOAD_END.len());
    format!("{start}{note}{PAYLOAD_END}")
}

/// The number of an event, from its payload.
pub(super) fn number(payload: &[u8]) -> Option<usize> {
    let digits = payload.get(PAYLOAD_START.len()..PAYLOAD_START.len() + NUMBER_BYTES)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Makes a database with a backlog, to be copied.
pub(super) async fn template(server: &Server, database: &str, rows: u64) -> Outcome<()> {
    let client = server.create(database).await?;
    fill(&client, rows, Published::No).await?;
    // As autovacuum does after so many rows; from then on it must not disturb.
    client.batch_execute("VACUUM (ANALYZE) outbox").await?;
    client.batch_execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await?;
    client.batch_execute("CREATE EXTENSION pg_prewarm").await?;
    Ok(())
}

/// Copies a database with a backlog. What was written last is in the server's memory.
pub(super) async fn copy(server: &Server, template: &str, database: &str) -> Outcome<Client> {
    let client = server.copy(template, database).await?;
    let warm =
        "SELECT pg_prewarm(oid) FROM pg_class WHERE relname ~ '^outbox' AND relkind IN ('r', 'i')";
    client.batch_execute(warm).await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_number() {
        let payload = payload(4711, 1600);
        assert_eq!(payload.len(), 1600);
        assert_eq!(number(payload.as_bytes()), Some(4711));
        assert_eq!(number(b"{}"), None);
    }
}
