//! Reads the stream of the slot, and takes in what it says.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postrider::event::PAYLOAD_BYTES_MAX;
use postrider_replication::pgoutput::{Message, decode};
use postrider_replication::{Batch, Flow, Frame, Lsn, PgOutput, Replication};
use tokio::time::timeout;
use tracing::debug;

use super::errors::{cannot, is_of_slot};
use super::rows::{LogRow, Logged, Mapping};
use super::tail::Torn;
use super::{Log, log_only};
use crate::source::{Record, SourceError, SourceErrorKind};
use crate::sources::postgres::connection::streaming;
use crate::sources::postgres::error::Trouble;
use crate::sources::postgres::window::Origin;
use crate::sources::postgres::{Shared, lock};

/// How much is received ahead, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// What is kept of a column: more than a payload may have.
pub(in super::super) const VALUE_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX;

/// What the stream has said so far.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// How to read the rows of tables, by their numbers.
    mappings: HashMap<u32, Mapping>,
    /// What is here already of the transaction that comes.
    skip: Skip,
    /// The number of the transaction, without its epoch.
    xid: u32,
}

/// What is here already of a transaction.
#[derive(Debug)]
enum Skip {
    Rows(u64),
    All,
}

impl Default for Skip {
    fn default() -> Self {
        Self::Rows(0)
    }
}

/// Why what the stream says cannot be taken in.
enum Unfit {
    Malformed(SourceError),
    /// The table was another one when it was written; what has changed.
    Changed(&'static str),
}

/// What the log says, in its order.
enum Item {
    Begin(Lsn, u32),
    Row(Box<Logged>),
    /// A row that is not for this pipeline, and its transaction.
    Other(Option<u64>),
    Commit(Lsn),
    Idle(Lsn),
    /// What the table is like. It comes before the first row, and again before the first one after
    /// the table or its publication was changed.
    Table,
}

impl Shared {
    /// Takes what the log has, and waits for it if there is nothing.
    pub(in super::super) async fn look_in_log(
        &self,
        log: &Log,
        wait: Duration,
    ) -> Result<Vec<Record>, Trouble> {
        let (read_to, room) = {
            let window = self.window();
            let tail = window.tail.as_ref().expect("there is a tail once the log is read");
            (tail.read_to(), tail.room())
        };
        if room == 0 {
            // The rest is settled before there is more.
            drop(timeout(wait, self.settled.notified()).await);
            return Ok(Vec::new());
        }
        let begun = lock(&log.replication).clone();
        let replication = match begun {
            Some(replication) => replication,
            None => self.stream(log, read_to).await?,
        };
        let batch = tokio::select! {
            biased;
            batch = replication.next() => batch,
            () = self.settled.notified() => return Ok(Vec::new()),
            () = tokio::time::sleep(wait) => return Ok(Vec::new()),
        };
        let batch = match batch {
            Ok(Some(batch)) => batch,
            Ok(None) => {
                *lock(&log.replication) = None;
                return Ok(Vec::new());
            }
            Err(error) => {
                *lock(&log.replication) = None;
                if is_of_slot(&error) {
                    let why = format!("it cannot be read any more ({error})");
                    return Err(self.give_up(log, why).await);
                }
                return Err(passing(cannot("read the log", error)));
            }
        };
        let taken = match self.items(log, batch) {
            Ok(items) => match self.check_items(log, &items).await {
                Ok(()) => self.take_items(log, items),
                Err(trouble) => Err(trouble),
            },
            Err(Unfit::Malformed(error)) => Err(error.into()),
            Err(Unfit::Changed(column)) if log.log_only.load(Ordering::Relaxed) => {
                let (pipeline, slot) = (&self.pipeline, &log.sql.names().slot);
                let why = format!("{column} was changed in the table");
                let error = log_only(pipeline, slot, &why).with_hint(format!(
                    "start the relay again, which reads the table anew; if this stays, the log has \
                     rows of before: publish what is missing again, and let go of the rest: \
                     postrider slot drop {pipeline}"
                ));
                Err(error.into())
            }
            Err(Unfit::Changed(column)) => {
                let why = format!("the log has rows of before {column} was changed in the table");
                Err(self.give_up(log, why).await)
            }
        };
        if taken.is_err() {
            // What came is gone from the stream.
            *lock(&log.replication) = None;
        }
        taken
    }

    /// Begins the stream.
    async fn stream(&self, log: &Log, at: Lsn) -> Result<Arc<Replication>, Trouble> {
        // This also finds out that the server is another one, or was started anew.
        let slot = log.sql.find(&self.reader).await?;
        let written = lock(&self.written).as_ref().and_then(|position| position.log.clone());
        let has_all = slot.zip(written).is_some_and(|(slot, log)| slot.has_all_since(log.lsn));
        if !has_all {
            return Err(self.give_up(log, "the slot is gone, or was read by others".into()).await);
        }
        self.held.check_time()?;
        log.sql.free(&self.reader, &log.application_name, &self.held).await?;
        let streaming = streaming(&log.location, &log.application_name).await;
        let mut streaming = streaming.map_err(passing)?;
        let failed = |error| passing(cannot("read the log", error));
        let identity = streaming.identify_system().await.map_err(failed)?;
        if self.reader.origin().await?.is_not(identity.system_id, identity.timeline) {
            return Err(self.held.lost().into());
        }
        let output = PgOutput {
            publications: vec![log.sql.names().publication.clone()],
            binary: true,
            // Every login of the database can write logical messages: none is an event.
            messages: false,
            // A row that was written here while changes of another server were applied has the
            // origin of those. Rows of that server are dealt with by the trigger of the outbox.
            origin_none: false,
            streaming: false,
        };
        let flow = Flow {
            buffer_bytes: BUFFER_BYTES,
            value_bytes_max: VALUE_BYTES_MAX,
            ..Flow::default()
        };
        let slot = &log.sql.names().slot;
        let replication = match streaming.start(slot, at, &output, flow).await {
            Ok(replication) => Arc::new(replication),
            Err(error) if is_of_slot(&error) => {
                let why = format!("the slot cannot be read ({error})");
                return Err(self.give_up(log, why).await);
            }
            Err(error) => return Err(failed(error)),
        };
        *lock(&log.stream) = Stream::default();
        *lock(&log.replication) = Some(Arc::clone(&replication));
        debug!(pipeline = self.pipeline, %at, "the stream was begun");
        Ok(replication)
    }

