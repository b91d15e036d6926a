//! What is kept of a message that is too long, however it is received; and that a length is not
//! believed.

use super::*;
use crate::pgoutput::{Message, Value, decode};
use crate::wire::body;

const MAX: usize = 4 << 10;

/// A message of the stream.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + 1 + 24 + data.len()).unwrap();
    [&b"d"[..], &length.to_be_bytes(), b"w", &[7; 24], data].concat()
}

fn value(kind: u8, bytes: usize) -> Vec<u8> {
    let length = u32::try_from(bytes).unwrap();
    [&[kind][..], &length.to_be_bytes(), &vec![b'v'; bytes]].concat()
}

fn row(kind: &[u8], columns: &[Vec<u8>]) -> Vec<u8> {
    let count = u16::try_from(columns.len()).unwrap();
    [kind, &count.to_be_bytes(), &columns.concat()].concat()
}

fn logical(prefix: &str, content: usize) -> Vec<u8> {
    let length = u32::try_from(content).unwrap();
    [&b"M\x01"[..], &[9; 8], prefix.as_bytes(), b"\0", &length.to_be_bytes(), &vec![b'c'; content]]
        .concat()
}

/// What is kept if it is received in pieces of this size, with another message behind it.
fn cut(message: &[u8], piece: usize, in_block: bool) -> Result<Bytes, Error> {
    let mut cutter = Cutter::new(MAX);
    cutter.in_block = in_block;
    cutter.begin(message.len());
    let mut incoming = BytesMut::new();
    let mut complete = None;
    for piece in message.chunks(piece) {
        assert!(complete.is_none(), "it was complete too early");
        incoming.extend_from_slice(piece);
        complete = cutter.feed(&mut incoming)?;
    }
    incoming.extend_from_slice(b"next");
    let length = complete.ok_or(Malformed)?;
    assert_eq!(cutter.feed(&mut incoming)?, Some(length), "it is asked for twice");
    let kept = cutter.take().unwrap();
    assert_eq!((kept.len(), &incoming[..]), (length, &b"next"[..]));
    Ok(kept)
}

fn decoded(message: &[u8], piece: usize, in_block: bool) -> Message {
    let kept = cut(message, piece, in_block).unwrap();
    assert!(kept.len() < 6 * MAX, "{}", kept.len());
    decode(body(&kept).slice(25..), in_block).unwrap()
}

#[test]
fn long_values_are_left_out_and_the_others_kept() {
    let columns =
        [value(b'b', 8), value(b't', MAX + 1), b"n".to_vec(), value(b'b', MAX), value(b't', 0)];
    let insert = framed(&row(b"I\0\0\0\x05N", &columns));
    let before = value(b'b', 10 * MAX);
    let update = [row(b"U\0\0\0\x05O", &[before]), row(b"N", &columns)].concat();
    for piece in [1, 7, 100, usize::MAX] {
        let Message::Insert { relation: 5, new, xid: None } = decoded(&insert, piece, false) else {
            panic!("it is an insert")
        };
        let Message::Update { new: updated, .. } = decoded(&framed(&update), piece, false) else {
            panic!("it is an update")
        };
        let values: Vec<_> = new.values().collect();
        assert_eq!(values, updated.values().collect::<Vec<_>>());
        assert_eq!(values[0], Value::Binary(vec![b'v'; 8].into()));
        assert_eq!(values[1], Value::TooLong(MAX as u32 + 1));
        assert_eq!(values[2], Value::Null);
        assert_eq!(values[3], Value::Binary(vec![b'v'; MAX].into()));
        assert_eq!(values[4], Value::Text(Bytes::new()));
    }
}

#[test]
fn of_many_values_not_all_are_kept() {
    let columns: Vec<_> = (0..100).map(|_| value(b'b', MAX)).chain([value(b'b', 3)]).collect();
    let message = framed(&row(b"I\0\0\0\x05N", &columns));
    let Message::Insert { new, .. } = decoded(&message, usize::MAX, false) else { panic!() };
    let values: Vec<_> = new.values().collect();
    assert_eq!(values[99], Value::TooLong(MAX as u32));
    assert_eq!(values[100], Value::Binary(vec![b'v'; 3].into()));
}

