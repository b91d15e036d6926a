//! What an audit has found, grouped, in bounded memory.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::judgement::{Finding, FindingKind, Judgement};
use super::{Counts, Operations, Transaction, Watched, WrittenEvent};

/// Most groups that are kept; what would be one more is counted alone.
pub const GROUPS_MAX: usize = 200;

/// What an audit has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was watched.
    pub watched: Watched,
    /// For how long.
    pub time: Duration,
    /// All was read that was committed before the end.
    pub is_complete: bool,
    /// Transactions that changed watched tables or wrote events.
    pub transactions: u64,
    /// Transactions that came from another server, which are not judged.
    pub replicated: u64,
    /// Transactions that changed watched tables without an event.
    pub no_event: u64,
    /// Transactions that wrote events and changed none of the watched tables.
    pub event_only: u64,
    /// Those of these that are in no group, because there are too many groups.
    pub ungrouped: u64,
    groups: BTreeMap<(FindingKind, What), Group>,
}

/// Findings of one kind that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What is wrong.
    pub kind: FindingKind,
    /// How many transactions.
    pub count: u64,
    /// What they did to the watched tables, all together.
    pub changes: BTreeMap<usize, Counts>,
    /// How many events they wrote, all together.
    pub events: u64,
    /// The types of these, as aggregate type and event type.
    pub types: Vec<(String, String)>,
    /// The first events of the first transaction.
    pub first_events: Vec<WrittenEvent>,
    /// The first transaction.
    pub first: Example,
    /// The last one.
    pub last: Example,
}

/// A transaction, to be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Its number.
    pub xid: u32,
    /// When it was committed.
    pub committed_at: SystemTime,
    /// Where its commit is in the log.
    pub lsn: String,
}

/// What findings have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    changes: Vec<(usize, Operations)>,
    types: Vec<(String, String)>,
}

impl Report {
    pub(super) fn new(watched: Watched) -> Self {
        Self {
            watched,
            time: Duration::ZERO,
            is_complete: false,
            transactions: 0,
            replicated: 0,
            no_event: 0,
            event_only: 0,
            ungrouped: 0,
            groups: BTreeMap::new(),
        }
    }

    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.no_event == 0 && self.event_only == 0
    }

    /// What was found, by kind, the most frequent first.
    pub fn groups(&self) -> Vec<&Group> {
        let mut groups: Vec<&Group> = self.groups.values().collect();
        groups.sort_by_key(|group| (group.kind, std::cmp::Reverse(group.count), group.first.xid));
        groups
    }

    /// Counts a judgement. Answers what was found, and whether it is the first of its group.
    pub(super) fn add(&mut self, judgement: Judgement) -> Option<(Finding, bool)> {
        let finding = match judgement {
            Judgement::Unconcerned => return None,
            Judgement::Replicated => {
                self.replicated += 1;
                return None;
            }
            Judgement::Fine => {
                self.transactions += 1;
                return None;
            }
            Judgement::Found(finding) => finding,
        };
        self.transactions += 1;
        match finding.kind {
            FindingKind::NoEvent => self.no_event += 1,
            FindingKind::EventOnly => self.event_only += 1,
        }
        let is_first = self.group(&finding);
        Some((finding, is_first))
    }

    /// Answers whether it is the first of its group.
    fn group(&mut self, finding: &Finding) -> bool {
        let Finding { kind, transaction } = finding;
        let changes = transaction.changes.iter();
        let what = What {
            changes: changes.map(|(table, counts)| (*table, counts.operations())).collect(),
            types: transaction.events.types.clone(),
        };
        let is_full = self.groups.len() >= GROUPS_MAX;
        match self.groups.get_mut(&(*kind, what.clone())) {
            Some(group) => {
                group.add(transaction);
                false
            }
            None if is_full => {
                self.ungrouped += 1;
                false
            }
            None => {
                self.groups.insert((*kind, what), Group::new(*kind, transaction));
                true
            }
        }
    }
}

