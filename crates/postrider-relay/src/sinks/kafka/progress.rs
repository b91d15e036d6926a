//! Which events were published and may come back: their ids, in a compacted topic.
//!
//! Each transaction writes one record, a [note](note), whose key is the producer's name and a
//! *place*. What a note holds is needed while
//!
//! - one of its events is not known to be settled: it comes back after a crash, at some time;
//! - it is among the last, with as many ids as the window: should the database lose its last
//!   settlements, those come back.
//!
//! A note that is not needed gives its place to another one. So that one event that is not settled
//! for long does not keep all that is behind it, its id is *carried on*: a newer note has it as
//! well. Each note has the number of the first one that holds something else (the *floor*), by
//! which a relay that takes over knows what was settled.
//!
//! # What it takes
//!
//! The notes that are needed hold at most about two windows of ids besides what is not settled. That is what the pipeline has under way (the window), what was set aside after it was
//! sent, and what an earlier relay left in doubt when it died: it may have settled it and cannot say
//! so any more. Of the last there are about two windows for each crash; so many windows are kept
//! ([`IN_DOUBT_WINDOWS`], of the largest window since), without what is known to be set aside.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

pub(super) use self::found::FoundNotes;
pub(super) use self::note::Note;
use self::note::{CARRIED_MIN, Content};

mod found;
mod note;
#[cfg(test)]
mod tests;

/// So many windows of ids that may be settled or not are kept.
const IN_DOUBT_WINDOWS: usize = 16;
/// The least window that is counted with.
const WINDOW_MIN: usize = 64;
/// What is not settled is carried on once a window of ids, or such a part of what is not settled, was
/// written since: what is settled meanwhile is in doubt after a crash.
const LAP_PART: usize = 8;
/// There are never as many places, whatever the window is.
const PLACES_MAX: u32 = 1 << 24;
/// There are never as many notes.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// A record of the topic that no relay writes: its key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ForeignNote(pub(super) String);

/// The notes that are needed.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// From the oldest on.
    held: VecDeque<Held>,
    /// How many ids they have, and how many of those were sent with them.
    written: usize,
    sent: usize,
    /// What was published and is not known to be settled.
    unsettled: HashMap<Uuid, Unsettled>,
    /// How many of them are set aside.
    aside: usize,
    /// Set aside, and not noted as such.
    unnoted: Vec<Uuid>,
    free: BTreeSet<u32>,
    /// The lowest place that was never used.
    next: u32,
    number: u64,
    /// What the last note says of what is settled.
    floor: u64,
    window: usize,
    /// The largest window since nothing was in doubt.
    largest: usize,
    /// What the open transaction has noted.
    open: Option<Open>,
}

#[derive(Debug)]
struct Held {
    number: u64,
    place: u32,
    ids: Vec<Uuid>,
    /// How many of them were sent with it: the last ones.
    sent: usize,
    /// How many of them are not settled, and in no later note.
    unsettled: usize,
}

#[derive(Clone, Copy, Debug)]
struct Unsettled {
    /// The last note that has it.
    number: u64,
    is_aside: bool,
}

#[derive(Debug)]
struct Open {
    content: Content,
    place: u32,
    /// How many of the [unnoted](Progress::unnoted) it has.
    noted: usize,
}

impl Progress {
    /// Goes on from what a topic holds, one record for each key. Also answers the ids of the last
    /// transactions that are settled, as far as is known.
    ///
    /// # Errors
    ///
    /// A number is one that no relay writes: it would take more memory than the notes have bytes, or
    /// another note has it.
    pub(super) fn after(
        found: impl IntoIterator<Item = (String, Vec<u8>)>,
        window: usize,
    ) -> Result<(Self, HashSet<Uuid>), ForeignNote> {
        let mut notes = Vec::new();
        let mut numbers = HashSet::new();
        for (key, value) in found {
            let place = key.rsplit_once('/').and_then(|(_, place)| place.parse::<u32>().ok());
            let Some((place, content)) = place.zip(Content::read(&value)) else { continue };
            // A relay gives each transaction a number of its own.
            let is_new = numbers.insert(content.number);
            if place >= PLACES_MAX || content.number >= NUMBER_MAX || !is_new {
                return Err(ForeignNote(key));
            }
            notes.push((content, place));
        }
        notes.sort_unstable_by_key(|(content, _)| content.number);
        let (number, floor) = notes.last().map_or((0, 0), |(last, _)| (last.number, last.floor));
        let is_in_doubt = |content: &Content| content.number >= floor;
        let contents = notes.iter().map(|(content, _)| content);
        let in_doubt = contents.filter(|content| is_in_doubt(content) && !content.ids.is_empty());
        let windows = in_doubt.map(|content| content.window);
        // The places of the first version together hold the window of that time.
        let largest = if floor == 0 { windows.sum() } else { windows.max().unwrap_or(0) };
        let largest = largest.max(window);
        let mut progress = Self { number, floor, window, largest, ..Self::default() };
        let mut recent = HashSet::new();
        // The last are needed whether they are settled or not.
        let mut later: usize = notes.iter().map(|(content, _)| content.sent()).sum();
        for (content, place) in notes {
            progress.next = progress.next.max(place + 1);
            later -= content.sent();
            let is_in_doubt = is_in_doubt(&content);
            // A place that is free keeps its ids in the topic until it is used again: they are old.
            if !is_in_doubt && later >= window {
                progress.free.insert(place);
                continue;
            }
            if !is_in_doubt {
                recent.extend(content.ids.iter().copied());
            }
            let unsettled = if is_in_doubt { content.ids.len() } else { 0 };
            progress.hold(content, place, unsettled);
        }
        // Before the next note says how far all is settled, or they would be there for ever.
        progress.forget_beyond_bound();
        progress.release();
        Ok((progress, recent))
    }

