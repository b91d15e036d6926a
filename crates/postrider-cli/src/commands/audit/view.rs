//! What an audit has found, as text and as JSON.

use std::collections::BTreeMap;

use postrider_relay::audit::{
    Counts, Example, Finding, FindingKind, Group, Operation, Report, Transaction, Watched,
    WrittenEvent,
};
use serde::Serialize;

use crate::output::{plain, table};
use crate::time::{age, rfc3339};

/// Most groups that are printed as text.
const SHOWN_MAX: usize = 20;

/// The first line as JSON: everything that is committed from now on is seen.
#[derive(Serialize)]
pub(super) struct WatchingObject<'w> {
    watching: Watching<'w>,
}

#[derive(Serialize)]
struct Watching<'w> {
    outbox: &'w str,
    tables: Vec<&'w str>,
    since_lsn: &'w str,
    notes: &'w [String],
}

/// A finding as JSON; people script against it.
#[derive(Serialize)]
pub(super) struct FindingObject<'f> {
    finding: &'static str,
    #[serde(flatten)]
    transaction: ExampleObject<'f>,
    #[serde(flatten)]
    what: WhatObject<'f>,
}

/// What a transaction did, or several together.
#[derive(Serialize)]
struct WhatObject<'f> {
    tables: Vec<TableObject<'f>>,
    events: u64,
    /// Aggregate types and event types.
    event_types: Vec<TypeObject<'f>>,
    first_events: Vec<EventObject<'f>>,
}

#[derive(Serialize)]
struct TableObject<'f> {
    table: &'f str,
    inserts: u64,
    updates: u64,
    deletes: u64,
    truncates: u64,
}

#[derive(Serialize)]
struct TypeObject<'f> {
    aggregate_type: &'f str,
    event_type: &'f str,
}

#[derive(Serialize)]
struct EventObject<'f> {
    event_id: &'f str,
    aggregate_type: &'f str,
    aggregate_id: &'f str,
    event_type: &'f str,
}

#[derive(Serialize)]
struct ExampleObject<'f> {
    xid: u32,
    committed_at: String,
    lsn: &'f str,
}

/// All that was found, as JSON.
#[derive(Serialize)]
pub(super) struct SummaryObject<'r> {
    summary: Summary<'r>,
}

#[derive(Serialize)]
struct Summary<'r> {
    clean: bool,
    complete: bool,
    seconds: f64,
    transactions: u64,
    replicated: u64,
    no_event: u64,
    event_only: u64,
    ungrouped: u64,
    groups: Vec<GroupObject<'r>>,
}

#[derive(Serialize)]
struct GroupObject<'r> {
    finding: &'static str,
    count: u64,
    #[serde(flatten)]
    what: WhatObject<'r>,
    first: ExampleObject<'r>,
    last: ExampleObject<'r>,
}

pub(super) fn watching(watched: &Watched) -> WatchingObject<'_> {
    let Watched { outbox, tables, since_lsn, notes } = watched;
    let tables = tables.iter().map(|table| table.name.as_str()).collect();
    WatchingObject { watching: Watching { outbox, tables, since_lsn, notes } }
}

pub(super) fn finding<'f>(finding: &'f Finding, watched: &'f Watched) -> FindingObject<'f> {
    let Transaction { xid, committed_at, lsn, changes, events, .. } = &finding.transaction;
    FindingObject {
        finding: finding.kind.as_str(),
        transaction: ExampleObject { xid: *xid, committed_at: rfc3339(*committed_at), lsn },
        what: what(watched, changes, events.count, &events.types, &events.first),
    }
}

pub(super) fn summary(report: &Report) -> SummaryObject<'_> {
    let watched = &report.watched;
    let summary = Summary {
        clean: report.is_clean(),
        complete: report.is_complete,
        seconds: report.time.as_secs_f64(),
        transactions: report.transactions,
        replicated: report.replicated,
        no_event: report.no_event,
        event_only: report.event_only,
        ungrouped: report.ungrouped,
        groups: report.groups().into_iter().map(|it| group(it, watched)).collect(),
    };
    SummaryObject { summary }
}

fn group<'r>(group: &'r Group, watched: &'r Watched) -> GroupObject<'r> {
    let Group { kind, count, changes, events, types, first_events, first, last } = group;
    GroupObject {
        finding: kind.as_str(),
        count: *count,
        what: what(watched, changes, *events, types, first_events),
        first: example(first),
        last: example(last),
    }
}

fn what<'f>(
    watched: &'f Watched,
    changes: &BTreeMap<usize, Counts>,
    events: u64,
    types: &'f [(String, String)],
    first_events: &'f [WrittenEvent],
) -> WhatObject<'f> {
    let tables = changes.iter().map(|(index, counts)| TableObject {
        table: name(watched, *index),
        inserts: counts.of(Operation::Insert),
        updates: counts.of(Operation::Update),
        deletes: counts.of(Operation::Delete),
        truncates: counts.of(Operation::Truncate),
    });
    let types = types.iter();
    let events_first = first_events.iter().map(|event| EventObject {
        event_id: &event.event_id,
        aggregate_type: &event.aggregate_type,
        aggregate_id: &event.aggregate_id,
        event_type: &event.event_type,
    });
    WhatObject {
        tables: tables.collect(),
        events,
        event_types: types
            .map(|(aggregate_type, event_type)| TypeObject { aggregate_type, event_type })
            .collect(),
        first_events: events_first.collect(),
    }
}

