//! Events that were missed, in SQLite.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::{Key, timestamp};
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::super::keys::Keys;
use super::super::queries;
use super::{Shared, SqliteAdmin, events, shown, time};
use crate::reconcile::{Missed, MissedKind, Reconcile};
use crate::source::SourceError;

const DAY_SECS: f64 = 86_400.0;

#[async_trait]
impl Reconcile for SqliteAdmin {
    async fn missed(
        &self,
        older_than: Duration,
        aggregate_types: &[String],
        limit: usize,
    ) -> Result<Vec<Missed>, SourceError> {
        let types = (!aggregate_types.is_empty())
            .then(|| serde_json::Value::from(aggregate_types.to_vec()).to_string());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.run("look for missed events", move |conn, shared| {
            let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            let now: String = snapshot.query_row(queries::NOW, [], |row| row.get(0))?;
            let now = timestamp::from_text(&now).unwrap_or_else(|_| SystemTime::now());
            let then = now.checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
            let then = timestamp::to_text(then);
            let sql = &shared.reconcile;
            let mut missed = Vec::new();
            for (kind, sql) in
                [(MissedKind::Forgotten, &sql.forgotten), (MissedKind::Overdue, &sql.overdue)]
            {
                let mut statement = snapshot.prepare(sql)?;
                let rows = statement.query_map(params![then, limit], |row| read(row, kind))?;
                missed.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
            }
            let days = older_than.as_secs_f64() / DAY_SECS;
            let mut statement = snapshot.prepare(&sql.unmarked)?;
            let rows = statement.query_map(params![then, limit, types, days], |row| {
                let kind = match row.get(6)? {
                    true => MissedKind::Overtaken,
                    false => MissedKind::Unpublished,
                };
                read(row, kind)
            })?;
            missed.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
            missed.extend(before_cursors(&snapshot, shared, &then, limit)?);
            missed.sort_by_key(|it| (it.kind, it.position));
            Ok(missed)
        })
        .await
    }

    async fn give_back(&self, missed: &[Missed]) -> Result<u64, SourceError> {
        let is_forgotten = |it: &&Missed| it.kind == MissedKind::Forgotten;
        let missed: Vec<Missed> = missed.iter().filter(is_forgotten).cloned().collect();
        self.run("give events back", move |conn, shared| {
            let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
            let now: String = tx.query_row(queries::NOW, [], |row| row.get(0))?;
            for Missed { pipeline, key, .. } in &missed {
                let keys = Keys { conn: &tx, sql: &shared.keys, pipeline };
                keys.mend(BTreeSet::from([key.clone()]), &now)?;
            }
            tx.commit()?;
            Ok(missed.len() as u64)
        })
        .await
    }
}

/// What cursors have before them and did not settle.
fn before_cursors(
    conn: &Connection,
    shared: &Shared,
    then: &str,
    limit: i64,
) -> rusqlite::Result<Vec<Missed>> {
    let mut missed = Vec::new();
    for checkpoint in events::checkpoints(conn, shared)? {
        if !checkpoint.is_cursor {
            continue;
        }
        let mut statement = conn.prepare(&shared.reconcile.ahead)?;
        let params = params![then, limit, checkpoint.pipeline, checkpoint.position];
        let rows = statement.query_map(params, |row| read(row, MissedKind::Unpublished))?;
        for it in rows {
            let it = it?;
            if !checkpoint.has_settled(it.position, false) {
                missed.push(it);
            }
        }
    }
    Ok(missed)
}

fn read(row: &Row<'_>, kind: MissedKind) -> rusqlite::Result<Missed> {
    Ok(Missed {
        kind,
        pipeline: row.get(0)?,
        position: row.get(1)?,
        event_id: shown(row, 2)?,
        key: Key { aggregate_type: shown(row, 3)?, aggregate_id: shown(row, 4)? },
        since: time(row, 5)?.unwrap_or(SystemTime::UNIX_EPOCH),
    })
}