#[test]
fn of_a_logical_message_the_beginning_is_kept() {
    for piece in [1, 100, usize::MAX] {
        let message = decoded(&framed(&logical("postrider", 10 * MAX)), piece, false);
        let Message::Logical { prefix, content, length, transactional: true, .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!((prefix.as_str(), content.len(), length), ("postrider", MAX, 10 * MAX as u32));
        let long = "p".repeat(2 * MAX);
        let message = decoded(&framed(&logical(&long, 3)), piece, false);
        let Message::Logical { prefix, content, length: 3, .. } = message else {
            panic!("{message:?}")
        };
        assert_eq!((prefix.as_str(), &content[..]), ("", &b"ccc"[..]));
    }
}

#[test]
fn within_a_block_a_message_has_a_number_more() {
    let columns = [value(b'b', 2 * MAX)];
    let message = framed(&row(b"I\0\0\0\x09\0\0\0\x05N", &columns));
    let Message::Insert { xid: Some(9), relation: 5, new } = decoded(&message, 10, true) else {
        panic!("it is an insert")
    };
    assert_eq!(new.values().next(), Some(Value::TooLong(2 * MAX as u32)));
    let mut cutter = Cutter::new(MAX);
    cutter.note(&framed(b"S\0\0\0\x05\x01"));
    assert!(cutter.in_block);
    cutter.note(&framed(b"E"));
    assert!(!cutter.in_block);
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let long = vec![b'v'; 2 * MAX];
    for message in [
        framed(&[b"R", &long[..]].concat()),
        framed(&[b"T", &long[..]].concat()),
        [&b"E\0\0\x20\0"[..], &long].concat(),
        [&b"d\0\0\x20\0k"[..], &long].concat(),
        // More columns than there are, a value and a content that do not end, a prefix without
        // an end, and something behind the end.
        framed(&row(b"I\0\0\0\x05N", &[value(b'b', 2 * MAX), b"b\0\0\x20\0v".to_vec()])),
        framed(&[b"I\0\0\0\x05N\0\x09", &value(b'b', 2 * MAX)[..]].concat()),
        framed(&[&b"M\x01"[..], &[9; 8], b"p\0\x7f\xff\xff\xff", &long].concat()),
        framed(&[&b"M\x01"[..], &[9; 8], &long].concat()),
        framed(&[&row(b"I\0\0\0\x05N", &[value(b'b', 2 * MAX)])[..], b"v"].concat()),
    ] {
        for piece in [1, usize::MAX] {
            assert!(cut(&message, piece, false).is_err(), "{:?}", &message[..40]);
        }
    }
}

/// Lengths that are wrong in any way, and messages that are noise: no panic, and never more kept
/// than what was received.
#[test]
fn no_input_makes_it_panic_or_keep_more_than_it_may() {
    let [null, unchanged] = [b"n".to_vec(), b"u".to_vec()];
    let columns = [value(b'b', 8), value(b't', MAX + 1), null, unchanged, value(b'b', 2 * MAX)];
    let valid = [
        framed(&row(b"I\0\0\0\x05N", &columns)),
        framed(&row(b"D\0\0\0\x05K", &columns)),
        framed(&[row(b"U\0\0\0\x05K", &columns), row(b"N", &columns)].concat()),
        framed(&logical("postrider", 3 * MAX)),
    ];
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut message = valid[random.usize(..valid.len())].clone();
        for _ in 0..random.usize(1..=4) {
            let at = random.usize(..message.len());
            match random.u8(..4) {
                0 => message[at] = random.u8(..),
                1 => message[at] = random.choice([0, 1, 0x7F, 0xFF]).unwrap(),
                2 => {
                    let end = (at + 4).min(message.len());
                    let length = random.choice([[0xFF; 4], [0; 4], [0x7F; 4], [0, 0, 0x20, 0]]);
                    message[at..end].copy_from_slice(&length.unwrap()[..end - at]);
                }
                _ => message.truncate(at.max(1)),
            }
        }
        let piece = random.choice([16, 1000, usize::MAX]).unwrap();
        if let Ok(kept) = cut(&message, piece, random.u8(..8) == 0) {
            assert!(kept.len() <= message.len() + 1 && kept.len() < 6 * MAX, "seed {seed}");
            drop(decode(body(&kept).slice(25..), false));
        }
    }
}
