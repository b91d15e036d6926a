//! Verifies a pipeline from outside: reads its broker back and holds it against the outbox, by
//! event id.
//!
//! It uses nothing of what the pipeline knows about its progress, except to tell what it has
//! published from what it has not. Relays go on meanwhile:
//!
//! - An event of the outbox that is not in the broker may wait, be set aside or discarded, or be
//!   none that this pipeline ever published. What became of it is asked before the broker is read,
//!   so that what is published meanwhile is at worst counted as waiting. Only what was published
//!   by then, and is still missing when the broker is read once more, is lost. Only topics of such
//!   events are read: another may be one that was never usable.
//! - A message that is not in the outbox may have been written since, or was pruned long ago. Only
//!   what is younger than the oldest event of the outbox, and not in it, is a ghost.

mod comparison;
mod places;

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

pub use self::comparison::{Comparison, EXAMPLES_MAX, Expected, Found, NotRead, Report};
pub use self::places::{LOOKED_AT_MAX, Places, places};
use crate::config::PipelineConfig;
use crate::events::{Events, Fate, Stored, Wanted};
use crate::formats::Encoding;
use crate::readback::{Readback, Scope};
use crate::sink::SinkError;
use crate::sinks::SinkSpec;
use crate::source::SourceError;
use crate::sources::Progress;

/// How many events are listed at a time, and how many are read.
const LISTED_MAX: usize = 100_000;
const READ_MAX: usize = 1_000;
/// Most unknown messages whose events are asked for one by one.
const ASKED_MAX: usize = 10_000;

/// What is to be verified.
#[derive(Clone, Debug)]
pub struct Verification {
    pipeline: String,
    aggregate_types: Vec<String>,
    encoding: Encoding,
    sink: SinkSpec,
    since: Option<SystemTime>,
    until: SystemTime,
}

/// Why it could not be done.
#[derive(Debug, thiserror::Error)]
pub enum VerificationError {
    /// Rows are deleted when they are published, so there is nothing to compare with.
    #[error("the pipeline {0} deletes what it has published: nothing is left to compare with")]
    Deletes(String),
    /// The outbox could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The broker could not be read.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

impl Verification {
    /// Verifies a pipeline: events that were written since a time, or all.
    ///
    /// # Errors
    ///
    /// It deletes what it has published.
    pub fn of(
        pipeline: &PipelineConfig,
        since: Option<SystemTime>,
    ) -> Result<Self, VerificationError> {
        if pipeline.progress == Progress::Delete {
            return Err(VerificationError::Deletes(pipeline.name.clone()));
        }
        Ok(Self {
            pipeline: pipeline.name.clone(),
            aggregate_types: pipeline.aggregate_types.clone(),
            encoding: pipeline.options.encoding.clone(),
            sink: pipeline.sink.clone(),
            since,
            until: SystemTime::now(),
        })
    }

    /// Verifies. `tell` hears how many events and messages were looked at.
    pub async fn run(
        &self,
        events: &dyn Events,
        mut tell: impl FnMut(u64, u64),
    ) -> Result<Report, VerificationError> {
        let mut comparison = Comparison::default();
        let (mut topics, mut oldest) = (BTreeSet::new(), None);
        let mut listed = 0;
        let mut after = i64::MIN;
        loop {
            let page = events.stored(&self.wanted(), after, LISTED_MAX).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            for part in page.chunks(READ_MAX) {
                listed += part.len() as u64;
                self.expect(events, part, &mut comparison, &mut topics, &mut oldest).await?;
                tell(listed, 0);
            }
        }
        // Without events there is nothing to look for.
        let Some(oldest) = oldest else { return Ok(comparison.into_report(None, &[])) };
        let mut readback = self.read_back(&topics).await?;
        let mut kept = 0;
        loop {
            let messages = readback.next().await?;
            if messages.is_empty() {
                break;
            }
            kept += messages.len() as u64;
            messages.into_iter().for_each(|message| comparison.find(message));
            tell(listed, kept);
        }
        comparison.forget_unknown_before(self.since.unwrap_or(oldest));
        self.look_again(events, &mut comparison, &topics).await?;
        Ok(comparison.into_report(readback.kept_since(), readback.unreadable()))
    }

    fn wanted(&self) -> Wanted {
        Wanted { since: self.since, until: Some(self.until), ..Wanted::default() }
    }

    async fn read_back(
        &self,
        topics: &BTreeSet<String>,
    ) -> Result<Box<dyn Readback>, VerificationError> {
        let topics = topics.iter().cloned().collect();
        let scope = Scope { topics, since: self.since, format: self.encoding.format };
        Ok(self.sink.read_back(&scope).await?)
    }

    /// Notes events of the outbox, what became of them, and the topics to which they went.
    async fn expect(
        &self,
        events: &dyn Events,
        stored: &[Stored],
        comparison: &mut Comparison,
        topics: &mut BTreeSet<String>,
        oldest: &mut Option<SystemTime>,
    ) -> Result<(), VerificationError> {
        let written: HashMap<i64, SystemTime> =
            stored.iter().filter_map(|it| Some((it.position, it.created_at?))).collect();
        let fates = events.fates(&self.pipeline, &self.aggregate_types, stored).await?;
        let fates: HashMap<i64, Fate> = fates.into_iter().collect();
        for read in events.read(stored).await? {
            // What is no event was parked, and can be published by nobody.
            let Ok(event) = read.event else { continue };
            let aggregate_type = event.aggregate_type();
            let types = &self.aggregate_types;
            if !types.is_empty() && !types.iter().any(|it| it == aggregate_type) {
                continue;
            }
            let Ok(topic) = self.encoding.route.topic_of(&event) else { continue };
            // It was removed, and written anew, between the two looks.
            let Some(fate) = fates.get(&read.position).copied() else { continue };
            if fate == Fate::Published && !topics.contains(&topic) {
                topics.insert(topic.clone());
            }
            let written_at = written.get(&read.position).copied();
            let written_at = written_at.unwrap_or(event.occurred_at());
            *oldest = Some(oldest.map_or(written_at, |oldest| oldest.min(written_at)));
            comparison.expect(Expected {
                id: event.id(),
                key: event.key().clone(),
                is_out_of_line: event.deliver_after().is_some(),
                topic,
                fate,
                written_at,
            });
        }
        Ok(())
    }

    /// Finds out what became of that in which both differ.
    async fn look_again(
        &self,
        events: &dyn Events,
        comparison: &mut Comparison,
        topics: &BTreeSet<String>,
    ) -> Result<(), VerificationError> {
        for id in comparison.unknown().into_iter().take(ASKED_MAX) {
            if events.event(&id.to_string(), false).await?.is_some() {
                comparison.known_after_all(id);
            }
        }
        if comparison.is_any_missing() {
            let mut readback = self.read_back(topics).await?;
            loop {
                let messages = readback.next().await?;
                if messages.is_empty() {
                    break;
                }
                messages.iter().for_each(|message| comparison.find_again(message));
            }
        }
        Ok(())
    }
}