    /// Reads what the stream says, before anything is noted about it.
    fn items(&self, log: &Log, batch: Batch) -> Result<Vec<Item>, Unfit> {
        let mut items = Vec::with_capacity(batch.len());
        let mappings = &mut lock(&log.stream).mappings;
        for frame in batch {
            let (sent_at_us, data) = match frame {
                Frame::Keepalive { wal_end } => {
                    items.push(Item::Idle(wal_end));
                    continue;
                }
                Frame::XLogData { sent_at_us, data, .. } => (sent_at_us, data),
            };
            let message = decode(data, false).map_err(|error| {
                let message = "the log has something that cannot be read";
                Unfit::Malformed(
                    SourceError::new(SourceErrorKind::Unsafe, message)
                        .with_source(error)
                        .with_hint("report this, with the version of the server"),
                )
            })?;
            match message {
                Message::Begin { final_lsn, xid, .. } => {
                    items.push(Item::Begin(final_lsn, xid));
                }
                Message::Commit { end_lsn, .. } => items.push(Item::Commit(end_lsn)),
                Message::Relation(relation) => {
                    let mapping = Mapping::new(&log.table, &relation).map_err(Unfit::Changed)?;
                    mappings.insert(relation.oid, mapping);
                    items.push(Item::Table);
                }
                Message::Insert { relation, new, .. } => {
                    let mapping = mappings.get(&relation).ok_or(Unfit::Changed("the table"))?;
                    let row = mapping.row(&new);
                    items.push(self.item(&row, sent_at_us)?);
                }
                _ => {}
            }
        }
        Ok(items)
    }

    /// What has to be known, or written down, before events are handed out.
    async fn check_items(&self, log: &Log, items: &[Item]) -> Result<(), Trouble> {
        if items.iter().any(|item| matches!(item, Item::Table)) {
            // Rows may be missing that are earlier than those which follow.
            let publication = log.sql.publication(&self.reader).await?;
            self.refuse_changed(log, publication).await?;
        }
        Ok(())
    }

    fn item(&self, row: &LogRow, sent_at_us: i64) -> Result<Item, Unfit> {
        if !row.is_for(self.types.as_deref()) {
            return Ok(Item::Other(row.xid()));
        }
        let read = row.read(&self.decoder, sent_at_us).ok_or(Unfit::Changed("seq"))?;
        Ok(Item::Row(Box::new(read)))
    }

    /// Takes in what was read.
    fn take_items(&self, log: &Log, items: Vec<Item>) -> Result<Vec<Record>, Trouble> {
        let mut window = self.window();
        let mut records = Vec::with_capacity(items.len());
        let Stream { skip, xid: current, .. } = &mut *lock(&log.stream);
        for item in items {
            let tail = window.tail.as_mut().expect("there is a tail once the log is read");
            match (item, &mut *skip) {
                (Item::Begin(commit, xid), _) => {
                    *current = xid;
                    let received = tail.begin(commit).map_err(|Torn| torn())?;
                    *skip = received.map_or(Skip::All, Skip::Rows);
                }
                (Item::Row(_) | Item::Other(_) | Item::Commit(_), Skip::All) => {}
                (Item::Row(_) | Item::Other(_), Skip::Rows(rows)) if *rows > 0 => *rows -= 1,
                (Item::Other(xid), _) => {
                    let known = xid.map(|xid| tail.known(xid, *current));
                    tail.pass_over(known);
                }
                (Item::Row(row), _) => {
                    let known = row.xid.map(|xid| tail.known(xid, *current));
                    if let Some(place) = tail.row(row.read.decoded.seq, known) {
                        // One that was not written here is not looked for in the table by it.
                        let xid = row.xid.filter(|xid| Some(*xid) == known);
                        let origin = Origin::Logged { place, xid };
                        records.push(row.read.hand_out(&mut window, origin));
                    }
                }
                (Item::Commit(end), _) => tail.commit(end),
                (Item::Idle(wal_end), _) => tail.idle(wal_end),
                (Item::Table, _) => {}
            }
        }
        Ok(records)
    }
}

/// What has worked before is taken to work again.
fn passing(mut error: SourceError) -> Trouble {
    if error.kind == SourceErrorKind::Misconfigured {
        error.kind = SourceErrorKind::Unavailable;
    }
    error.into()
}

fn torn() -> Trouble {
    let message = "the log went on in the middle of another transaction";
    SourceError::new(SourceErrorKind::Lost, message).into()
}
