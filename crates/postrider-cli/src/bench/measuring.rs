//! Measures, part by part.

use std::sync::{Arc, Mutex, PoisonError};

use postrider_relay::pipeline::Options;
use postrider_relay::scratch::{Examined, ScratchDatabase};
use postrider_relay::shutdown::Shutdown;
use postrider_relay::sink::Sink;
use postrider_relay::source::Source;
use postrider_relay::sources::memory::MemoryOutbox;
use tokio::time::Instant;

use super::draining::{self, Until, begin_log, drain, nowhere};
use super::events::EventMaker;
use super::findings::{Findings, Limit, Publishing, Reading, Writing, rounded};
use super::latency::{self, Latency, Load};
use super::places::Places;
use super::plan::{Clock, Part, Plan, RATE_MAX, Rows};
use super::target::Target;
use super::writing::{Measured, Writers};
use crate::error::{CliError, Code};
use crate::output::Output;
use crate::progress::Progress;

/// Rounds of transactions without and with an event, in turn: what else the machine does meanwhile
/// hits both.
const ROUNDS: u64 = 2;
/// The steady load is at most this part of what a session can write.
const RATE_OF_WRITER: f64 = 0.5;
const MORE_TIME: &str = "give it more time with --for, or fewer --rows";

/// One run.
pub(crate) struct Run<'r> {
    target: &'r Target,
    places: &'r Places<'r>,
    plan: Plan,
    rows: Rows,
    clock: Clock,
    options: Options,
    maker: Arc<EventMaker>,
    progress: Mutex<Progress>,
    interrupt: Shutdown,
    events_written: u64,
}

impl<'r> Run<'r> {
    pub(crate) fn new(
        target: &'r Target,
        places: &'r Places<'r>,
        plan: Plan,
        (output, interrupt): (Output, Shutdown),
    ) -> Self {
        Self {
            target,
            places,
            plan,
            rows: plan.rows(target.sink.is_some()),
            clock: plan.start(),
            options: draining::options(&target.options, &places.name),
            maker: Arc::new(EventMaker::new(&plan)),
            progress: Mutex::new(Progress::new(output)),
            interrupt,
            events_written: 0,
        }
    }

    /// Measures everything. The places are there.
    pub(crate) async fn measure(mut self, examined: &Examined) -> Result<Findings, CliError> {
        self.clock = self.plan.start();
        let started = Instant::now();
        let (name, count) = (&self.places.name, examined.writers);
        let maker = Arc::clone(&self.maker);
        let interrupt = self.interrupt.clone();
        let mut writers = Writers::connect(self.database(), name, count, maker, interrupt).await?;
        let end = self.clock.end_of(Part::Drain);
        begin_log(self.database(), name, self.target.reading, end).await?;

        let (bare, with_event) = self.transactions(&mut writers).await?;
        let (mut filled, reading) = self.reading(&mut writers).await?;
        let publishing = match self.places.sink().await? {
            None => None,
            Some(alone) => {
                let (more, publishing) = self.publishing(&mut writers, alone).await?;
                filled += more;
                Some(publishing)
            }
        };
        drop(writers);
        let writing = self.writing(count, bare, with_event, filled);
        let latency = self.latency(&writing).await?;
        let limit = Limit::of(&writing, &reading, publishing.as_ref());
        Ok(Findings {
            name: name.as_str().to_owned(),
            database: examined.what.clone(),
            sink: self.target.sink.as_ref().map(|sink| sink.url.to_string()),
            mode: self.target.reading.mode_name(),
            progress: self.target.reading.progress.as_str(),
            plan: self.plan,
            events_written: self.events_written,
            seconds: rounded(started.elapsed().as_secs_f64()),
            writing,
            reading,
            publishing,
            latency,
            limit,
        })
    }

