//! Ends the reading of the log: for now, or for good.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{info, warn};

use super::{Log, LogPosition, LogQueries, application_name, cannot};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::Connection;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::{Shared, lock};

/// How long the server has to show the last confirmed position.
const CONFIRM_MAX: Duration = Duration::from_secs(5);
const CONFIRM_EVERY: Duration = Duration::from_millis(20);

impl Shared {
    /// Gives up a slot that cannot be relied on, or that keeps too much. The run ends with it: the
    /// next one reads the table.
    pub(super) async fn give_up(&self, log: &Log, why: String) -> Trouble {
        let (pipeline, slot) = (self.pipeline.as_str(), log.sql.names().slot.as_str());
        let is_log_only = match self.is_log_only(log, &self.reader).await {
            Ok(is_log_only) => is_log_only,
            Err(trouble) => return trouble,
        };
        let message = format!("the slot {slot} was given up: {why}");
        let was_given_up = lock(&log.given_up).replace(message.clone()).is_some();
        if is_log_only {
            return log_only(pipeline, slot, &why).into();
        }
        let given_up = SourceError::new(SourceErrorKind::Lost, message);
        if was_given_up {
            return given_up.into();
        }
        *lock(&log.replication) = None;
        let dropped = async {
            // Whoever has lost the lease finds the slot of another relay.
            let publication = lock(&log.publication).clone();
            log.sql.put(&self.reader, (pipeline, &self.held), None, Some(&publication)).await?;
            self.held.check_time()?;
            warn!(pipeline, slot, "the slot is given up, {why}: the table is read instead");
            log.sql.drop_slot(&self.reader, &log.application_name, &self.held).await
        };
        let dropped: Result<(), Trouble> = dropped.await;
        if let Err(trouble) = dropped {
            if trouble.is_lost() {
                return trouble;
            }
            // The next run finds it.
            let error = trouble.while_doing("drop the slot").details();
            warn!(pipeline, slot, error, "the slot could not be dropped");
        }
        given_up.into()
    }

    /// Whether there may be events that only the slot has.
    pub(super) async fn is_log_only(
        &self,
        log: &Log,
        connection: &Connection,
    ) -> Result<bool, Trouble> {
        if !log.log_only.load(Ordering::Relaxed) {
            // A message may have been written that was not read yet.
            let recorded = log.sql.get(connection, &self.pipeline).await?;
            log.log_only.store(recorded.log_only, Ordering::Relaxed);
        }
        Ok(log.log_only.load(Ordering::Relaxed))
    }

    /// Gives up a slot whose publication is another one than it was.
    pub(super) async fn refuse_changed(
        &self,
        log: &Log,
        publication: Option<String>,
    ) -> Result<(), Trouble> {
        let is_same = publication.as_ref() == Some(&*lock(&log.publication));
        if is_same {
            return Ok(());
        }
        Err(self.give_up(log, "the publication was changed".to_owned()).await)
    }

    /// Gives up a slot that keeps more of the server's log than it may, or does not get what is
    /// written any more.
    pub(in super::super) async fn guard_slot(&self) -> Result<(), Trouble> {
        let Some(log) = self.log.as_ref().filter(|log| log.has_slot()) else { return Ok(()) };
        if log.is_streaming() {
            let publication = log.sql.publication(&self.keeper).await?;
            self.refuse_changed(log, publication).await?;
        }
        let Some(slot) = log.sql.find(&self.keeper).await? else { return Ok(()) };
        let retained = slot.retained_bytes.and_then(|bytes| u64::try_from(bytes).ok());
        let Some(retained) = retained.filter(|bytes| *bytes > log.retained_bytes_max) else {
            return Ok(());
        };
        let max = log.retained_bytes_max;
        let why = format!("it keeps {retained} bytes of the log, and max_retained_wal is {max}");
        if self.is_log_only(log, &self.keeper).await? {
            warn!(
                pipeline = self.pipeline,
                "{why}; it cannot be given up, because there are events that only the log has"
            );
            return Ok(());
        }
        if log.stop_making() {
            warn!(pipeline = self.pipeline, "no slot is made for a while: {why}");
            return log.sql.drop_slot(&self.keeper, &log.application_name, &self.held).await;
        }
        Err(self.give_up(log, why).await)
    }

    /// The pipeline is polled, and may have read the log before: its slot would keep the server's
    /// log for ever.
    pub(in super::super) async fn leave_log(&self, slots: &LogQueries) -> Result<(), Trouble> {
        if self.held.shard != 0 {
            return Ok(());
        }
        let (settler, pipeline) = (&self.settler, self.pipeline.as_str());
        let recorded = slots.get(settler, pipeline).await?;
        let slot = &slots.names().slot;
        if slots.exists(settler).await? {
            match slots.drop_slot(settler, &application_name(pipeline), &self.held).await {
                Ok(()) => info!(pipeline, slot, "dropped the slot, which polling has no use for"),
                Err(trouble) => {
                    let error = trouble.while_doing("drop the slot").details();
                    warn!(
                        pipeline,
                        error,
                        "the slot {slot} keeps the server's log: SELECT \
                         pg_drop_replication_slot('{slot}')"
                    );
                }
            }
        }
        if recorded.log.is_some() {
            slots.put(settler, (pipeline, &self.held), None, None).await?;
        }
        Ok(())
    }

    /// Ends the stream. Answers once the server shows what was confirmed last.
    pub(in super::super) async fn end_stream(&self, log: &Log) {
        let replication = lock(&log.replication).take();
        log.let_go();
        let Some(replication) = replication else { return };
        if let Some(replication) = Arc::into_inner(replication)
            && let Err(error) = replication.stop().await
        {
            let error = cannot("end the stream", error).details();
            warn!(pipeline = self.pipeline, error, "the end of the stream is not confirmed");
            return;
        }
        let written = lock(&self.written).as_ref().and_then(|position| position.log.clone());
        let Some(LogPosition { lsn, since: None }) = written else { return };
        let shown = async {
            loop {
                let slot = log.sql.find(&self.settler).await.ok().flatten();
                match slot.and_then(|slot| slot.confirmed) {
                    Some(confirmed) if confirmed < lsn => {
                        tokio::time::sleep(CONFIRM_EVERY).await;
                    }
                    _ => return,
                }
            }
        };
        if timeout(CONFIRM_MAX, shown).await.is_err() {
            warn!(pipeline = self.pipeline, %lsn, "the slot does not show the last position yet");
        }
    }
}

/// Why a pipeline cannot go on without its slot.
pub(in super::super) fn log_only(pipeline: &str, slot: &str, why: &str) -> SourceError {
    let message = format!(
        "pipeline {pipeline:?} may have had events that are in no table, and its slot {slot} cannot \
         give those that are left: {why}"
    );
    SourceError::new(SourceErrorKind::Unsafe, message).with_hint(format!(
        "publish what is missing again, and let go of the rest: postrider slot drop {pipeline} \
         --yes, with --config or --from"
    ))
}

/// Why a pipeline is not polled.
pub(in super::super) fn not_polled(pipeline: &str, slot: &str) -> SourceError {
    let message = format!(
        "pipeline {pipeline:?} may have had events that are in no table, and polling cannot see \
         those that its slot {slot} still has"
    );
    SourceError::new(SourceErrorKind::Unsafe, message).with_hint(format!(
        "write no more of them, deliver what is left with mode = \"cdc\" and relay --drain, and then \
         let go of the slot: postrider slot drop {pipeline} --yes, with --config or --from"
    ))
}
