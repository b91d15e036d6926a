//! The tables in PostgreSQL, from version 14.
//!
//! Everything lies in the current schema of the connection, the first of its `search_path` that
//! exists; a URL chooses another one by `options=-csearch_path=app`. The functions that come with
//! the tables (`outbox_publish`, `inbox_accept` and others) find them whatever their caller's path is.

mod layout;
mod replicated;
mod roles;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;
#[cfg(feature = "tokio-postgres")]
mod verify;

pub use layout::{InvalidWidth, Layout, PartitionWidth};
pub use replicated::{InvalidReplicated, Replicated, replicated_sql};
pub use roles::{InvalidPrefix, RolePrefix, roles};
#[cfg(feature = "tokio-postgres")]
pub use tokio_postgres::{migrate, pending, set_replicated, status};
#[cfg(feature = "tokio-postgres")]
pub use verify::verify;

use super::{MIGRATIONS_TABLE, Migration, TableName, postgres_literal, with_names};
use crate::event::{
    AGGREGATE_ID_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX,
};

/// Held, to the end of a transaction, by whoever changes tables.
const LOCK_KEY: i64 = i64::from_be_bytes(*b"postride");

/// A new UUID of version 7. PostgreSQL has a function for it only from version 18.
const NEW_ID: &str = "\
    encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid";

/// Functions that publish an event: by a row, by a message (of version 1), or by a row in the log alone.
const PUBLISH: &str = include_str!("../../migrations/postgres/0001_publish.sql");
const WRITE_EVENT: &str = include_str!("../../migrations/postgres/write_event.sql");
const WRITE_MESSAGE: &str = include_str!("../../migrations/postgres/write_message.sql");
const WRITE_TO_LOG: &str = include_str!("../../migrations/postgres/write_to_log.sql");

/// What is wrong with a pipeline's sink is kept with its checkpoint, in every layout.
const TROUBLE: Migration = Migration {
    version: 2,
    name: "trouble",
    sql: include_str!("../../migrations/postgres/0002_trouble.sql"),
};

/// What pipelines match is kept with their checkpoints, in every layout.
const MATCHING: Migration = Migration {
    version: 3,
    name: "matching",
    sql: include_str!("../../migrations/postgres/0003_matching.sql"),
};

/// Rows that are replicated from another server get numbers of this one. A table that is not of our
/// making stays as it is.
const REPLICATED: Migration = Migration {
    version: 4,
    name: "replicated",
    sql: include_str!("../../migrations/postgres/0004_replicated.sql"),
};

/// Functions that run with more rights than their caller has.
const RIGHTS_PLAIN: Migration = Migration {
    version: 5,
    name: "rights",
    sql: include_str!("../../migrations/postgres/0005_rights.sql"),
};

const RIGHTS_PARTITIONED: Migration = Migration {
    version: 5,
    name: "rights",
    sql: concat!(
        include_str!("../../migrations/postgres/0005_rights.sql"),
        include_str!("../../migrations/postgres/0005_partitions.sql"),
    ),
};

const PLAIN: &[Migration] = &[OUTBOX_PLAIN, TROUBLE, MATCHING, REPLICATED, RIGHTS_PLAIN];
const PARTITIONED: &[Migration] =
    &[OUTBOX_PARTITIONED, TROUBLE, MATCHING, REPLICATED, RIGHTS_PARTITIONED];
const EXISTING: &[Migration] = &[OUTBOX_EXISTING, TROUBLE, MATCHING];

const OUTBOX_PLAIN: Migration = Migration {
    version: 1,
    name: "outbox",
    sql: concat!(
        include_str!("../../migrations/postgres/0001_outbox.sql"),
        include_str!("../../migrations/postgres/0001_functions.sql"),
        include_str!("../../migrations/postgres/0001_beside.sql"),
        include_str!("../../migrations/postgres/0001_inbox.sql"),
        include_str!("../../migrations/postgres/0001_inbox_functions.sql"),
    ),
};

