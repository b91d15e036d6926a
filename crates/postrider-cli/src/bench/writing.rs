//! What the database takes: transactions side by side, without and with events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_relay::scratch::{ScratchDatabase, ScratchName, ScratchWriter};
use postrider_relay::shutdown::Shutdown;
use postrider_relay::source::SourceError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::draining::interrupted;
use super::events::EventMaker;
use crate::error::{CliError, Code};

/// How many there were of something, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

impl Measured {
    /// So many a second.
    pub(crate) fn rate(self) -> f64 {
        self.count as f64 / self.time.as_secs_f64().max(f64::EPSILON)
    }
}

impl std::ops::AddAssign for Measured {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.time += other.time;
    }
}

/// Sessions of an application.
pub(crate) struct Writers {
    idle: Vec<Box<dyn ScratchWriter>>,
    maker: Arc<EventMaker>,
    /// The user has enough.
    interrupt: Shutdown,
}

impl Writers {
    pub(crate) async fn connect(
        database: &dyn ScratchDatabase,
        name: &ScratchName,
        count: usize,
        maker: Arc<EventMaker>,
        interrupt: Shutdown,
    ) -> Result<Self, CliError> {
        let mut idle = Vec::new();
        for _ in 0..count {
            idle.push(database.writer(name).await?);
        }
        Ok(Self { idle, maker, interrupt })
    }

    /// Writes at most so many transactions with so many events each, until `end`. Answers how many
    /// there were.
    pub(crate) async fn write(
        &mut self,
        transactions: u64,
        events_each: u64,
        end: Instant,
    ) -> Result<Measured, CliError> {
        let taken = Arc::new(AtomicU64::new(0));
        let mut sessions = JoinSet::new();
        let started = Instant::now();
        for writer in self.idle.drain(..) {
            let (taken, maker) = (Arc::clone(&taken), Arc::clone(&self.maker));
            let interrupt = self.interrupt.clone();
            let work = Work { transactions, events_each, end, interrupt, taken, maker };
            sessions.spawn(work.run(writer));
        }
        let mut count = 0;
        while let Some(ended) = sessions.join_next().await {
            let (writer, written) = ended.map_err(|panic| {
                CliError::new(Code::Failure, "a session broke off").caused_by(&panic)
            })??;
            self.idle.push(writer);
            count += written;
        }
        if self.interrupt.is_requested() {
            return Err(interrupted());
        }
        Ok(Measured { count, time: started.elapsed() })
    }

    /// Writes events in large transactions of so many each, at most so many in all, until `end`.
    pub(crate) async fn fill(
        &mut self,
        events: u64,
        together: u64,
        end: Instant,
    ) -> Result<Measured, CliError> {
        let mut filled = self.write(events / together, together, end).await?;
        filled.count *= together;
        let rest = events % together;
        if rest > 0 && filled.count + rest == events {
            let Measured { count, time } = self.write(1, rest, end).await?;
            filled += Measured { count: count * rest, time };
        }
        Ok(filled)
    }
}

struct Work {
    transactions: u64,
    events_each: u64,
    end: Instant,
    interrupt: Shutdown,
    taken: Arc<AtomicU64>,
    maker: Arc<EventMaker>,
}

impl Work {
    /// Writes as long as there is something left to write.
    async fn run(
        self,
        mut writer: Box<dyn ScratchWriter>,
    ) -> Result<(Box<dyn ScratchWriter>, u64), SourceError> {
        let mut written = 0;
        while Instant::now() < self.end && !self.interrupt.is_requested() {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.transactions {
                break;
            }
            let first = number * self.events_each;
            let events = self.maker.events(first..first + self.events_each);
            writer.transact(self.maker.account(number), &events).await?;
            written += 1;
        }
        Ok((writer, written))
    }
}
