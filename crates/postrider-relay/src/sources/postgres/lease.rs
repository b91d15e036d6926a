//! The right to read and settle a shard of an outbox.
//!
//! A lease is a row in `<table>_leases`. Whoever takes it counts its epoch up, and every
//! settlement checks the epoch in its own transaction, so a relay that lost its lease changes
//! nothing any more. So does whoever changes the number of shards, with all leases of the pipeline.
//! A failover may take epochs back and give them again, so the timeline is
//! checked as well (`cluster`). Leases run by the database's clock; locally the owner stops
//! sending some time before its lease can pass on, by a clock that never jumps, counted from
//! before the renewal was asked for.
//!
//! **Fair sharing.** A relay that stands by for a shard asks for it if the owner has at least
//! two more than it has itself. The owner finds that out when it renews, finishes what is under
//! way and gives the shard back; for a while only the relay that asked can take it.
//!
//! **Side by side.** Where nothing is kept in order, each relay has a lease of its own, on the
//! first shard number that is free. Rows are claimed under it.

use std::sync::Mutex;
use std::time::Duration;

use postrider::schema::TableName;
use tokio::time::Instant;
use tokio_postgres::types::{ToSql, Type};

use super::cluster::Origin;
use super::connection::{Connection, Transaction, is_so};
use super::error::Trouble;
use super::queries::literal;
use crate::source::{Lease, SourceError, SourceErrorKind};

/// How long a wish for a lease counts, and how long only the one who asked can take it.
const WISH: &str = "interval '15 seconds'";

/// The statements about leases.
#[derive(Debug)]
pub(super) struct LeaseQueries {
    /// Nobody else takes or asks for a lease until the transaction ends.
    lock: String,
    /// `$1` pipeline, `$2` shard: a lease that nobody has, unless there is one.
    create: String,
    /// `$1` pipeline, `$2` shard, `$3` relay, `$4` milliseconds: takes it; answers the epoch.
    take: String,
    /// `$1` pipeline, `$2` shard: who has it.
    owner: String,
    /// `$1` pipeline, `$2` shard: locks it, if it can be taken. Settlements lock it, too, but only
    /// against this: its owner can renew it meanwhile.
    lock_free: String,
    /// `$1` pipeline, `$2` shard, `$3` relay: asks for it, if the owner has too many.
    ask: String,
    /// `$1` pipeline: the first shard number that is free.
    free: String,
    /// `$1` pipeline: counts up the epochs of all leases that have run out and that no settlement
    /// holds; answers whether these are all.
    depose: String,
    /// `$1` pipeline, `$2` shard: forgets claims that were made under it.
    forget_claims: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch, `$4` milliseconds: answers whether it is wanted.
    renew: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch, `$4` relay: gives it back.
    release: String,
}