    /// Whether an event was published and is not known to be settled.
    pub(super) fn is_unsettled(&self, id: &Uuid) -> bool {
        self.unsettled.contains_key(id)
    }

    /// Whether the last note says less than is known.
    pub(super) fn has_news(&self) -> bool {
        let is_held = |held: &&Held| held.unsettled > 0;
        let first = self.held.iter().find(is_held);
        !self.unnoted.is_empty() || first.map_or(self.number + 1, |held| held.number) > self.floor
    }

    /// The record for a transaction that publishes these events.
    pub(super) fn note(&mut self, name: &str, sent: &[Uuid]) -> Note {
        self.number += 1;
        self.unnoted.retain(|id| self.unsettled.contains_key(id));
        let noted = self.unnoted.len().min(sent.len().max(CARRIED_MIN));
        let mut ids = self.carried(noted, sent.len());
        let floor = self.floor_without(&ids);
        ids.sort_by_key(|id| !self.unsettled[id].is_aside);
        let aside = ids.iter().take_while(|id| self.unsettled[*id].is_aside).count();
        let carried = ids.len();
        ids.extend_from_slice(sent);
        let (number, window) = (self.number, self.largest);
        let content = Content { number, floor, aside, carried, window, ids };
        let place = self.free.first().copied().unwrap_or(self.next);
        let note = Note { key: format!("{name}/{place}"), value: content.to_bytes() };
        self.open = Some(Open { content, place, noted });
        note
    }

    /// The open transaction notes nothing.
    pub(super) fn note_nothing(&mut self) {
        self.open = None;
    }

    /// Takes in that the transaction was committed.
    pub(super) fn keep(&mut self) {
        let Some(Open { mut content, place, noted }) = self.open.take() else { return };
        self.unnoted.drain(..noted);
        self.floor = content.floor;
        self.free.remove(&place);
        self.next = self.next.max(place + 1);
        // What was settled meanwhile is not carried on.
        let (sent, mut index) = (content.sent(), 0);
        let first_sent = content.carried;
        content.ids.retain(|id| {
            index += 1;
            index > first_sent || self.unsettled.contains_key(id)
        });
        content.carried = content.ids.len() - sent;
        let unsettled = content.ids.len();
        self.hold(content, place, unsettled);
        self.forget_beyond_bound();
        self.release();
    }

    /// Takes in that events are settled: these were delivered, and those set aside.
    pub(super) fn settled(&mut self, delivered: &[Uuid], set_aside: &[Uuid]) {
        for id in delivered {
            if let Some(settled) = self.unsettled.remove(id) {
                self.aside -= usize::from(settled.is_aside);
                self.drop_from(settled.number);
            }
        }
        for id in set_aside {
            if let Some(unsettled) = self.unsettled.get_mut(id).filter(|it| !it.is_aside) {
                unsettled.is_aside = true;
                self.aside += 1;
                self.unnoted.push(*id);
            }
        }
        self.release();
    }

    /// Takes in what was known of what is settled before this was read, in the same process.
    pub(super) fn learn(&mut self, before: &Self) {
        let written: HashSet<&Uuid> = before.held.iter().flat_map(|held| &held.ids).collect();
        let (mut delivered, mut set_aside) = (Vec::new(), Vec::new());
        for id in self.unsettled.keys() {
            match before.unsettled.get(id) {
                Some(unsettled) if unsettled.is_aside => set_aside.push(*id),
                None if written.contains(id) => delivered.push(*id),
                Some(_) | None => {}
            }
        }
        self.settled(&delivered, &set_aside);
    }

