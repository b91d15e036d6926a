//! What is made of the messages of the log.

use bytes::{BufMut as _, Bytes, BytesMut};
use postrider_replication::{Frame, Lsn};

use super::collector::{Collector, Outbox};
use super::tables::Place;
use crate::audit::{Operation, Seen};
use crate::sources::postgres::row::Decoder;

const OUTBOX: u32 = 1;
const ORDERS: u32 = 2;
const PART_OF_ORDERS: u32 = 3;
const UNKNOWN: u32 = 9;
const RUN: &str = "audit_postrider_00000000";

fn collector(derives_ids: bool) -> Collector {
    let places =
        [(OUTBOX, Place::Outbox), (ORDERS, Place::Table(0)), (PART_OF_ORDERS, Place::Table(0))];
    let theirs = ["id", "kind", "aggregate_id", "event_type"].map(str::to_owned);
    let decoder = Decoder { derives_ids: derives_ids.then(|| "public.outbox".to_owned()) };
    Collector::new(places.into(), Outbox { theirs, decoder }, RUN)
}

fn frame(kind: u8, body: &[u8]) -> Frame {
    let mut data = BytesMut::new();
    data.put_u8(kind);
    data.put_slice(body);
    let (wal_start, wal_end) = (Lsn(0), Lsn(0));
    Frame::XLogData { wal_start, wal_end, sent_at_us: 0, data: data.freeze() }
}

fn begin(xid: u32) -> Frame {
    let body = [&0x10u64.to_be_bytes()[..], &1_000_000i64.to_be_bytes(), &xid.to_be_bytes()];
    frame(b'B', &body.concat())
}

fn commit(end: u64) -> Frame {
    let body = [&[0][..], &0x10u64.to_be_bytes(), &end.to_be_bytes(), &0i64.to_be_bytes()];
    frame(b'C', &body.concat())
}

fn relation() -> Frame {
    let mut body = BytesMut::new();
    body.put_u32(OUTBOX);
    body.put_slice(b"public\0outbox\0d\0\x05");
    for name in ["payload", "event_type", "id", "aggregate_id", "kind"] {
        body.put_u8(0);
        body.put_slice(name.as_bytes());
        body.put_slice(b"\0\0\0\0\x19\xff\xff\xff\xff");
    }
    frame(b'R', &body)
}

fn insert(relation: u32, columns: &[&str]) -> Frame {
    let mut body = BytesMut::new();
    body.put_u32(relation);
    body.put_u8(b'N');
    body.put_u16(columns.len().try_into().unwrap());
    for column in columns {
        body.put_u8(b't');
        body.put_u32(column.len().try_into().unwrap());
        body.put_slice(column.as_bytes());
    }
    frame(b'I', &body)
}

fn update(relation: u32) -> Frame {
    frame(b'U', &[&relation.to_be_bytes()[..], b"N\0\0"].concat())
}

fn truncate(relations: &[u32]) -> Frame {
    let count = u32::try_from(relations.len()).unwrap();
    let oids = relations.iter().flat_map(|oid| oid.to_be_bytes());
    frame(b'T', &count.to_be_bytes().into_iter().chain([0]).chain(oids).collect::<Vec<u8>>())
}

fn logical(is_transactional: bool, prefix: &str, content: &[u8]) -> Frame {
    let length = u32::try_from(content.len()).unwrap();
    let flags = [u8::from(is_transactional)];
    let parts = [&flags[..], &[0; 8], prefix.as_bytes(), b"\0", &length.to_be_bytes(), content];
    frame(b'M', &parts.concat())
}

/// What is seen, and what could be confirmed after each frame.
fn taken(collector: &mut Collector, frames: Vec<Frame>) -> (Seen, Vec<Option<Lsn>>) {
    let mut seen = Seen::default();
    let take = |frame| collector.take(frame, &mut seen).unwrap();
    let confirmed = frames.into_iter().map(take).collect();
    (seen, confirmed)
}

const ID: &str = "01900000-0000-7000-8000-000000000001";

