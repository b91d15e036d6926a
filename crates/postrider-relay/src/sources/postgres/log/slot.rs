//! The slot and the publication of a pipeline: what they are called, what they are like, and how
//! they come and go.

use std::time::Duration;

use postrider::schema::TableName;
use postrider_replication::{Connection as Streaming, Lsn, SlotOptions};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tracing::warn;
use uuid::Uuid;

use super::LogPosition;
use crate::slots::SlotState;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::Location;
use crate::sources::postgres::connection::{self, Connection, Param, is_so};
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::lease::Held;
use crate::sources::postgres::ranges::Ranges;
use crate::sources::postgres::snapshot::Snapshot;
use crate::sources::postgres::table::Table;

/// Longest time until a walsender that was ended has let go of its slot.
const LET_GO_MAX: Duration = Duration::from_secs(5);
const LET_GO_EVERY: Duration = Duration::from_millis(50);
/// The longest name in PostgreSQL, in bytes.
const NAME_BYTES_MAX: usize = 63;
/// What can be decoded is in the log at this level only.
const WAL_LEVEL: &str = "SELECT current_setting('wal_level')";

/// Names of a pipeline's slot and of its outbox' publication.
#[derive(Clone, Debug)]
pub(in super::super) struct Names {
    pub(in super::super) slot: String,
    pub(in super::super) publication: String,
    /// Schema and name of the outbox, quoted: so messages name it, too.
    pub(in super::super) outbox: String,
}

impl Names {
    pub(in super::super) fn new(database: &str, table: &Table, pipeline: &str) -> Self {
        let outbox = table.quoted();
        let of_outbox = format!("{database}:{outbox}");
        Self {
            slot: name(pipeline, &format!("{of_outbox}:{pipeline}")),
            publication: name(outbox, &of_outbox),
            outbox: outbox.to_owned(),
        }
    }
}

/// A name that people recognize, and that nothing else has: slots belong to all databases.
fn name(readable: &str, unique: &str) -> String {
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("postrider:{unique}").as_bytes());
    let hash = &hash.simple().to_string()[..8];
    let length = NAME_BYTES_MAX - "postrider__".len() - hash.len();
    let readable = readable.bytes().filter(|byte| *byte != b'"').take(length);
    let readable: String = readable
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() as char } else { '_' }
            },
        )
        .collect();
    format!("postrider_{readable}_{hash}")
}

/// The statements about slot, publication, and what the checkpoint says of them.
#[derive(Debug)]
pub(in super::super) struct LogQueries {
    names: Names,
    /// `$1` slot.
    find: &'static str,
    /// Which publication this is, and whether it is as it should be.
    publication: String,
    /// `$1` columns: of these, those that the server computes.
    generated: String,
    create_publication: String,
    drop_publication: String,
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
                "SELECT range_agg(int8range({seq}::bigint, {seq}::bigint + 1))::text
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

    /// Which publication there is, if it is as it should be.
    pub(in super::super) async fn publication(
        &self,
        connection: &Connection,
    ) -> Result<Option<String>, Trouble> {
        fit(&connection.query(&self.publication, &[]).await?)
    }

