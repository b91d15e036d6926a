//! The statements about a slot, its publication, and what the checkpoint says of them.

use std::time::Duration;

use postrider::schema::TableName;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tracing::warn;

use super::slot::{Recorded, Slot};
use super::{LogPosition, Names};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::{Connection, Param, is_so};
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::lease::Held;
use crate::sources::postgres::queries::literal;
use crate::sources::postgres::ranges::Ranges;
use crate::sources::postgres::snapshot::Snapshot;
use crate::sources::postgres::table::Table;

/// Longest time until a walsender that was ended has let go of its slot.
const LET_GO_MAX: Duration = Duration::from_secs(5);
const LET_GO_EVERY: Duration = Duration::from_millis(50);

/// The statements about slot, publication, and what the checkpoint says of them.
#[derive(Debug)]
pub(in super::super) struct LogQueries {
    pub(super) names: Names,
    /// `$1` slot.
    find: &'static str,
    /// Which publication this is, and whether it is as it should be.
    pub(super) publication: String,
    /// `$1` columns: of these, those that the server computes.
    pub(super) generated: String,
    pub(super) create_publication: String,
    pub(super) drop_publication: String,
    /// `$1` pipeline: lsn, snapshot, publication, and whether there are events in the log alone.
    get: String,
    /// `$1` pipeline, `$2` epoch, `$3` lsn, `$4` snapshot, `$5` publication.
    put: String,
    /// `$1` pipeline.
    put_log_only: String,
    /// `$1` pipeline, `$2` epoch: there is no slot, and nothing is expected of one.
    forget: String,
    /// `$1` from, `$2` its end, `$3` what it has under way, `$4` to: numbers of rows between two
    /// snapshots.
    between: String,
}

const FIND: &str = "
    SELECT s.plugin = 'pgoutput' AND s.database = current_database() AND NOT s.temporary
        AND coalesce(s.wal_status <> 'lost', false),
      s.confirmed_flush_lsn::text, s.active_pid, a.application_name,
      s.wal_status, s.safe_wal_size,
      pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint,
      pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint
    FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
    WHERE s.slot_name = $1";

/// The end of the log.
pub(super) const WAL_END: &str = "SELECT pg_current_wal_insert_lsn()::text";
/// The same as far as it is durable, and sent.
pub(super) const WAL_FLUSHED: &str = "SELECT pg_current_wal_flush_lsn()::text";

