//! The limit: the server sends the rows, and the client throws them away.

use futures_util::TryStreamExt as _;
use tokio_postgres::Client;

use crate::Outcome;

/// What a relay reads of a row.
const ROWS: &str = "SELECT seq, id, aggregate_type, aggregate_id, event_type, event_version, \
     payload, content_type, headers, topic, occurred_at, deliver_after FROM outbox";

/// Copies all rows, in the order in which they lie there; answers how many they are.
pub(super) async fn read(client: &Client) -> Outcome<u64> {
    let rows = client.copy_out(&format!("COPY ({ROWS}) TO STDOUT")).await?;
    // The server sends a message for each row.
    Ok(rows.try_fold(0, async |count, _| Ok(count + 1)).await?)
}