impl LeaseQueries {
    pub(super) fn new(outbox: &TableName, origin: &Origin) -> Self {
        let leases = outbox.leases().quoted();
        let claims = outbox.claims().quoted();
        let until = "clock_timestamp() + $4 * interval '1 millisecond'";
        let this = "pipeline = $1 AND shard = $2";
        let wanted = format!("wanted_at > clock_timestamp() - {WISH}");
        Self {
            lock: format!(
                "SELECT pg_advisory_xact_lock(hashtextextended('postrider leases', \
                 {}::regclass::oid::bigint))",
                literal(&leases)
            ),
            create: format!(
                "INSERT INTO {leases} (pipeline, shard) VALUES ($1, $2) ON CONFLICT DO NOTHING"
            ),
            lock_free: format!(
                "SELECT FROM {leases} WHERE {this} AND expires_at <= clock_timestamp()
                 FOR UPDATE SKIP LOCKED"
            ),
            take: format!(
                "UPDATE {leases} SET epoch = epoch + 1, owner = $3, expires_at = {until},
                   wanted_by = NULL, wanted_at = NULL
                 WHERE {this} AND expires_at <= clock_timestamp()
                 AND coalesce(wanted_by = $3 OR NOT {wanted}, true)
                 RETURNING epoch"
            ),
            owner: format!("SELECT owner FROM {leases} WHERE {this}"),
            ask: format!(
                // One that was given back for somebody, who has not taken it yet, is theirs already:
                // they would ask for one too many.
                "WITH live AS (
                   SELECT CASE WHEN expires_at > clock_timestamp() THEN owner END AS owner,
                     CASE WHEN {wanted} THEN wanted_by END AS wanted_by FROM {leases}
                   WHERE pipeline = $1
                 )
                 UPDATE {leases} AS l SET wanted_by = $3, wanted_at = clock_timestamp()
                 WHERE {this} AND expires_at > clock_timestamp() AND owner <> $3
                 AND coalesce(wanted_by = $3 OR NOT {wanted}, true)
                 AND (wanted_by = $3 AND {wanted}
                   OR (SELECT count(*) FROM live WHERE live.owner = l.owner AND live.wanted_by IS NULL)
                   > 1 + (SELECT count(*) FROM live WHERE live.owner = $3 OR live.wanted_by = $3))"
            ),
            free: format!(
                "SELECT coalesce(
                   (SELECT min(shard) FROM {leases}
                    WHERE pipeline = $1 AND expires_at <= clock_timestamp()),
                   (SELECT coalesce(max(shard), -1) + 1 FROM {leases} WHERE pipeline = $1))"
            ),
            depose: format!(
                "WITH over AS MATERIALIZED (
                   SELECT shard FROM {leases} WHERE pipeline = $1
                   AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
                 ), deposed AS (
                   UPDATE {leases} AS l SET epoch = l.epoch + 1, owner = NULL FROM over
                   WHERE l.pipeline = $1 AND l.shard = over.shard RETURNING 1
                 )
                 SELECT (SELECT count(*) FROM deposed)
                   = (SELECT count(*) FROM {leases} WHERE pipeline = $1)"
            ),
            forget_claims: format!("DELETE FROM {claims} WHERE pipeline = $1 AND shard = $2"),
            renew: format!(
                "UPDATE {leases} SET expires_at = {until} WHERE {this} AND epoch = $3
                 AND owner IS NOT NULL AND {}
                 RETURNING coalesce({wanted}, false)",
                origin.holds()
            ),
            release: format!(
                "UPDATE {leases} SET owner = NULL, expires_at = '-infinity'
                 WHERE {this} AND epoch = $3 AND owner = $4"
            ),
        }
    }
}

impl LeaseQueries {
    /// Nobody else takes or asks for a lease, or enters a pipeline, until the transaction ends.
    pub(super) async fn lock(&self, tx: &mut Transaction<'_>) -> Result<(), Trouble> {
        tx.query(&self.lock, &[]).await?;
        Ok(())
    }

    /// The number of shards is another one from now on, so no lease of before is worth anything: a
    /// relay that stood still would go on with keys that are another shard's.
    pub(super) async fn depose(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &str,
    ) -> Result<(), Trouble> {
        if is_so(&tx.query(&self.depose, &[(&pipeline, Type::TEXT)]).await?)? {
            return Ok(());
        }
        let message =
            format!("relays still run pipeline {pipeline:?} with another number of shards");
        Err(SourceError::new(SourceErrorKind::Unavailable, message)
            .with_hint("stop those relays, or configure all of them alike")
            .into())
    }
}

/// Whose lease, and of what.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    pub(super) pipeline: String,
    pub(super) relay: String,
    pub(super) duration: Duration,
}

/// A lease that was taken.
#[derive(Debug)]
pub(super) struct Held {
    sql: LeaseQueries,
    claimant: Claimant,
    pub(super) shard: i32,
    pub(super) epoch: i64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Sending stops here.
    until: Instant,
    wanted: bool,
    lost: bool,
}

/// What came of trying to take a lease.
pub(super) enum Taken {
    Held(Box<Held>),
    /// Another relay has it: its name, if it is known.
    By(Option<String>),
}