impl LogQueries {
    pub(in super::super) fn new(table: &Table, outbox: &TableName, names: Names) -> Self {
        let checkpoints = outbox.checkpoints().quoted();
        let (leases, messages) = (outbox.leases().quoted(), outbox.messages().quoted());
        let publication = literal(&names.publication);
        let relation = literal(&names.outbox);
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let xid = if table.has("xid") { table.select("o", "xid") } else { "NULL::xid8".to_owned() };
        let this = "pipeline = $1 AND shard = 0";
        Self {
            find: FIND,
            // Filters and column lists are columns of the catalog since version 15.
            publication: format!(
                "SELECT concat_ws(':', p.oid, p.xmin, r.oid, r.xmin, n.tables),
                   n.tables = 1 AND NOT p.puballtables AND p.pubinsert AND p.pubviaroot AND to_jsonb(r) ->> 'prqual' IS NULL
                     AND to_jsonb(r) ->> 'prattrs' IS NULL
                 FROM pg_publication AS p JOIN pg_publication_rel AS r ON r.prpubid = p.oid
                 CROSS JOIN LATERAL (SELECT count(*) AS tables FROM pg_publication_rel AS t
                   WHERE t.prpubid = p.oid) AS n
                 WHERE p.pubname = {publication} AND r.prrelid = {relation}::regclass"
            ),
            generated: format!(
                "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum)
                 FROM pg_attribute WHERE attrelid = {relation}::regclass AND attgenerated <> ''
                 AND attname = ANY($1)"
            ),
            create_publication: format!(
                "CREATE PUBLICATION {} FOR TABLE {} \
                 WITH (publish = 'insert', publish_via_partition_root = true)",
                names.publication, names.outbox
            ),
            drop_publication: format!("DROP PUBLICATION IF EXISTS {}", names.publication),
            get: format!(
                "SELECT lsn::text, slot_snapshot::text, publication,
                   log_only OR lsn IS NOT NULL AND EXISTS (SELECT FROM {messages})
                 FROM {checkpoints} WHERE {this}"
            ),
            // A takeover waits until it is written, or has changed the epoch before.
            put: format!(
                "WITH lease AS MATERIALIZED (SELECT 1 FROM {leases} WHERE {this} AND epoch = $2
                   FOR KEY SHARE)
                 UPDATE {checkpoints} SET lsn = $3::text::pg_lsn,
                   slot_snapshot = $4::text::pg_snapshot, publication = $5,
                   updated_at = clock_timestamp()
                 WHERE {this} AND EXISTS (SELECT FROM lease)"
            ),
            put_log_only: format!("UPDATE {checkpoints} SET log_only = true WHERE {this}"),
            forget: format!(
                "UPDATE {checkpoints} SET lsn = NULL, slot_snapshot = NULL, publication = NULL,
                   log_only = false, updated_at = clock_timestamp()
                 WHERE {this} AND EXISTS (SELECT FROM {leases} WHERE {this} AND epoch = $2)"
            ),
            between: format!(
                "SELECT range_agg(int8range({seq}::bigint,
                   CASE WHEN {seq} < 9223372036854775807 THEN {seq}::bigint + 1 END))::text
                 FROM {name} AS o WHERE ({xid} >= $2::text::xid8 OR {xid} = ANY($3::text[]::xid8[]))
                 AND NOT pg_visible_in_snapshot({xid}, (SELECT $1::text::pg_snapshot))
                 AND pg_visible_in_snapshot({xid}, (SELECT $4::text::pg_snapshot))"
            ),
            names,
        }
    }

    pub(in super::super) fn names(&self) -> &Names {
        &self.names
    }

    /// An expression: which publication this is. It changes with everything that is changed about
    /// it.
    pub(in super::super) fn publication_id(&self) -> String {
        let publication = &self.publication;
        format!("(SELECT p.concat_ws FROM ({publication}) AS p)")
    }

    /// Whether there is a slot of this name, as far as the role may know.
    pub(in super::super) async fn exists(&self, connection: &Connection) -> Result<bool, Trouble> {
        let sql = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1)";
        match connection.query(sql, &[(&self.names.slot, Type::TEXT)]).await {
            Err(trouble) if trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(false),
            rows => is_so(&rows?),
        }
    }

    /// The slot, if there is one.
    pub(in super::super) async fn find(
        &self,
        connection: &Connection,
    ) -> Result<Option<Slot>, Trouble> {
        let rows = connection.query(self.find, &[(&self.names.slot, Type::TEXT)]).await?;
        rows.first().map(Slot::read).transpose()
    }

    /// What the checkpoint says.
    pub(in super::super) async fn get(
        &self,
        connection: &Connection,
        pipeline: &str,
    ) -> Result<Recorded, Trouble> {
        let rows = connection.query(&self.get, &[(&pipeline, Type::TEXT)]).await?;
        rows.first().map_or(Ok(Recorded::default()), Recorded::read)
    }

    /// Writes down where a slot begins, or that there is none.
    pub(in super::super) async fn put(
        &self,
        connection: &Connection,
        (pipeline, held): (&str, &Held),
        log: Option<&LogPosition>,
        publication: Option<&str>,
    ) -> Result<(), Trouble> {
        let lsn = log.map(|log| log.lsn.to_string());
        let snapshot = log.and_then(|log| log.since.as_ref()).map(Snapshot::to_string);
        let params: [Param<'_>; 5] = [
            (&pipeline, Type::TEXT),
            (&held.epoch, Type::INT8),
            (&lsn, Type::TEXT),
            (&snapshot, Type::TEXT),
            (&publication, Type::TEXT),
        ];
        match connection.execute(&self.put, &params).await? {
            0 => Err(held.lost().into()),
            _ => Ok(()),
        }
    }

    /// There are events that only the log has.
    pub(in super::super) async fn put_log_only(
        &self,
        connection: &Connection,
        pipeline: &str,
    ) -> Result<(), Trouble> {
        connection.execute(&self.put_log_only, &[(&pipeline, Type::TEXT)]).await?;
        Ok(())
    }

    /// Forgets the slot, and that there were events which only the log had. A pipeline without a
    /// checkpoint has nothing to forget.
    pub(in super::super) async fn forget(
        &self,
        connection: &Connection,
        (pipeline, held): (&str, &Held),
    ) -> Result<(), Trouble> {
        let params: [Param<'_>; 2] = [(&pipeline, Type::TEXT), (&held.epoch, Type::INT8)];
        connection.execute(&self.forget, &params).await?;
        Ok(())
    }

    /// Numbers of rows that the second snapshot sees and the first does not.
    pub(in super::super) async fn between(
        &self,
        connection: &Connection,
        from: &Snapshot,
        to: &Snapshot,
    ) -> Result<Ranges, Trouble> {
        let (from_text, to_text) = (from.to_string(), to.to_string());
        let end = from.xmax().to_string();
        let under_way: Vec<String> = from.under_way().iter().map(u64::to_string).collect();
        let params: [Param<'_>; 4] = [
            (&from_text, Type::TEXT),
            (&end, Type::TEXT),
            (&under_way, Type::TEXT_ARRAY),
            (&to_text, Type::TEXT),
        ];
        let rows = connection.query(&self.between, &params).await?;
        let numbers: Option<&str> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
        Ok(numbers.and_then(Ranges::from_text).unwrap_or_default())
    }

    /// Ends whoever reads the slot, if it is one of this pipeline: the lease says that it has no
    /// right to.
    pub(in super::super) async fn free(
        &self,
        connection: &Connection,
        application_name: &str,
        held: &Held,
    ) -> Result<(), Trouble> {
        let started = Instant::now();
        loop {
            let slot = self.find(connection).await?;
            let Some(pid) = slot.as_ref().and_then(|slot| slot.active_pid) else { return Ok(()) };
            let reader = slot.and_then(|slot| slot.active_by).unwrap_or_default();
            if reader != application_name || started.elapsed() > LET_GO_MAX {
                let slot = &self.names.slot;
                let message = format!("the slot {slot} is read by process {pid} ({reader:?})");
                return Err(SourceError::new(SourceErrorKind::Unavailable, message)
                    .with_hint(format!("if that is nobody's: SELECT pg_terminate_backend({pid})"))
                    .into());
            }
            let end = "SELECT pg_terminate_backend($1)";
            held.check_time()?;
            if is_so(&connection.query(end, &[(&pid, Type::INT4)]).await?)? {
                warn!(pid, slot = self.names.slot, "ended a connection that still read the slot");
            }
            tokio::time::sleep(LET_GO_EVERY).await;
        }
    }

    /// Drops the slot, if there is one.
    pub(in super::super) async fn drop_slot(
        &self,
        connection: &Connection,
        application_name: &str,
        held: &Held,
    ) -> Result<(), Trouble> {
        if self.find(connection).await?.is_none() {
            return Ok(());
        }
        self.free(connection, application_name, held).await?;
        held.check_time()?;
        let sql = "SELECT pg_drop_replication_slot($1)";
        match connection.query(sql, &[(&self.names.slot, Type::TEXT)]).await {
            Err(trouble) if !trouble.is(&SqlState::UNDEFINED_OBJECT) => Err(trouble),
            _ => Ok(()),
        }
    }
}
