//! Statements of the checks of `postrider doctor`. None changes anything, and each ends soon.

/// Before every check.
pub(in super::super) const BOUNDED: &str = "SET TRANSACTION READ ONLY; \
     SET LOCAL statement_timeout = 5000; SET LOCAL lock_timeout = 1000";

/// What there is to know of the server and of this role, in one row.
pub(in super::super) const FACTS: &str = "
    SELECT current_setting('server_version'), current_setting('server_version_num')::int4 / 10000,
      pg_is_in_recovery(), quote_ident(current_user), r.rolsuper, r.rolsuper OR r.rolreplication,
      pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
      has_database_privilege(current_database(), 'CREATE'), quote_ident(current_database())
    FROM pg_roles AS r WHERE r.rolname = current_user";

/// `$1` names: settings in their base units, as a session of this role begins with them.
pub(in super::super) const SETTINGS: &str =
    "SELECT name, reset_val FROM pg_settings WHERE name = ANY($1)";

/// Connections that this role could still make, by what limits them: of all, of the role, of the
/// database. A limit of -1 is none.
pub(in super::super) const CONNECTIONS: &str = "
    SELECT current_setting('max_connections')::int8
        - current_setting('superuser_reserved_connections')::int8
        - coalesce(current_setting('reserved_connections', true)::int8, 0),
      (SELECT coalesce(sum(numbackends), 0)::int8 FROM pg_stat_database),
      (SELECT rolconnlimit::int8 FROM pg_roles WHERE rolname = current_user),
      (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user),
      (SELECT datconnlimit::int8 FROM pg_database WHERE datname = current_database()),
      (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())";

/// Whether this connection is encrypted, by what, and whether it stays on the server's host.
pub(in super::super) const ENCRYPTION: &str = "
    SELECT coalesce(s.ssl, false), coalesce(s.version, ''),
      coalesce(inet_client_addr() = inet_server_addr() OR inet_client_addr() <<= '127.0.0.0/8'
        OR inet_client_addr() = '::1', true)
    FROM (SELECT 1) AS one LEFT JOIN pg_stat_ssl AS s ON s.pid = pg_backend_pid()";

/// `$1` the outbox: the first subscription that writes to it or to a partition of it, and what its
/// trigger does with replicated rows, if that is there and fires.
pub(in super::super) const REPLICATED: &str = "
    SELECT (SELECT min(s.subname::text) FROM pg_subscription_rel AS r
        JOIN pg_subscription AS s ON s.oid = r.srsubid
        WHERE r.srrelid = to_regclass($1)
          OR r.srrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))),
      (SELECT CASE WHEN encode(t.tgargs, 'escape') LIKE 'ignore%' THEN 'ignore' ELSE 'deliver' END
        FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = to_regclass($1) AND t.tgnargs = 1 AND t.tgenabled IN ('R', 'A')
          AND p.proname = (SELECT relname FROM pg_class WHERE oid = to_regclass($1)) || '_replicated'
        LIMIT 1)";

/// The clock in microseconds since 1970.
pub(in super::super) const CLOCK: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";

pub(in super::super) const BACKEND: &str = "SELECT pg_backend_pid()";

/// `$1` a role, `$2` tables, `$3` rights, `$4` columns or empty: of these, what the role may not,
/// with the schema of the table.
pub(in super::super) const MISSING_RIGHTS: &str = "
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
      string_agg(w.what || CASE WHEN w.col = '' THEN '' ELSE ' (' || quote_ident(w.col) || ')' END,
        ', ' ORDER BY w.place)
    FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS w (name, what, col, place)
    JOIN pg_class AS c ON c.oid = to_regclass(w.name)
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE NOT CASE WHEN w.col <> '' THEN has_column_privilege($1, c.oid, w.col, w.what)
      WHEN w.what = 'SELECT' THEN has_any_column_privilege($1, c.oid, 'SELECT')
      ELSE has_table_privilege($1, c.oid, w.what) END
    GROUP BY 1 ORDER BY 1";

/// `$1` the outbox, `$2` its tables: whether this role owns it, how many other tables it may change,
/// and one of those.
pub(in super::super) const MORE_RIGHTS: &str = "
    SELECT coalesce((SELECT pg_has_role(current_user, o.relowner, 'USAGE') FROM pg_class AS o
        WHERE o.oid = to_regclass($1)), false),
      count(*), min(quote_ident(n.nspname) || '.' || quote_ident(c.relname))
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
      AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
      AND NOT EXISTS (SELECT FROM unnest($2::text[]) AS own (name) WHERE c.oid = to_regclass(own.name))
      AND has_schema_privilege(n.oid, 'USAGE')
      AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')";

/// `$1` a role, `$2` the outbox, `$3` the tables of the inbox: whether the role may read the
/// outbox, and which of the tables it may write.
pub(in super::super) const WRITER_EXCESS: &str = "
    SELECT coalesce(has_any_column_privilege($1, to_regclass($2), 'SELECT'), false),
      (SELECT string_agg(quote_ident(n.nspname) || '.' || quote_ident(c.relname), ', ' ORDER BY c.relname)
        FROM unnest($3::text[]) AS w (name) JOIN pg_class AS c ON c.oid = to_regclass(w.name)
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE has_any_column_privilege($1, c.oid, 'INSERT, UPDATE')
          OR has_table_privilege($1, c.oid, 'DELETE, TRUNCATE'))";

