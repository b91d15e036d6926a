//! Compares the tables with what the migrations make in a database in memory.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, params};

use super::{MIGRATIONS, ledger, status, step};
use crate::schema::comparison::{Kind, Object, compare, pending};
use crate::schema::{Difference, SchemaError, TableName};

/// Compares the tables, indexes and triggers of an outbox with what the migrations make, and gives back
/// every difference. Changes nothing.
///
/// # Errors
///
/// Refuses a database that a later version of postrider migrated.
pub fn verify(conn: &Connection, outbox: &TableName) -> Result<Vec<Difference>, SchemaError> {
    let status = status(conn, outbox)?;
    let mut differences: Vec<Difference> = status.pending.into_iter().map(pending).collect();
    if status.applied.is_empty() {
        return Ok(differences);
    }
    let memory = Connection::open_in_memory()?;
    memory.execute_batch(&ledger())?;
    for migration in MIGRATIONS {
        memory.execute_batch(&step(migration, outbox))?;
    }
    let expected = objects(&memory, None)?;
    let names: BTreeSet<&str> = expected.keys().map(|object| object.container.as_str()).collect();
    let names = serde_json::to_string(&names).expect("a list of texts is JSON");
    differences.extend(compare(&expected, &objects(conn, Some(&names))?));
    Ok(differences)
}

/// What the database has of these tables, a list in JSON, or all it has, with definitions.
fn objects(
    conn: &Connection,
    tables: Option<&str>,
) -> Result<BTreeMap<Object, String>, rusqlite::Error> {
    let mut statement = conn.prepare(OBJECTS)?;
    let mut rows = statement.query(params![tables])?;
    let mut objects = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let kind: String = row.get(0)?;
        if let Some((_, kind)) = Kind::ALL.iter().find(|(name, _)| *name == kind) {
            let object = Object { kind: *kind, container: row.get(1)?, name: row.get(2)? };
            objects.insert(object, row.get(3)?);
        }
    }
    Ok(objects)
}

/// An index that belongs to a constraint has no statement of its own.
const OBJECTS: &str = "
WITH tables AS (
    SELECT type, name FROM sqlite_schema
    WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
        AND (?1 IS NULL OR name IN (SELECT value FROM json_each(?1)))
)
SELECT 'table', name, name, 'a ' || type FROM tables
UNION ALL
SELECT 'column', t.name, c.name, trim(c.type || iif(c.\"notnull\", ' NOT NULL', '')
    || coalesce(' DEFAULT ' || c.dflt_value, '') || iif(c.pk > 0, ' PRIMARY KEY ' || c.pk, ''))
FROM tables AS t JOIN pragma_table_info(t.name) AS c
UNION ALL
SELECT 'index', t.name, i.name, coalesce(s.sql, 'a constraint on ('
    || (SELECT group_concat(name, ', ') FROM pragma_index_info(i.name)) || ')')
FROM tables AS t JOIN pragma_index_list(t.name) AS i
    LEFT JOIN sqlite_schema AS s ON s.type = 'index' AND s.name = i.name
UNION ALL
SELECT 'trigger', t.name, s.name, s.sql
FROM tables AS t JOIN sqlite_schema AS s ON s.type = 'trigger' AND s.tbl_name = t.name
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::sqlite::migrate;

    fn differences(outbox: &TableName, change: &str) -> Vec<String> {
        let mut conn = Connection::open_in_memory().unwrap();
        migrate(&mut conn, outbox).unwrap();
        conn.execute_batch(change).unwrap();
        verify(&conn, outbox).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_was_migrated_is_as_it_should_be() {
        let none: [&str; 0] = [];
        assert_eq!(differences(&TableName::default(), "CREATE TABLE mine (id)"), none);
        assert_eq!(differences(&TableName::new("it's \"mine\"").unwrap(), ""), none);
    }

    #[test]
    fn every_drift_is_found() {
        let drifts = [
            ("ALTER TABLE outbox DROP COLUMN topic", "column outbox.topic is missing"),
            ("ALTER TABLE outbox ADD tenant TEXT", "column outbox.tenant should not be there"),
            ("DROP INDEX outbox_unpublished", "index outbox_unpublished is missing"),
            ("CREATE INDEX mine ON outbox (topic)", "index mine should not be there"),
            ("DROP TABLE outbox_checkpoints", "table outbox_checkpoints is missing"),
            ("DROP TABLE inbox_versions", "table inbox_versions is missing"),
            ("DROP INDEX inbox_messages_due", "index inbox_messages_due is missing"),
            (
                "CREATE TRIGGER mine BEFORE INSERT ON outbox BEGIN SELECT RAISE(IGNORE); END",
                "trigger mine of outbox should not be there",
            ),
            (
                "DROP INDEX outbox_unpublished; CREATE INDEX outbox_unpublished ON outbox (seq)",
                "index outbox_unpublished is changed: CREATE INDEX outbox_unpublished ON outbox \
                 (seq); it should be: CREATE INDEX \"outbox_unpublished\" ON \"outbox\" (seq) \
                 WHERE published_at IS NULL",
            ),
            (
                "DROP TABLE inbox; CREATE TABLE inbox (consumer TEXT, event_id TEXT,
                    processed_at TEXT, PRIMARY KEY (consumer, event_id)) WITHOUT ROWID;
                CREATE INDEX IF NOT EXISTS inbox_processed_at ON inbox (processed_at)",
                "column inbox.processed_at is changed: TEXT; it should be: TEXT NOT NULL DEFAULT \
                 strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
            ),
        ];
        for (change, expected) in drifts {
            assert_eq!(differences(&TableName::default(), change), [expected], "{change}");
        }
    }

    #[test]
    fn a_database_without_tables_lacks_its_migrations() {
        let conn = Connection::open_in_memory().unwrap();
        let found = verify(&conn, &TableName::default()).unwrap();
        assert_eq!(found[0].to_string(), "migration 1 outbox was not applied");
        assert_eq!(found.len(), MIGRATIONS.len());
    }
}