const OUTBOX_PARTITIONED: Migration = Migration {
    version: 1,
    name: "outbox",
    sql: concat!(
        include_str!("../../migrations/postgres/0001_outbox.sql"),
        include_str!("../../migrations/postgres/0001_partitions.sql"),
        include_str!("../../migrations/postgres/0001_functions.sql"),
        include_str!("../../migrations/postgres/0001_beside.sql"),
        include_str!("../../migrations/postgres/0001_inbox.sql"),
        include_str!("../../migrations/postgres/0001_inbox_functions.sql"),
    ),
};

const OUTBOX_EXISTING: Migration = Migration {
    version: 1,
    name: "outbox",
    sql: concat!(
        include_str!("../../migrations/postgres/0001_beside.sql"),
        include_str!("../../migrations/postgres/0001_inbox.sql"),
        include_str!("../../migrations/postgres/0001_inbox_functions.sql"),
    ),
};

/// All migrations of a layout, in order.
pub fn migrations(layout: Layout) -> &'static [Migration] {
    match layout {
        Layout::Plain => PLAIN,
        Layout::Partitioned { .. } => PARTITIONED,
        Layout::Existing => EXISTING,
    }
}

/// All migrations as one script for an empty schema, for those who migrate with a tool of their
/// own. It leaves a schema that `postrider migrate` takes for its own, and neither begins nor
/// ends a transaction.
pub fn sql(outbox: &TableName, layout: Layout) -> String {
    let mut script = ledger();
    for migration in migrations(layout) {
        script.push_str(&step(migration, outbox, layout));
    }
    script.push_str(&first_partitions(outbox, layout));
    script
}

/// The statement that makes the table of applied migrations, unless it exists.
fn ledger() -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {MIGRATIONS_TABLE} (
    outbox     text NOT NULL,
    version    integer NOT NULL,
    name       text NOT NULL,
    layout     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (outbox, version)
);

"
    )
}

/// One migration and the row that says it was applied.
fn step(migration: &Migration, outbox: &TableName, layout: Layout) -> String {
    let Migration { version, name, .. } = migration;
    let (outbox_name, layout_name) =
        (postgres_literal(outbox.as_str()), postgres_literal(&layout.to_string()));
    format!(
        "{}
INSERT INTO {MIGRATIONS_TABLE} (outbox, version, name, layout)
VALUES ({outbox_name}, {version}, '{name}', {layout_name});
",
        filled(migration, outbox, layout)
    )
}

/// The SQL of a migration.
fn filled(migration: &Migration, outbox: &TableName, layout: Layout) -> String {
    let (primary_key, partitioned, width) = match layout {
        Layout::Partitioned { width } => {
            ("id, created_at", " PARTITION BY RANGE (created_at)", width.hours())
        }
        Layout::Plain | Layout::Existing => ("id", "", 0),
    };
    let values = [
        (
            "{publish_functions}",
            publish_functions("{outbox_publish}", WRITE_EVENT, PUBLISHES)
                + &publish_functions("{outbox_publish_message}", WRITE_MESSAGE, PUBLISHES_TO_LOG),
        ),
        (
            "{publish_to_log_functions}",
            publish_functions("{outbox_publish_message}", WRITE_TO_LOG, PUBLISHES_TO_LOG),
        ),
        ("{replicated_trigger}", replicated::trigger(Replicated::default())),
        ("{aggregate_id_bytes_max}", AGGREGATE_ID_BYTES_MAX.to_string()),
        ("{headers_bytes_max}", HEADERS_BYTES_MAX.to_string()),
        ("{headers_max}", HEADERS_MAX.to_string()),
        ("{lock_key}", LOCK_KEY.to_string()),
        ("{name_bytes_max}", NAME_BYTES_MAX.to_string()),
        ("{new_id}", NEW_ID.to_owned()),
        ("{partition_width}", format!("{width} hours")),
        ("{partitioned}", partitioned.to_owned()),
        ("{payload_bytes_max}", PAYLOAD_BYTES_MAX.to_string()),
        ("{primary_key}", primary_key.to_owned()),
        ("$$", dollar_quote(outbox)),
    ];
    let mut sql = migration.sql.to_owned();
    for (placeholder, value) in values {
        sql = sql.replace(placeholder, &value);
    }
    with_names(&sql, outbox)
}