    /// Makes the publication, in place of one that is not as it should be.
    pub(in super::super) async fn make_publication(
        &self,
        connection: &Connection,
    ) -> Result<String, Trouble> {
        let made = async {
            let mut tx = connection.begin().await?;
            // Other pipelines of the outbox may be about to make it, too.
            tx.query(LOCK, &[(&self.names.publication, Type::TEXT)]).await?;
            if fit(&tx.query(&self.publication, &[]).await?)?.is_none() {
                tx.batch(&self.drop_publication).await?;
                tx.batch(&self.create_publication).await?;
            }
            tx.commit().await
        };
        if let Err(trouble) = made.await {
            let message = format!("the log of {} is not published", self.names.outbox);
            // Somebody else makes it this very moment, or drops it.
            let changes = [
                SqlState::DUPLICATE_OBJECT,
                SqlState::INTERNAL_ERROR,
                SqlState::UNDEFINED_OBJECT,
                SqlState::UNIQUE_VIOLATION,
            ];
            if changes.iter().any(|code| trouble.is(code)) {
                let cause = trouble.while_doing("publish it");
                let error = SourceError::new(SourceErrorKind::Unavailable, message);
                return Err(error.with_source(cause).into());
            }
            if !trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE) {
                return Err(trouble);
            }
            let error =
                SourceError::new(SourceErrorKind::Misconfigured, message).with_hint(format!(
                    "let the owner of the table run {}; {}",
                    self.drop_publication, self.create_publication
                ));
            return Err(error.into());
        }
        self.publication(connection).await?.ok_or_else(|| {
            let message = format!("{} was made and is not there", self.names.publication);
            SourceError::new(SourceErrorKind::Unavailable, message).into()
        })
    }

    /// The statement that makes the publication.
    pub(in super::super) fn create_publication(&self) -> &str {
        &self.create_publication
    }

    /// Refuses a server whose log cannot be decoded.
    pub(in super::super) async fn refuse_level(
        &self,
        connection: &Connection,
    ) -> Result<(), Trouble> {
        let rows = connection.query(WAL_LEVEL, &[]).await?;
        let level: &str = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => "",
        };
        if level == "logical" {
            return Ok(());
        }
        let message = format!("the log of the server cannot be read: wal_level is {level}");
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("set wal_level = logical and restart the server; or write mode = \"poll\"")
            .into())
    }

    /// Refuses a server whose commits would wait for a pipeline, which waits for its own.
    pub(in super::super) async fn refuse_standbys(
        &self,
        connection: &Connection,
    ) -> Result<(), Trouble> {
        let sql = "SELECT current_setting('synchronous_standby_names') LIKE '%*%'";
        if !is_so(&connection.query(sql, &[]).await?)? {
            return Ok(());
        }
        let message = "synchronous_standby_names has a *, so that commits would wait for the \
                       pipeline to read them, and the pipeline for its own commits";
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("name the standbys in synchronous_standby_names; or write mode = \"poll\"")
            .into())
    }

    /// Refuses columns that the server computes: the log does not have them.
    pub(in super::super) async fn refuse_generated(
        &self,
        connection: &Connection,
        columns: &[&str],
    ) -> Result<(), Trouble> {
        let rows = connection.query(&self.generated, &[(&columns, Type::TEXT_ARRAY)]).await?;
        let generated: Option<&str> = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => None,
        };
        let Some(generated) = generated else { return Ok(()) };
        let outbox = &self.names.outbox;
        let message = format!("the log of {outbox} does not have what is computed: {generated}");
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint(
                "let writers fill such a column (ALTER TABLE … ALTER COLUMN … DROP EXPRESSION); or \
                 write mode = \"poll\"",
            )
            .into())
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

/// Of a publication, which one it is, if it is as it should be.
fn fit(rows: &[Row]) -> Result<Option<String>, Trouble> {
    let Some(row) = rows.first() else { return Ok(None) };
    let (id, is_fit): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
    Ok(is_fit.then_some(id))
}

/// `$1` name: nobody else makes what has this name until the transaction ends.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";

/// A slot as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Slot {
    /// It can be read for this database.
    pub(in super::super) is_fit: bool,
    pub(in super::super) confirmed: Option<Lsn>,
    pub(in super::super) active_pid: Option<i32>,
    pub(in super::super) active_by: Option<String>,
    pub(in super::super) status: Option<String>,
    /// How much more may be written before it is lost, in bytes.
    pub(in super::super) safe_bytes: Option<i64>,
    /// How much of the log it keeps, in bytes.
    pub(in super::super) retained_bytes: Option<i64>,
    /// How far its reader is behind, in bytes.
    pub(in super::super) lag_bytes: Option<i64>,
}

impl Slot {
    fn read(row: &Row) -> Result<Self, Trouble> {
        let confirmed: Option<&str> = row.try_get(1)?;
        Ok(Self {
            is_fit: row.try_get::<_, Option<bool>>(0)?.unwrap_or(false),
            confirmed: confirmed.and_then(|lsn| lsn.parse().ok()),
            active_pid: row.try_get(2)?,
            active_by: row.try_get(3)?,
            status: row.try_get(4)?,
            safe_bytes: row.try_get(5)?,
            retained_bytes: row.try_get(6)?,
            lag_bytes: row.try_get(7)?,
        })
    }

    /// Whether everything that was committed since a position comes from it. Whoever moved it
    /// beyond has taken what was before.
    pub(in super::super) fn has_all_since(&self, lsn: Lsn) -> bool {
        self.is_fit && self.confirmed.is_some_and(|confirmed| confirmed <= lsn)
    }
}

/// What the checkpoint says of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Recorded {
    pub(in super::super) log: Option<LogPosition>,
    pub(in super::super) publication: Option<String>,
    /// There were events that only the log has.
    pub(in super::super) log_only: bool,
}