impl Group {
    fn new(kind: FindingKind, transaction: &Transaction) -> Self {
        let example = Example::of(transaction);
        Self {
            kind,
            count: 1,
            changes: transaction.changes.clone(),
            events: transaction.events.count,
            types: transaction.events.types.clone(),
            first_events: transaction.events.first.clone(),
            first: example.clone(),
            last: example,
        }
    }

    fn add(&mut self, transaction: &Transaction) {
        self.count += 1;
        self.events += transaction.events.count;
        for (table, counts) in &transaction.changes {
            self.changes.entry(*table).or_default().add_all(*counts);
        }
        self.last = Example::of(transaction);
    }
}

impl Example {
    fn of(transaction: &Transaction) -> Self {
        let Transaction { xid, committed_at, lsn, .. } = transaction;
        Self { xid: *xid, committed_at: *committed_at, lsn: lsn.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Operation::{self, Insert, Update};
    use super::super::judgement::tests::{tables, transaction};
    use super::super::{EVENTS_KEPT_MAX, TYPES_KEPT_MAX, judge};
    use super::*;

    fn report() -> Report {
        let (outbox, since_lsn) = ("public.outbox".to_owned(), "0/0".to_owned());
        Report::new(Watched { outbox, tables: tables(), since_lsn, notes: Vec::new() })
    }

    fn add(report: &mut Report, transaction: Transaction) -> Option<bool> {
        let judgement = judge(transaction, &tables(), Default::default());
        report.add(judgement).map(|(_, is_first)| is_first)
    }

    #[test]
    fn what_is_alike_is_one_group_with_its_first_and_last() {
        let mut report = report();
        let changed = |xid, changes: &[(usize, Operation)]| transaction(xid, changes, &[]);
        assert_eq!(add(&mut report, changed(1, &[(0, Update)])), Some(true));
        assert_eq!(add(&mut report, changed(2, &[(0, Update), (0, Update)])), Some(false));
        assert_eq!(add(&mut report, changed(3, &[(0, Update), (1, Insert)])), Some(true));
        assert_eq!(add(&mut report, transaction(4, &[(0, Update)], &["OrderPaid"])), None);
        assert_eq!(add(&mut report, transaction(5, &[], &["OrderPaid"])), Some(true));
        assert_eq!(add(&mut report, transaction(6, &[], &["OrderShipped"])), Some(true));
        assert_eq!(add(&mut report, transaction(7, &[], &["OrderPaid", "OrderPaid"])), Some(false));
        assert_eq!(add(&mut report, changed(8, &[])), None);
        assert_eq!((report.transactions, report.no_event, report.event_only), (7, 3, 3));
        assert!(!report.is_clean());
        let groups = report.groups();
        let shown = |group: &&Group| (group.kind.as_str(), group.count, group.first.xid);
        let shown: Vec<_> = groups.iter().map(shown).collect();
        let expected = [("no_event", 2, 1), ("no_event", 1, 3), ("event_only", 2, 5)];
        assert_eq!(shown[..3], expected);
        assert_eq!((groups[0].last.xid, groups[0].last.lsn.as_str()), (2, "0/2"));
        assert_eq!(groups[0].changes[&0].of(Update), 3);
        assert_eq!((groups[2].events, groups[2].last.xid), (3, 7));
    }

    #[test]
    fn memory_is_bounded_however_much_is_found() {
        let mut report = report();
        for number in 0..u32::try_from(GROUPS_MAX).unwrap() + 50 {
            add(&mut report, transaction(number, &[], &[&format!("Type{number}")]));
        }
        assert_eq!(report.groups().len(), GROUPS_MAX);
        assert_eq!((report.event_only, report.ungrouped), (250, 50));
        // One that has a group already finds it.
        assert_eq!(add(&mut report, transaction(9, &[], &["Type7"])), Some(false));
        assert_eq!(report.ungrouped, 50);

        let types: Vec<String> = (0..100).map(|number| format!("Type{number}")).collect();
        let types: Vec<&str> = types.iter().map(String::as_str).collect();
        let events = transaction(1, &[], &types).events;
        assert_eq!(events.count, 100);
        assert_eq!((events.first.len(), events.types.len()), (EVENTS_KEPT_MAX, TYPES_KEPT_MAX));
    }
}
