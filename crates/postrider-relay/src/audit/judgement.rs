//! What is wrong with a transaction.

use super::{Transaction, WatchedTable};

/// What is not to be reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Events may be written in a transaction that changes none of the watched tables.
    pub allow_event_only: bool,
}

/// What a transaction is, seen from the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It has nothing to do with the watched tables, nor with events.
    Unconcerned,
    /// It came from another server.
    Replicated,
    /// It is as it should be, or may be.
    Fine,
    /// It is not.
    Found(Finding),
}

/// What is wrong, and with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub kind: FindingKind,
    /// The transaction.
    pub transaction: Transaction,
}

/// What can be wrong with a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// It changed watched tables, and wrote no event.
    NoEvent,
    /// It wrote events, and changed none of the watched tables.
    EventOnly,
}

impl FindingKind {
    /// All of them, the worst first.
    pub const ALL: [Self; 2] = [Self::NoEvent, Self::EventOnly];

    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEvent => "no_event",
            Self::EventOnly => "event_only",
        }
    }
}

/// Judges a transaction. `tables` are those that its changes are counted by.
///
/// A change that needs no event is a change nevertheless: an event beside it is not alone.
pub fn judge(transaction: Transaction, tables: &[WatchedTable], rules: Rules) -> Judgement {
    let has_events = transaction.events.count > 0;
    let has_changes = !transaction.changes.is_empty();
    if transaction.is_replicated && (has_events || has_changes) {
        return Judgement::Replicated;
    }
    let needs_event = transaction.changes.iter().any(|(table, counts)| {
        let needed = tables.get(*table).map(|table| table.needs_event).unwrap_or_default();
        counts.operations().iter().any(|operation| needed.has(operation))
    });
    match (has_events, has_changes) {
        (false, false) => Judgement::Unconcerned,
        (true, false) if !rules.allow_event_only => {
            Judgement::Found(Finding { kind: FindingKind::EventOnly, transaction })
        }
        (false, true) if needs_event => {
            Judgement::Found(Finding { kind: FindingKind::NoEvent, transaction })
        }
        (true | false, true) | (true, false) => Judgement::Fine,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::{Counts, Operation, Operations, WrittenEvent, WrittenEvents};
    use super::*;

    /// `orders`, of which everything needs an event, and `customers`, of which only inserts do.
    pub(in super::super) fn tables() -> Vec<WatchedTable> {
        let table = |name: &str, needs_event| WatchedTable { name: name.to_owned(), needs_event };
        let inserts = [Operation::Insert].into_iter().collect();
        vec![table("public.orders", Operations::ALL), table("public.customers", inserts)]
    }

    pub(in super::super) fn transaction(
        xid: u32,
        changes: &[(usize, Operation)],
        events: &[&str],
    ) -> Transaction {
        let mut transaction = Transaction {
            xid,
            committed_at: SystemTime::UNIX_EPOCH + Duration::from_secs(xid.into()),
            lsn: format!("0/{xid:X}"),
            is_replicated: false,
            changes: Default::default(),
            events: WrittenEvents::default(),
        };
        for (table, operation) in changes {
            let counts: &mut Counts = transaction.changes.entry(*table).or_default();
            counts.add(*operation);
        }
        for event_type in events {
            transaction.events.add(WrittenEvent {
                event_id: format!("{xid}"),
                aggregate_type: "Order".to_owned(),
                aggregate_id: "1".to_owned(),
                event_type: (*event_type).to_owned(),
            });
        }
        transaction
    }

    type Case = (&'static [(usize, Operation)], &'static [&'static str], &'static str);

    fn kind(changes: &[(usize, Operation)], events: &[&str], rules: Rules) -> &'static str {
        match judge(transaction(1, changes, events), &tables(), rules) {
            Judgement::Unconcerned => "unconcerned",
            Judgement::Replicated => "replicated",
            Judgement::Fine => "fine",
            Judgement::Found(finding) => finding.kind.as_str(),
        }
    }

    #[test]
    fn every_case_has_its_judgement() {
        use Operation::{Delete, Insert, Truncate, Update};
        let paid: &'static [&'static str] = &["OrderPaid"];
        let cases: [Case; 10] = [
            (&[], &[], "unconcerned"),
            (&[(0, Update)], paid, "fine"),
            (&[(0, Insert)], &[], "no_event"),
            (&[(0, Truncate)], &[], "no_event"),
            (&[], paid, "event_only"),
            // Of customers only inserts need an event.
            (&[(1, Update), (1, Delete)], &[], "fine"),
            (&[(1, Update), (1, Insert)], &[], "no_event"),
            (&[(1, Update), (0, Delete)], &[], "no_event"),
            // What needs no event is a change nevertheless.
            (&[(1, Update)], paid, "fine"),
            // A table that nobody knows needs nothing.
            (&[(7, Update)], &[], "fine"),
        ];
        for (changes, events, expected) in cases {
            assert_eq!(kind(changes, events, Rules::default()), expected, "{changes:?} {events:?}");
        }
    }

    #[test]
    fn events_may_be_alone_if_that_is_allowed() {
        let rules = Rules { allow_event_only: true };
        assert_eq!(kind(&[], &["OrderPaid"], rules), "fine");
        assert_eq!(kind(&[(0, Operation::Update)], &[], rules), "no_event");
    }

    #[test]
    fn what_came_from_another_server_is_its_own_business() {
        for (changes, events) in
            [(&[(0, Operation::Update)][..], &[][..]), (&[][..], &["OrderPaid"][..])]
        {
            let mut transaction = transaction(1, changes, events);
            transaction.is_replicated = true;
            let judged = judge(transaction, &tables(), Rules::default());
            assert_eq!(judged, Judgement::Replicated);
        }
    }
}
