//! What only PostgreSQL has: migrations with a check for drift, functions for every language,
//! partitions and roles.

mod functions;
mod migrating;
mod partitions;
mod roles;
mod verifying;

use postrider::schema::TableName;
use postrider::schema::postgres::{Layout, PartitionWidth, migrate};
use tokio_postgres::Client;
use tokio_postgres::types::FromSqlOwned;

use crate::harnesses::writers::schema::Schema;
use crate::suites::Case;

/// Every case.
pub fn cases() -> Vec<Case<Schema, ()>> {
    let mut cases = migrating::cases();
    cases.extend(verifying::cases());
    cases.extend(functions::cases());
    cases.extend(partitions::cases());
    cases.extend(roles::cases());
    cases
}

const PARTITIONED: Layout = Layout::Partitioned { width: PartitionWidth::DAY };

/// A name that needs care wherever it stands.
fn odd_name() -> TableName {
    TableName::new("it's \"mine\" $$ {outbox} %").expect("a quoted name may be odd")
}

/// A connection to a schema with an outbox.
pub(in crate::suites) async fn migrated(schema: &Schema, layout: Layout) -> Client {
    let mut client = schema.connect().await;
    let migrated = migrate(&mut client, &TableName::default(), Some(layout)).await;
    migrated.expect("an empty schema can be migrated");
    client
}

/// Runs statements.
pub(in crate::suites) async fn run(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The only value of the only row.
pub(in crate::suites) async fn value<T: FromSqlOwned>(client: &Client, sql: &str) -> T {
    let row = client.query_one(sql, &[]).await;
    row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// The first values of all rows.
pub(in crate::suites) async fn values<T: FromSqlOwned>(client: &Client, sql: &str) -> Vec<T> {
    let rows = client.query(sql, &[]).await;
    let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// The error code and the message of what must fail.
pub(in crate::suites) async fn refused(client: &Client, sql: &str) -> (String, String) {
    let error = client.batch_execute(sql).await.err();
    let error = error.unwrap_or_else(|| panic!("{sql}: it should have failed"));
    let error = error.as_db_error().expect("the server has answered");
    (error.code().code().to_owned(), error.message().to_owned())
}