impl Recorded {
    fn read(row: &Row) -> Result<Self, Trouble> {
        let (lsn, snapshot): (Option<&str>, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
        let lsn = lsn.and_then(|lsn| lsn.parse().ok());
        let since = snapshot.map(str::parse).transpose();
        // What cannot be read is no position: then the table is read.
        let log = lsn.zip(since.ok()).map(|(lsn, since)| LogPosition { lsn, since });
        Ok(Self { log, publication: row.try_get(2)?, log_only: row.try_get(3)? })
    }

    /// What a slot is good for, with this publication.
    pub(in super::super) fn state(
        &self,
        slot: Option<&Slot>,
        publication: Option<&str>,
    ) -> SlotState {
        match (&self.log, slot) {
            (None, None) => SlotState::None,
            (None, Some(slot)) if slot.active_pid.is_some() && slot.confirmed.is_none() => {
                SlotState::Making
            }
            (None, Some(_)) => SlotState::Stray,
            (Some(_), None) => SlotState::Missing,
            (Some(_), Some(slot)) if !slot.is_fit => SlotState::Lost,
            (Some(log), Some(slot)) if !slot.has_all_since(log.lsn) => SlotState::Moved,
            _ if publication.is_none() || publication != self.publication.as_deref() => {
                SlotState::Unpublished
            }
            (Some(LogPosition { since: Some(_), .. }), Some(_)) => SlotState::ReadsTable,
            (Some(LogPosition { since: None, .. }), Some(_)) => SlotState::Streams,
        }
    }
}

/// Makes a slot. Answers where it begins, and what had been committed before.
pub(in super::super) async fn make(
    location: Location,
    application_name: String,
    slot: String,
) -> Result<LogPosition, SourceError> {
    let mut streaming = connection::streaming(&location, &application_name).await?;
    let options = SlotOptions {
        snapshot: postrider_replication::Snapshot::Export,
        failover: true,
        ..SlotOptions::default()
    };
    let guard = Guard::new(streaming.canceller(), location.clone());
    let created = streaming.create_slot(&slot, options).await;
    guard.disarm();
    let created = created.map_err(|error| cannot("make a slot", error))?;
    let lsn = created.consistent_point;
    let since = see(&location, created.snapshot.as_deref()).await;
    let since = since.map_err(|trouble| trouble.while_doing("see where the slot begins"))?;
    drop(streaming);
    Ok(LogPosition { lsn, since: Some(since) })
}

/// Has the server stop making a slot that nobody waits for any more: it would not notice.
pub(in super::super) struct Guard(Option<(postrider_replication::Canceller, Location)>);

impl Guard {
    pub(in super::super) fn new(
        canceller: postrider_replication::Canceller,
        location: Location,
    ) -> Self {
        Self(Some((canceller, location)))
    }

    pub(in super::super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((canceller, location)) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                if let Ok(tls) = location.tls().connector() {
                    // Should it fail, the next relay finds a slot that nobody knows, and drops it.
                    drop(canceller.cancel(tls).await);
                }
            });
        }
    }
}

/// The snapshot that a slot has exported.
async fn see(location: &Location, name: Option<&str>) -> Result<Snapshot, Trouble> {
    let unreadable = || {
        let message = "the server exported no snapshot with the slot";
        Trouble::from(SourceError::new(SourceErrorKind::Unavailable, message))
    };
    let name = literal(name.ok_or_else(unreadable)?);
    let client = connection::client(location).await?;
    let begin =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {name}");
    client.batch_execute(&begin).await?;
    let row = client.query_typed_one("SELECT pg_current_snapshot()::text", &[]).await?;
    client.batch_execute("COMMIT").await?;
    row.try_get::<_, &str>(0)?.parse().map_err(|_| unreadable())
}

/// An error of the replication as one of the source.
pub(in super::super) fn cannot(doing: &str, error: postrider_replication::Error) -> SourceError {
    use SourceErrorKind::{Misconfigured, Unavailable};
    use postrider_replication::Error;
    let code = error.code().map(SqlState::code);
    let (kind, hint) = match (&error, code) {
        (_, Some("42501")) => (
            Misconfigured,
            Some("let ALTER ROLE give the relay's role REPLICATION; or write mode = \"poll\""),
        ),
        (_, Some("53400")) => (
            Unavailable,
            Some("raise max_replication_slots and max_wal_senders, or drop a slot nobody reads"),
        ),
        // So does pgbouncer refuse it.
        (_, Some("08P01")) | (Error::Protocol(_), _) => (
            Misconfigured,
            Some("a pooler cannot carry the log: name the server itself, or write mode = \"poll\""),
        ),
        (_, Some("28000" | "28P01")) | (Error::Authentication(_), _) => (
            Misconfigured,
            Some("let the role connect for replication: pg_hba.conf, and the password in the URL"),
        ),
        (Error::Config(_) | Error::Tls(_), _) => (Misconfigured, None),
        _ => (Unavailable, None),
    };
    let failed = SourceError::new(kind, format!("cannot {doing}")).with_source(error);
    match hint {
        Some(hint) => failed.with_hint(hint),
        None => failed,
    }
}