fn example(example: &Example) -> ExampleObject<'_> {
    let Example { xid, committed_at, lsn } = example;
    ExampleObject { xid: *xid, committed_at: rfc3339(*committed_at), lsn }
}

fn name(watched: &Watched, index: usize) -> &str {
    watched.tables.get(index).map_or("", |table| &table.name)
}

/// A count of findings in words.
pub(super) fn headline(count: u64, kind: FindingKind) -> String {
    let counted = transactions(count);
    match kind {
        FindingKind::NoEvent => format!("{counted} changed the tables and wrote no event"),
        FindingKind::EventOnly => format!("{counted} wrote events and changed none of the tables"),
    }
}

fn transactions(count: u64) -> String {
    format!("{count} {}", if count == 1 { "transaction" } else { "transactions" })
}

/// What is said when the first of a group is found.
pub(super) fn told(finding: &Finding, watched: &Watched) -> String {
    let Transaction { xid, committed_at, changes, events, .. } = &finding.transaction;
    let what = match finding.kind {
        FindingKind::NoEvent => {
            format!("changed {} and wrote no event", changed(watched, changes))
        }
        FindingKind::EventOnly => {
            format!("wrote {} and changed none of the tables", types_text(&events.types))
        }
    };
    let at = rfc3339(*committed_at);
    format!("{at} transaction {xid} {what}; others like it are counted")
}

/// All that was found, in one screen.
pub(super) fn text(report: &Report) -> String {
    let mut text = format!(
        "{} changed the tables or wrote events in {}\n",
        transactions(report.transactions),
        age(report.time)
    );
    if report.replicated > 0 {
        text.push_str(&format!("{} more came from another server\n", report.replicated));
    }
    if !report.is_complete {
        text.push_str("it ended early: what was committed last may not have been seen\n");
    }
    let (groups, mut shown) = (report.groups(), 0);
    for kind in FindingKind::ALL {
        let count = match kind {
            FindingKind::NoEvent => report.no_event,
            FindingKind::EventOnly => report.event_only,
        };
        text.push_str(&headline(count, kind));
        text.push('\n');
        let groups: Vec<&&Group> = groups.iter().filter(|it| it.kind == kind).collect();
        let room = groups.len().min(SHOWN_MAX - shown);
        if room > 0 {
            shown += room;
            text.push_str(&rows(&groups[..room], kind, &report.watched));
        }
    }
    let more = groups.len() - shown;
    if more > 0 || report.ungrouped > 0 {
        let ungrouped = report.ungrouped;
        text.push_str(&format!("{more} more kinds, and {ungrouped} transactions of yet others\n"));
    }
    text
}

fn rows(groups: &[&&Group], kind: FindingKind, watched: &Watched) -> String {
    let (what, more): (_, &[&str]) = match kind {
        FindingKind::NoEvent => ("CHANGED", &[]),
        FindingKind::EventOnly => ("WROTE", &["FOR EXAMPLE", "KEY"]),
    };
    let heading = [&["COUNT", what], more, &["FIRST", "XID", "LSN", "LAST", "XID"]].concat();
    let mut rows = vec![heading.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for group in groups {
        let mut row = vec![group.count.to_string()];
        match kind {
            FindingKind::NoEvent => row.push(changed(watched, &group.changes)),
            FindingKind::EventOnly => {
                let event = group.first_events.first().cloned().unwrap_or_default();
                row.push(types_text(&group.types));
                row.push(plain(&event.event_id));
                row.push(format!(
                    "{}/{}",
                    plain(&event.aggregate_type),
                    plain(&event.aggregate_id)
                ));
            }
        }
        let (first, last) = (&group.first, &group.last);
        row.extend([rfc3339(first.committed_at), first.xid.to_string(), first.lsn.clone()]);
        row.extend([rfc3339(last.committed_at), last.xid.to_string()]);
        rows.push(row);
    }
    table(&rows)
}

/// `public.orders: 1 insert, 2 updates; public.payments: 1 delete`
fn changed(watched: &Watched, changes: &BTreeMap<usize, Counts>) -> String {
    let table = |(index, counts): (&usize, &Counts)| {
        let operations = counts.operations();
        let counted = operations.iter().map(|operation| {
            let count = counts.of(operation);
            format!("{count} {}{}", operation.as_str(), if count == 1 { "" } else { "s" })
        });
        let counted: Vec<String> = counted.collect();
        format!("{}: {}", plain(name(watched, *index)), counted.join(", "))
    };
    changes.iter().map(table).collect::<Vec<_>>().join("; ")
}

fn types_text(types: &[(String, String)]) -> String {
    let kind =
        |(aggregate, event): &(String, String)| format!("{} {}", plain(aggregate), plain(event));
    types.iter().map(kind).collect::<Vec<_>>().join(", ")
}