    fn database(&self) -> &'r dyn ScratchDatabase {
        &*self.target.database
    }

    fn begin(&self, what: &str) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.show(|_| format!("measuring {what}"));
    }

    fn until(&self, expected: u64, part: Part) -> Until {
        Until { expected, end: self.clock.end_of(part), interrupt: self.interrupt.clone() }
    }

    async fn source(&self) -> Result<Box<dyn Source>, CliError> {
        let reading = self.target.reading;
        let name = &self.places.name;
        Ok(self.database().source(name, reading.mode, reading.progress).await?)
    }

    /// Transactions without, and with one event.
    async fn transactions(
        &mut self,
        writers: &mut Writers,
    ) -> Result<(Measured, Measured), CliError> {
        self.begin("transactions");
        let (mut bare, mut with_event) = (Measured::default(), Measured::default());
        for round in 0..ROUNDS {
            let first = self.rows.transactions * round / ROUNDS;
            let count = self.rows.transactions * (round + 1) / ROUNDS - first;
            bare += writers.write(count, 0, self.clock.end_of(Part::Transactions)).await?;
            with_event += writers.write(count, 1, self.clock.end_of(Part::Transactions)).await?;
        }
        self.events_written += with_event.count;
        match bare.count.min(with_event.count) {
            0 => Err(too_little("transaction")),
            _ => Ok((bare, with_event)),
        }
    }

    /// Writes a backlog.
    async fn fill(&mut self, writers: &mut Writers, events: u64) -> Result<Measured, CliError> {
        self.begin("large transactions");
        let together = self.plan.batch_events();
        let filled = writers.fill(events, together, self.clock.end_of(Part::Fill)).await?;
        self.events_written += filled.count;
        match filled.count {
            0 => Err(too_little("event")),
            _ => Ok(filled),
        }
    }

    /// What the database takes.
    fn writing(
        &self,
        writers: usize,
        bare: Measured,
        with_event: Measured,
        filled: Measured,
    ) -> Writing {
        let ms_each = |measured: Measured| writers as f64 * 1000.0 / measured.rate();
        Writing {
            writers,
            bare_transactions_per_second: rounded(bare.rate()),
            event_transactions_per_second: rounded(with_event.rate()),
            event_of_bare: rounded(with_event.rate() / bare.rate()),
            event_adds_ms: rounded(ms_each(with_event) - ms_each(bare)),
            batch_events: self.plan.batch_events(),
            batch_events_per_second: rounded(filled.rate()),
        }
    }

    /// What the database gives.
    async fn reading(&mut self, writers: &mut Writers) -> Result<(Measured, Reading), CliError> {
        let filled = self.fill(writers, self.rows.dropped).await?;
        let pending = self.events_written;
        self.begin("reading");
        let started = Instant::now();
        let reading = self.database().read_all(&self.places.name);
        let read = tokio::time::timeout_at(self.clock.end_of(Part::ReadAll), reading).await;
        let read = read.map_err(|_| too_little("read of the backlog"))??;
        let copied = Measured { count: read, time: started.elapsed() };
        self.begin("a drain to nowhere");
        let source = self.source().await?;
        let until = self.until(pending, Part::Drain);
        let drained = drain(source, nowhere(), &self.options, until).await?;
        self.drop_rest(pending, drained).await?;
        let found = Reading {
            copy_events_per_second: rounded(copied.rate()),
            drain_events_per_second: rounded(drained.rate()),
            drain_of_copy: rounded(drained.rate() / copied.rate()),
            drained_events: drained.count,
        };
        Ok((filled, found))
    }

    /// What a drain had no time for must not be there in the next part.
    async fn drop_rest(&self, pending: u64, drained: Measured) -> Result<(), CliError> {
        if drained.count >= pending {
            return Ok(());
        }
        let rest = pending - drained.count;
        let (source, until) = (self.source().await?, self.until(rest, Part::Drain));
        let dropped = drain(source, nowhere(), &self.options, until).await?;
        match dropped.count >= rest {
            true => Ok(()),
            false => {
                let what = "the relay could not publish in time what was written";
                Err(CliError::new(Code::Failure, what).with_fix(MORE_TIME))
            }
        }
    }

    /// What the sink takes.
    async fn publishing(
        &mut self,
        writers: &mut Writers,
        sink: Box<dyn Sink>,
    ) -> Result<(Measured, Publishing), CliError> {
        let filled = self.fill(writers, self.rows.published).await?;
        self.begin("the sink by itself");
        let outbox = MemoryOutbox::new();
        outbox.append(self.maker.events(0..self.rows.alone));
        let (memory, until) =
            (Box::new(outbox.connect()), self.until(self.rows.alone, Part::Alone));
        let alone = drain(memory, sink, &self.options, until).await?;
        self.begin("a drain to the sink");
        let sink = self.places.sink().await?.unwrap_or_else(nowhere);
        let (source, until) = (self.source().await?, self.until(filled.count, Part::Drain));
        let drained = drain(source, sink, &self.options, until).await?;
        self.drop_rest(filled.count, drained).await?;
        let found = Publishing {
            alone_events_per_second: rounded(alone.rate()),
            drain_events_per_second: rounded(drained.rate()),
            drain_of_alone: rounded(drained.rate() / alone.rate()),
            drained_events: drained.count,
        };
        Ok((filled, found))
    }

    /// How late events are under a load that the database bears with ease.
    async fn latency(&mut self, writing: &Writing) -> Result<Latency, CliError> {
        self.begin("latency");
        let of_one = writing.event_transactions_per_second / writing.writers as f64;
        let load = Load {
            events_per_second: (of_one * RATE_OF_WRITER).clamp(1.0, RATE_MAX),
            events: self.rows.steady,
            end: self.clock.end_of(Part::Latency),
            interrupt: self.interrupt.clone(),
        };
        let sink = self.places.sink().await?.unwrap_or_else(nowhere);
        let writer = self.database().writer(&self.places.name).await?;
        let source = self.source().await?;
        let writing = (writer, &*self.maker);
        let measured = latency::measure(source, sink, &self.options, writing, load).await;
        let (latency, written) = measured?;
        self.events_written += written;
        Ok(latency)
    }
}

fn too_little(what: &str) -> CliError {
    CliError::new(Code::Failure, format!("there was not time for a single {what}"))
        .with_fix(MORE_TIME)
}