/// Functions with one name, for each kind of payload.
fn publish_functions(name: &str, write: &str, publishes: &str) -> String {
    PUBLISH
        .replace("{publishes}", publishes)
        .replace("{publish}", name)
        .replace("{write_event}", write)
}

const PUBLISHES: &str = "Writes one event in the caller's transaction and answers its id.";
const PUBLISHES_TO_LOG: &str =
    "Writes one event to the log alone, in the caller's transaction, and answers its id.";

/// A quote for the bodies of functions that the table's name does not close.
fn dollar_quote(outbox: &TableName) -> String {
    let mut tag = String::new();
    while outbox.as_str().contains(&format!("${tag}$")) {
        tag.push('x');
    }
    format!("${tag}$")
}

/// Makes the first partitions of a table that has them.
fn first_partitions(outbox: &TableName, layout: Layout) -> String {
    match layout {
        Layout::Partitioned { .. } => with_names("\nSELECT {outbox_add_partitions}();\n", outbox),
        Layout::Plain | Layout::Existing => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUTS: [Layout; 3] =
        [Layout::Plain, Layout::Existing, Layout::Partitioned { width: PartitionWidth::DAY }];

    #[test]
    fn migrations_count_from_one_without_gaps() {
        for layout in LAYOUTS {
            let versions: Vec<u32> = migrations(layout).iter().map(|found| found.version).collect();
            assert_eq!(versions, (1..=versions.len() as u32).collect::<Vec<_>>(), "{layout}");
            assert!(versions.len() > 1, "{layout}");
        }
    }

    /// Databases have them as they were. Write another migration instead.
    #[test]
    fn a_migration_that_was_applied_somewhere_is_never_changed() {
        let outbox = TableName::default();
        let digest = |layout, migration| {
            let sql = filled(migration, &outbox, layout);
            uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, sql.as_bytes()).to_string()
        };
        let found = LAYOUTS.map(|layout| {
            migrations(layout).iter().map(|migration| digest(layout, migration)).collect::<Vec<_>>()
        });
        let expected: [&[&str]; 3] = [
            &[
                "aa88305d-6d6c-585a-8f74-6b2fa1eaf6f5",
                "3425e175-2e2a-5d54-8467-7a5754e2411c",
                "6c77e477-5cb5-51ea-99cd-c44a273e48f4",
                "5ee4c664-5ad6-5084-a059-5732274c9873",
                "97251394-9d8a-5df4-9241-f2dedeae6986",
            ],
            &[
                "1b17ecac-8585-57be-bc7c-84af06135d80",
                "3425e175-2e2a-5d54-8467-7a5754e2411c",
                "6c77e477-5cb5-51ea-99cd-c44a273e48f4",
            ],
            &[
                "f9a49929-d316-5673-bfa6-57afb0c9a327",
                "3425e175-2e2a-5d54-8467-7a5754e2411c",
                "6c77e477-5cb5-51ea-99cd-c44a273e48f4",
                "5ee4c664-5ad6-5084-a059-5732274c9873",
                "51ac52f1-8fed-541e-89ed-18e487875c80",
            ],
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn no_placeholder_is_left() {
        for layout in LAYOUTS {
            let script = sql(&TableName::new("a\"b").unwrap(), layout);
            let left: Vec<&str> =
                script.split('{').skip(1).filter(|after| !after.starts_with('}')).collect();
            assert!(left.is_empty(), "{layout}: {left:?}");
        }
    }

    #[test]
    fn a_name_does_not_close_a_body() {
        for (name, quote) in [("outbox", "$$"), ("a$b", "$$"), ("a$$b", "$x$"), ("$$x$", "$xx$")] {
            assert_eq!(dollar_quote(&TableName::new(name).unwrap()), quote, "{name}");
        }
    }
}
