//! The operator's view of an outbox in memory.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::MemoryOutbox;
use super::set_aside::{SetAside, SetAsideState};
use super::state::State;
use crate::admin::{
    Admin, COUNT_MAX, DeadLetter, DeadLetterDetail, OutboxStatus, PipelineStatus, Selection,
};
use crate::source::SourceError;

/// The only pipeline there is.
const PIPELINE: &str = "default";

#[async_trait]
impl Admin for MemoryOutbox {
    async fn status(&self) -> Result<OutboxStatus, SourceError> {
        let now = self.now().date;
        let state = self.state();
        let count =
            |wanted| state.set_aside.iter().filter(|row| row.state == wanted).count() as u64;
        let oldest = state.stream.after(0).and_then(|(_, row)| row.ok());
        let status = PipelineStatus {
            name: PIPELINE.to_owned(),
            progress: None,
            unpublished: state.stream.unsettled().min(COUNT_MAX),
            // An event may have happened a moment after now: the clocks differ.
            oldest_unpublished_age: oldest
                .map(|event| now.duration_since(event.occurred_at()).unwrap_or_default()),
            parked: count(SetAsideState::Parked),
            queued: count(SetAsideState::Queued),
            deferred: count(SetAsideState::Deferred),
            blocked_keys: state.set_aside.blocked_keys().len() as u64,
            last_settled_at: state.settled_at,
            trouble: state.trouble.clone(),
            leases: Vec::new(),
            slot: None,
            paused: None,
            paused_keys: Default::default(),
        };
        Ok(OutboxStatus {
            unmatched: Default::default(),
            database: "memory",
            table: "outbox".to_owned(),
            written: None,
            pipelines: vec![status],
        })
    }

    async fn dead_letters(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, SourceError> {
        let state = self.state();
        let letters = state.set_aside.iter().filter(|row| is_meant(row, selection));
        let page = letters.filter(|row| after.is_none_or(|after| row.seq > after)).take(limit);
        Ok(page.map(|row| letter(&state, row)).collect())
    }

    async fn dead_letter(&self, event_id: &str) -> Result<Option<DeadLetterDetail>, SourceError> {
        let selection = Selection { event_ids: vec![event_id.to_owned()], ..Selection::default() };
        Ok(self.dead_letter_details(&selection, None, 1).await?.pop())
    }

    async fn dead_letter_details(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetterDetail>, SourceError> {
        let state = self.state();
        let letters = state.set_aside.iter().filter(|row| is_meant(row, selection));
        let page = letters.filter(|row| after.is_none_or(|after| row.seq > after)).take(limit);
        Ok(page.map(|row| detail(&state, row)).collect())
    }

    async fn retry(&self, selection: &Selection) -> Result<u64, SourceError> {
        let now = self.now().elapsed;
        let mut state = self.state();
        let meant = meant(&state, selection);
        for seq in &meant {
            state.set_aside.retry(*seq, now);
        }
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(meant.len() as u64)
    }

    async fn discard(&self, selection: &Selection) -> Result<u64, SourceError> {
        let now = self.now().elapsed;
        let mut state = self.state();
        let meant = meant(&state, selection);
        let mut touched = BTreeSet::new();
        for seq in &meant {
            touched.extend(state.set_aside.remove(*seq));
        }
        // The relay learns that a key is free when it next settles something of that key.
        state.set_aside.mend(touched, now);
        drop(state);
        self.shared.changed.notify_waiters();
        Ok(meant.len() as u64)
    }
}

fn meant(state: &State, selection: &Selection) -> Vec<u64> {
    state.set_aside.iter().filter(|row| is_meant(row, selection)).map(|row| row.seq).collect()
}

fn is_meant(row: &SetAside, selection: &Selection) -> bool {
    row.state == SetAsideState::Parked
        && selection.pipeline.as_deref().is_none_or(|pipeline| pipeline == PIPELINE)
        && selection.key.as_ref().is_none_or(|key| row.key() == Some(key))
        && (selection.event_ids.is_empty() || selection.event_ids.contains(&event_id(row)))
        && selection.event_type.as_ref().is_none_or(|wanted| *wanted == event_type(row))
        && selection.kind.as_deref().is_none_or(|wanted| wanted == kind(row))
        && selection.error.as_deref().is_none_or(|part| has_part(error(row), part))
        && selection.since.is_none_or(|since| row.since >= since)
        && selection.until.is_none_or(|until| row.since < until)
}

fn has_part(text: &str, part: &str) -> bool {
    text.to_ascii_lowercase().contains(&part.to_ascii_lowercase())
}

fn event_type(row: &SetAside) -> String {
    row.event.as_ref().map_or_else(|_| String::new(), |event| event.event_type().to_owned())
}

fn kind(row: &SetAside) -> &str {
    row.failure.as_ref().map_or("", |failure| failure.kind.as_str())
}

fn error(row: &SetAside) -> &str {
    row.failure.as_ref().map_or("", |failure| &failure.message)
}

fn event_id(row: &SetAside) -> String {
    row.event.as_ref().map_or_else(|_| String::new(), |event| event.id().to_string())
}

fn detail(state: &State, row: &SetAside) -> DeadLetterDetail {
    let letter = letter(state, row);
    let Ok(event) = &row.event else {
        return DeadLetterDetail {
            letter,
            content_type: String::new(),
            headers: String::new(),
            occurred_at: String::new(),
            payload: Vec::new(),
        };
    };
    DeadLetterDetail {
        letter,
        content_type: event.content_type().to_owned(),
        headers: serde_json::to_string(event.headers()).unwrap_or_default(),
        occurred_at: jiff::Timestamp::try_from(event.occurred_at())
            .map(|time| time.to_string())
            .unwrap_or_default(),
        payload: event.payload().to_vec(),
    }
}

fn letter(state: &State, row: &SetAside) -> DeadLetter {
    let key = row.key().cloned().unwrap_or_else(|| postrider::Key {
        aggregate_type: String::new(),
        aggregate_id: String::new(),
    });
    let is_behind = |other: &&SetAside| {
        row.blocks && other.blocks && other.seq > row.seq && other.key() == row.key()
    };
    DeadLetter {
        cursor: row.seq,
        pipeline: PIPELINE.to_owned(),
        event_id: event_id(row),
        queued_behind: state.set_aside.iter().filter(is_behind).count() as u64,
        key,
        event_type: event_type(row),
        kind: kind(row).to_owned(),
        error: error(row).to_owned(),
        attempts: row.attempts,
        parked_at: row.since,
    }
}