/// Tries to take a lease, of this shard or of one that is free, in a transaction that has the
/// [lock](LeaseQueries::lock).
pub(super) async fn take(
    tx: &mut Transaction<'_>,
    sql: LeaseQueries,
    claimant: Claimant,
    shard: Option<i32>,
) -> Result<Taken, Trouble> {
    let Claimant { pipeline, relay, duration } = &claimant;
    let shard = match shard {
        Some(shard) => shard,
        None => tx.query(&sql.free, &[(pipeline, Type::TEXT)]).await?[0].try_get(0)?,
    };
    let this: [(&(dyn ToSql + Sync), Type); 2] = [(pipeline, Type::TEXT), (&shard, Type::INT4)];
    tx.execute(&sql.create, &this).await?;
    let asked = Instant::now();
    let mut taken = tx.query(&sql.lock_free, &this).await?;
    if !taken.is_empty() {
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (pipeline, Type::TEXT),
            (&shard, Type::INT4),
            (relay, Type::TEXT),
            (&millis(*duration), Type::INT8),
        ];
        taken = tx.query(&sql.take, &params).await?;
    }
    let Some(taken) = taken.first() else {
        let asking =
            [(pipeline as _, Type::TEXT), (&shard as _, Type::INT4), (relay as _, Type::TEXT)];
        tx.execute(&sql.ask, &asking).await?;
        let owner = tx.query(&sql.owner, &this).await?;
        return Ok(Taken::By(owner.first().and_then(|row| row.try_get(0).ok().flatten())));
    };
    let epoch = taken.try_get(0)?;
    tx.execute(&sql.forget_claims, &this).await?;
    let until = asked + sending_time(*duration);
    let state = Mutex::new(State { until, wanted: false, lost: false });
    Ok(Taken::Held(Box::new(Held { sql, claimant, shard, epoch, state })))
}

/// How long after it was asked for a lease may be relied on. The rest is for what was sent just
/// before and is still on its way.
fn sending_time(duration: Duration) -> Duration {
    duration * 4 / 5
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Held {
    /// How often it is to be renewed.
    pub(super) fn renew_every(&self) -> Duration {
        self.claimant.duration / 3
    }

    /// The lease as the pipeline sees it.
    pub(super) fn lease(&self) -> Lease {
        let State { until, wanted, lost } = *self.state();
        let until = if lost { Instant::now() } else { until };
        Lease { until: Some(until), wanted }
    }

    /// Whether it has run out by itself.
    pub(super) fn has_run_out(&self) -> bool {
        let left_over = self.claimant.duration - sending_time(self.claimant.duration);
        self.state().until + left_over <= Instant::now()
    }

    /// Refuses to go on once it is lost.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        if self.state().lost { Err(self.lost()) } else { Ok(()) }
    }

    /// Refuses to go on once another relay may have it.
    pub(super) fn check_time(&self) -> Result<(), SourceError> {
        let State { until, lost, .. } = *self.state();
        if lost || until <= Instant::now() { Err(self.lost()) } else { Ok(()) }
    }

    /// Another relay has it, or the database is not the one where it was taken: remembers that,
    /// and says so.
    pub(super) fn lost(&self) -> SourceError {
        self.state().lost = true;
        let Claimant { pipeline, .. } = &self.claimant;
        let message = format!(
            "another relay has taken over pipeline {pipeline:?}, or the database was failed over or \
             started anew"
        );
        SourceError::new(SourceErrorKind::Lost, message)
    }

    /// Renews it; false if it is lost.
    pub(super) async fn renew(&self, connection: &Connection) -> Result<bool, Trouble> {
        let Claimant { pipeline, duration, .. } = &self.claimant;
        let asked = Instant::now();
        let params = [
            (pipeline as _, Type::TEXT),
            (&self.shard as _, Type::INT4),
            (&self.epoch as _, Type::INT8),
            (&millis(*duration) as _, Type::INT8),
        ];
        let renewed = connection.query(&self.sql.renew, &params).await?;
        let Some(renewed) = renewed.first() else {
            self.lost();
            return Ok(false);
        };
        let wanted = renewed.try_get(0)?;
        let mut state = self.state();
        state.until = asked + sending_time(*duration);
        state.wanted = wanted;
        Ok(true)
    }

    /// Gives it back, with all claims made under it. By the name of the relay, because after a
    /// failover that took this epoch back it may be another relay's.
    pub(super) async fn release(&self, connection: &Connection) -> Result<(), Trouble> {
        let Claimant { pipeline, relay, .. } = &self.claimant;
        let this = [(pipeline as _, Type::TEXT), (&self.shard as _, Type::INT4)];
        let [one, two] = this.clone();
        let own = [one, two, (&self.epoch as _, Type::INT8), (relay as _, Type::TEXT)];
        let released = connection.execute(&self.sql.release, &own).await?;
        if released > 0 {
            connection.execute(&self.sql.forget_claims, &this).await?;
        }
        Ok(())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
