//! Statements of `postrider audit`.

/// What there is to know of the server and of this role, in one row: the level of the log, whether
/// any name is that of a synchronous standby, the role, whether it may replicate, the database,
/// and whether the role may create in it.
pub(in super::super) const AUDIT_FACTS: &str = "
    SELECT current_setting('wal_level'),
      current_setting('synchronous_standby_names') LIKE '%*%',
      quote_ident(current_user), r.rolsuper OR r.rolreplication, quote_ident(current_database()),
      has_database_privilege(current_database(), 'CREATE')
    FROM pg_roles AS r WHERE r.rolname = current_user";

/// `$1` a schema or nothing, `$2` a name: the relation that is meant, with all that inherit from
/// it; of these, one that is not in the log, and one of whose rows the log could not tell which
/// was changed. The server refuses to update the latter while it is in a publication with updates:
/// a deferrable key does not count, and from version 18 on none that is computed.
pub(in super::super) const WATCHED_TABLE: &str = "
    WITH RECURSIVE named AS MATERIALIZED (
      SELECT to_regclass(CASE $1 WHEN '' THEN '' ELSE quote_ident($1) || '.' END
        || quote_ident($2))::oid AS oid
    ), tree AS (
      SELECT oid FROM named WHERE oid IS NOT NULL
      UNION SELECT i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid
    ), member AS (
      SELECT c.oid, c.relkind, c.relpersistence, c.relreplident,
        quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS quoted
      FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
    ), computed AS (
      SELECT a.attrelid, a.attnum FROM tree AS t JOIN pg_attribute AS a ON a.attrelid = t.oid
      WHERE a.attgenerated <> '' AND NOT a.attisdropped
        AND current_setting('server_version_num')::int4 >= 180000
    ), unidentified AS (
      SELECT m.quoted FROM member AS m WHERE m.relkind = 'r' AND NOT CASE m.relreplident
        WHEN 'n' THEN false
        WHEN 'f' THEN NOT EXISTS (SELECT FROM computed AS k WHERE k.attrelid = m.oid)
        ELSE EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = m.oid AND i.indisvalid
          AND i.indimmediate
          AND CASE m.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
          AND NOT EXISTS (SELECT FROM computed AS k
            WHERE k.attrelid = m.oid AND k.attnum = ANY(i.indkey))) END
    )
    SELECT c.oid, m.quoted, c.relkind::text,
      n.nspname IN ('pg_catalog', 'information_schema'),
      pg_has_role(current_user, c.relowner, 'USAGE'), quote_ident(pg_get_userbyid(c.relowner)),
      ARRAY(SELECT t.oid FROM tree AS t),
      (SELECT o.quoted FROM member AS o WHERE o.relpersistence <> 'p' ORDER BY 1 LIMIT 1),
      (SELECT u.quoted FROM unidentified AS u ORDER BY 1 LIMIT 1)
    FROM named JOIN pg_class AS c ON c.oid = named.oid JOIN member AS m ON m.oid = c.oid
    JOIN pg_namespace AS n ON n.oid = c.relnamespace";

/// Tables that could have been meant, those of the search path first.
pub(in super::super) const TABLE_NAMES: &str = "
    SELECT n.nspname::text, c.relname::text FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
      AND n.nspname NOT IN ('pg_catalog', 'information_schema') 
    ORDER BY NOT pg_table_is_visible(c.oid), 1, 2 LIMIT 10000";

/// `$1` names: publications, with what they publish of which tables, of all rows and of some.
pub(in super::super) const PUBLISHED: &str = "
    SELECT p.pubname::text, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
      coalesce(array_agg(c.oid) FILTER (WHERE to_jsonb(t) ->> 'rowfilter' IS NULL
        AND c.oid IS NOT NULL), '{}'),
      coalesce(array_agg(c.oid) FILTER (WHERE to_jsonb(t) ->> 'rowfilter' IS NOT NULL), '{}')
    FROM pg_publication AS p
    LEFT JOIN pg_publication_tables AS t ON t.pubname = p.pubname
    LEFT JOIN pg_namespace AS n ON n.nspname = t.schemaname
    LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE p.pubname = ANY($1) GROUP BY 1, 2, 3, 4, 5";

/// Publications of audits that do not run any more, and whether this role may drop them. Whoever
/// runs one has a lock on its name for as long; until this transaction ends nobody else has.
pub(in super::super) const LEFT_BEHIND: &str = "
    WITH ours AS MATERIALIZED (
      SELECT p.pubname::text AS name, p.pubowner FROM pg_publication AS p
      WHERE p.pubname ~ '^audit_postrider_[0-9a-f]{8}(_inserts)?$'
    )
    SELECT o.name, pg_has_role(current_user, o.pubowner, 'USAGE') FROM ours AS o
    WHERE pg_try_advisory_xact_lock(hashtextextended(left(o.name, 24), 0)) ORDER BY 1";

/// A transaction of its own that comes with the log, behind all that was committed before. `$1`
/// says whose it is.
pub(in super::super) const MARK_END: &str =
    "SELECT pg_logical_emit_message(true, 'postrider audit', $1)::text";

/// Has a session hold a lock on a name for as long as it lasts.
pub(in super::super) fn hold_name(name: &str) -> String {
    format!("SELECT pg_advisory_lock(hashtextextended('{name}', 0))")
}

/// Makes a publication of tables, whose names are quoted.
pub(in super::super) fn publish(name: &str, tables: &[&str], operations: &str) -> String {
    format!(
        "CREATE PUBLICATION {name} FOR TABLE {} \
         WITH (publish = '{operations}', publish_via_partition_root = true)",
        tables.join(", ")
    )
}

pub(in super::super) fn drop_publication(name: &str) -> String {
    format!("DROP PUBLICATION IF EXISTS {name}")
}