/// `$1` a role: whether there is one, and its name in SQL.
pub(in super::super) const ROLE: &str =
    "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1), quote_ident($1)";

/// `$1` a role, `$2` a table: its schema, if the role may not use that.
pub(in super::super) const MISSING_USAGE: &str = "
    SELECT quote_ident(n.nspname) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass($2) AND NOT has_schema_privilege($1, n.oid, 'USAGE')";

/// `$1` seconds: transactions that are open for longer: process, role, application, state, age in
/// seconds, and whether it is of this database.
pub(in super::super) const OPEN_TRANSACTIONS: &str = "
    SELECT a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''),
      coalesce(a.state, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
      a.datname IS NOT DISTINCT FROM current_database()
    FROM pg_stat_activity AS a
    WHERE a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
      AND a.xact_start <= clock_timestamp() - $1 * interval '1 second'
    ORDER BY a.xact_start LIMIT 20";

/// `$1` seconds: prepared transactions that are older: name, owner, age in seconds, and whether it
/// is of this database.
pub(in super::super) const PREPARED_TRANSACTIONS: &str = "
    SELECT quote_literal(gid), owner::text, extract(epoch FROM clock_timestamp() - prepared)::float8,
      database = current_database()
    FROM pg_prepared_xacts WHERE prepared <= clock_timestamp() - $1 * interval '1 second'
    ORDER BY prepared LIMIT 20";

/// `$1` tables: of each and of its partitions the name, whether autovacuum is off for it, live and
/// dead rows, seconds since it was last vacuumed, and its size in bytes.
pub(in super::super) const UPKEEP: &str = "
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
      coalesce((SELECT NOT o.option_value::boolean FROM pg_options_to_table(c.reloptions) AS o
        WHERE o.option_name = 'autovacuum_enabled'), false),
      coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
      extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8,
      pg_total_relation_size(c.oid)
    FROM (SELECT to_regclass(name) AS oid FROM unnest($1::text[]) AS w (name)
      UNION SELECT p.relid FROM unnest($1::text[]) AS w (name),
        pg_partition_tree(to_regclass(name)) AS p) AS t
    JOIN pg_class AS c ON c.oid = t.oid AND c.relkind = 'r'
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid ORDER BY 1";

/// `$1` a table, `$2` a column: the sequence behind it and how many numbers a session takes at
/// once.
pub(in super::super) const SEQUENCE: &str = "
    SELECT pg_get_serial_sequence($1, $2), s.seqcache FROM pg_sequence AS s
    WHERE s.seqrelid = pg_get_serial_sequence($1, $2)::regclass";

/// How many transactions old the oldest row of the database may be, and of how many.
pub(in super::super) const WRAPAROUND: &str =
    "SELECT age(datfrozenxid)::int8 FROM pg_database WHERE datname = current_database()";

/// `$1` tables: indexes that are not usable.
pub(in super::super) const INVALID_INDEXES: &str = "
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_index AS i
    JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE i.indrelid = ANY (SELECT to_regclass(name) FROM unnest($1::text[]) AS w (name))
      AND NOT (i.indisvalid AND i.indisready) ORDER BY 1";

/// `$1` a table, `$2` names without a schema: whether it is in partitions, and which names are
/// taken in its schema.
pub(in super::super) const NAMES: &str = "
    SELECT t.relkind = 'p', ARRAY(SELECT c.relname::text FROM pg_class AS c
      WHERE c.relnamespace = t.relnamespace AND c.relname = ANY($2))
    FROM pg_class AS t WHERE t.oid = to_regclass($1)";

/// How many slots and senders there are.
pub(in super::super) const SENDERS: &str = "
    SELECT (SELECT count(*) FROM pg_replication_slots),
      (SELECT count(*) FROM pg_stat_replication)";

/// `$1` a publication, `$2` a table: whether it has that table.
pub(in super::super) const PUBLICATION: &str = "
    SELECT EXISTS (SELECT FROM pg_publication_rel AS r
      WHERE r.prpubid = p.oid AND r.prrelid = to_regclass($2))
    FROM pg_publication AS p WHERE p.pubname = $1";

/// `$1` a table: whether this role may make a publication of it.
pub(in super::super) const MAY_PUBLISH: &str = "
    SELECT has_database_privilege(current_database(), 'CREATE')
      AND pg_has_role(current_user, c.relowner, 'USAGE'), quote_ident(pg_get_userbyid(c.relowner))
    FROM pg_class AS c WHERE c.oid = to_regclass($1)";

/// `$1` names: slots of this database with names of ours, that nobody reads and that are not among
/// these; and how much of the log each keeps, in bytes.
pub(in super::super) const OTHER_SLOTS: &str = "
    SELECT s.slot_name::text,
      greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::int8
    FROM pg_replication_slots AS s
    WHERE s.slot_name ~ '^postrider_.*_[0-9a-f]{8}$' AND s.database = current_database()
      AND NOT s.active AND s.slot_name <> ALL($1::text[]) ORDER BY 2 DESC NULLS LAST LIMIT 10";