/// The same for whoever cannot poll instead.
pub(in super::super) fn without_polling(mut error: SourceError) -> SourceError {
    if let Some(hint) = &mut error.hint
        && let Some(end) = hint.find(" or write mode = ")
    {
        hint.truncate(end);
        hint.truncate(hint.trim_end_matches([',', ';']).len());
    }
    error
}

/// Whether an error says that the slot, or what it needs, is not there any more.
pub(super) fn is_of_slot(error: &postrider_replication::Error) -> bool {
    let codes = [
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::UNDEFINED_OBJECT,
        SqlState::UNDEFINED_FILE,
    ];
    error.code().is_some_and(|code| codes.contains(code))
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A stream, for the rest of the module.
pub(in super::super) async fn connect(
    location: &Location,
    application_name: &str,
) -> Result<Streaming, SourceError> {
    connection::streaming(location, application_name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_and_differ() {
        let slot = |pipeline: &str| name(pipeline, &format!("shop:public.outbox:{pipeline}"));
        assert!(slot("orders").starts_with("postrider_orders_"));
        assert_ne!(slot("Orders"), slot("orders"));
        for pipeline in ["", "ö x-y", &"a".repeat(255), "a\"b"] {
            let name = slot(pipeline);
            let is_fit =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.len() <= NAME_BYTES_MAX && name.bytes().all(is_fit), "{name}");
        }
    }

    #[test]
    fn whoever_cannot_poll_is_not_told_to() {
        let hint = |text: &str| {
            let error = SourceError::new(SourceErrorKind::Misconfigured, "x").with_hint(text);
            without_polling(error).hint.unwrap()
        };
        assert_eq!(
            hint("name the server itself, or write mode = \"poll\""),
            "name the server itself"
        );
        assert_eq!(hint("grant it; or write mode = \"poll\""), "grant it");
        assert_eq!(hint("drop a slot"), "drop a slot");
        let refused = postrider_replication::Error::Protocol("x".into());
        let error = without_polling(cannot("connect", refused));
        assert!(!error.details().contains("poll\""), "{}", error.details());
    }

    fn slot() -> Slot {
        Slot {
            is_fit: true,
            confirmed: Some(Lsn(100)),
            active_pid: None,
            active_by: None,
            status: None,
            safe_bytes: None,
            retained_bytes: None,
            lag_bytes: None,
        }
    }

    #[test]
    fn a_slot_that_was_moved_by_others_is_of_no_use() {
        let slot = slot();
        assert!(slot.has_all_since(Lsn(100)) && slot.has_all_since(Lsn(200)));
        assert!(!slot.has_all_since(Lsn(99)));
        assert!(!Slot { is_fit: false, ..slot.clone() }.has_all_since(Lsn(200)));
        assert!(!Slot { confirmed: None, ..slot }.has_all_since(Lsn(200)));
    }

    #[test]
    fn a_slot_is_good_for_what_the_checkpoint_expects_of_it() {
        let log = |lsn, since: Option<Snapshot>| Some(LogPosition { lsn: Lsn(lsn), since });
        let recorded = |log| Recorded { log, publication: Some("1:2".into()), log_only: false };
        let streams = recorded(log(100, None));
        let fit = slot();
        let unfit = Slot { is_fit: false, ..slot() };
        let begun = Slot { active_pid: Some(7), confirmed: None, ..slot() };
        let cases = [
            (recorded(None), None, SlotState::None),
            (recorded(None), Some(&begun), SlotState::Making),
            (recorded(None), Some(&fit), SlotState::Stray),
            (streams.clone(), None, SlotState::Missing),
            (streams.clone(), Some(&unfit), SlotState::Lost),
            (recorded(log(99, None)), Some(&fit), SlotState::Moved),
            (recorded(log(100, Some(Snapshot::nothing()))), Some(&fit), SlotState::ReadsTable),
            (streams.clone(), Some(&fit), SlotState::Streams),
        ];
        for (recorded, slot, expected) in cases {
            assert_eq!(recorded.state(slot, Some("1:2")), expected);
        }
        for publication in [None, Some("1:3")] {
            assert_eq!(streams.state(Some(&fit), publication), SlotState::Unpublished);
        }
    }
}
