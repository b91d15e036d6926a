//! The slot of a pipeline: what it is like, what it is good for, and how it is made.

use postrider_replication::{Lsn, SlotOptions};
use tokio_postgres::Row;

use super::{LogPosition, cannot};
use crate::slots::SlotState;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::Location;
use crate::sources::postgres::connection;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::queries::literal;
use crate::sources::postgres::snapshot::Snapshot;

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
    pub(super) fn read(row: &Row) -> Result<Self, Trouble> {
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
    pub(super) fn read(row: &Row) -> Result<Self, Trouble> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