    /// Holds on to a note, of which none or all ids are unsettled.
    fn hold(&mut self, content: Content, place: u32, unsettled: usize) {
        let (number, sent, aside) = (content.number, content.sent(), content.aside);
        let mut held = Held { number, place, sent, unsettled: 0, ids: content.ids };
        for (index, id) in held.ids.iter().take(unsettled).enumerate() {
            let before = self.unsettled.get(id).copied();
            let was_aside = before.is_some_and(|before| before.is_aside);
            let is_aside = was_aside || index < aside;
            self.aside += usize::from(is_aside && !was_aside);
            self.unsettled.insert(*id, Unsettled { number, is_aside });
            match before {
                Some(before) if before.number == number => {}
                Some(before) => {
                    held.unsettled += 1;
                    self.drop_from(before.number);
                }
                None => held.unsettled += 1,
            }
        }
        self.written += held.ids.len();
        self.sent += sent;
        self.held.push_back(held);
    }

    /// One of the ids of a note is settled, or in a later note.
    fn drop_from(&mut self, number: u64) {
        if let Ok(index) = self.held.binary_search_by_key(&number, |held| held.number) {
            self.held[index].unsettled -= 1;
        }
    }

    /// Gives up the places of the oldest notes, if they are not needed.
    fn release(&mut self) {
        while let Some(oldest) = self.held.front() {
            if oldest.unsettled > 0 || self.sent - oldest.sent < self.window {
                break;
            }
            self.written -= oldest.ids.len();
            self.sent -= oldest.sent;
            self.free.insert(oldest.place);
            self.held.pop_front();
        }
    }

    /// What the next note has of earlier ones: what is set aside since, and, if the notes hold a lot
    /// that is settled, what is not of the oldest.
    fn carried(&self, noted: usize, sent: usize) -> Vec<Uuid> {
        let most = sent.max(CARRIED_MIN);
        let mut ids: Vec<Uuid> = self.unnoted[..noted].to_vec();
        let known: HashSet<Uuid> = ids.iter().copied().collect();
        let lap = self.window.max(self.unsettled.len() / LAP_PART);
        let needed = self.window + self.unsettled.len() + lap;
        let mut surplus = (self.written + noted + sent).saturating_sub(needed);
        for held in &self.held {
            if surplus == 0 {
                break;
            }
            for id in &held.ids {
                let is_here = self.unsettled.get(id).is_some_and(|it| it.number == held.number);
                if is_here && !known.contains(id) {
                    if ids.len() >= most {
                        return ids;
                    }
                    ids.push(*id);
                }
            }
            surplus = surplus.saturating_sub(held.ids.len());
        }
        ids
    }

    /// The first note that holds what is not settled and is not carried on.
    fn floor_without(&self, carried: &[Uuid]) -> u64 {
        let mut leaving: HashMap<u64, usize> = HashMap::new();
        for id in carried {
            *leaving.entry(self.unsettled[id].number).or_default() += 1;
        }
        let stays =
            |held: &&Held| held.unsettled > leaving.get(&held.number).copied().unwrap_or_default();
        self.held.iter().find(stays).map_or(self.number, |held| held.number)
    }

    /// Forgets the oldest of what earlier relays have left in doubt, if there is too much of it.
    fn forget_beyond_bound(&mut self) {
        let most = IN_DOUBT_WINDOWS * self.largest.max(WINDOW_MIN);
        let mut surplus = (self.unsettled.len() - self.aside).saturating_sub(most);
        for held in &mut self.held {
            for id in &held.ids {
                if surplus == 0 {
                    return;
                }
                let found = self.unsettled.get(id);
                if found.is_some_and(|it| it.number == held.number && !it.is_aside) {
                    self.unsettled.remove(id);
                    held.unsettled -= 1;
                    surplus -= 1;
                }
            }
        }
    }
}

/// The last events that were settled before a producer began. They come back only if the database
/// has lost that; so they are forgotten after a while, and nobody is kept from publishing them anew.
#[derive(Debug)]
pub(super) struct Returning {
    ids: HashSet<Uuid>,
    /// As many newer ids have to be noted first: no more events are under way than those.
    newer: usize,
    /// And so long has to pass: what was set aside comes back at its time.
    horizon: Duration,
    since: Instant,
}

impl Returning {
    pub(super) fn new(
        ids: HashSet<Uuid>,
        window: usize,
        horizon: Duration,
        since: Instant,
    ) -> Self {
        Self { ids, newer: window, horizon, since }
    }

    pub(super) fn contains(&self, id: &Uuid) -> bool {
        self.ids.contains(id)
    }

    /// Takes in that one of them was answered.
    pub(super) fn answered(&mut self, id: &Uuid) {
        self.ids.remove(id);
    }

    /// Takes in that so many newer ids were noted.
    pub(super) fn noted(&mut self, ids: usize) {
        self.newer = self.newer.saturating_sub(ids);
    }

    /// Forgets all of them if it is time.
    pub(super) fn forget(&mut self, now: Instant) {
        if self.newer == 0 && now.saturating_duration_since(self.since) >= self.horizon {
            self.ids = HashSet::new();
        }
    }
}