#[test]
fn a_transaction_is_counted_and_its_rows_are_not_kept() {
    let mut collector = collector(false);
    let event = insert(OUTBOX, &["canary", "OrderPaid", ID, "17", "Order"]);
    let (seen, confirmed) = taken(
        &mut collector,
        vec![
            begin(741),
            insert(ORDERS, &["canary"]),
            update(PART_OF_ORDERS),
            update(ORDERS),
            insert(UNKNOWN, &["canary"]),
            truncate(&[UNKNOWN, ORDERS]),
            relation(),
            event,
            Frame::Keepalive { wal_end: Lsn(0x30) },
            commit(0x20),
            Frame::Keepalive { wal_end: Lsn(0x40) },
        ],
    );
    // What is half here is not confirmed.
    assert_eq!(confirmed[..9], [None; 9]);
    assert_eq!(confirmed[9..], [Some(Lsn(0x20)), Some(Lsn(0x40))]);
    assert!(!format!("{seen:?}{collector:?}").contains("canary"));
    let [transaction] = seen.transactions.as_slice() else { panic!("{seen:?}") };
    assert_eq!((transaction.xid, transaction.lsn.as_str()), (741, "0/10"));
    let counts = transaction.changes[&0];
    let counts = Operation::ALL.map(|operation| counts.of(operation));
    assert_eq!((counts, transaction.changes.len()), ([1, 2, 0, 1], 1));
    let event = &transaction.events.first[0];
    assert_eq!((event.event_id.as_str(), event.aggregate_id.as_str()), (ID, "17"));
    assert_eq!(transaction.events.types, [("Order".to_owned(), "OrderPaid".to_owned())]);
    assert!(!transaction.is_replicated);
}

/// Every login of the database can write them.
#[test]
fn messages_are_no_events() {
    let frames = vec![
        begin(1),
        logical(true, "postrider", b"{}\ncanary"),
        logical(true, "postrider audit", b"audit_postrider_ffffffff"),
        commit(0x20),
        logical(false, "postrider audit", RUN.as_bytes()),
    ];
    let (seen, _) = taken(&mut collector(false), frames);
    assert!(seen.transactions.is_empty() && !seen.is_end, "{seen:?}");
}

#[test]
fn the_end_is_seen_when_its_transaction_is() {
    let mut collector = collector(false);
    let mark = logical(true, "postrider audit", RUN.as_bytes());
    let (seen, _) = taken(&mut collector, vec![begin(1), mark]);
    assert!(!seen.is_end);
    let (seen, _) = taken(&mut collector, vec![commit(0x20)]);
    assert!(seen.is_end && seen.transactions.is_empty());
    let (seen, _) = taken(&mut collector, vec![begin(2), update(ORDERS), commit(0x30)]);
    assert!(!seen.is_end);
}

#[test]
fn what_came_from_elsewhere_is_marked() {
    let origin = frame(b'O', b"\0\0\0\0\0\0\0\x09elsewhere\0");
    let frames = vec![
        begin(1),
        origin,
        update(ORDERS),
        commit(0x20),
        begin(2),
        update(ORDERS),
        commit(0x30),
    ];
    let (seen, _) = taken(&mut collector(false), frames);
    let marked: Vec<bool> = seen.transactions.iter().map(|it| it.is_replicated).collect();
    assert_eq!(marked, [true, false]);
}

#[test]
fn odd_rows_are_events_nevertheless_and_long_names_are_cut() {
    let long = "ä".repeat(1000);
    let rows = vec![
        begin(1),
        // Before anything is known of the table.
        insert(OUTBOX, &["canary"]),
        relation(),
        insert(OUTBOX, &["canary", &long, "no uuid", "", "Order"]),
        commit(0x20),
    ];
    let (seen, _) = taken(&mut collector(false), rows.clone());
    let events = &seen.transactions[0].events;
    assert_eq!((events.count, events.first[1].event_id.as_str()), (2, ""));
    assert_eq!(events.first[1].event_type, "ä".repeat(127));
    assert!(!format!("{seen:?}").contains("canary"));
    // Where ids are derived, it is the one with which the event is published.
    let (seen, _) = taken(&mut collector(true), rows);
    assert_eq!(seen.transactions[0].events.first[1].event_id.len(), 36);
}

#[test]
fn what_is_damaged_is_an_error() {
    let cut = Frame::XLogData {
        wal_start: Lsn(0),
        wal_end: Lsn(0),
        sent_at_us: 0,
        data: Bytes::from_static(b"U\0\0"),
    };
    assert!(collector(false).take(cut, &mut Seen::default()).is_err());
}
