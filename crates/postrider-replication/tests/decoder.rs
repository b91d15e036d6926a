//! The decoder of `pgoutput`, given what it was not made for: it never panics, and never takes
//! more memory than a small multiple of its input.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::alloc::System;

use bytes::Bytes;
use postrider_replication::pgoutput::{Message, Old, Tuple, decode};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SEEDS: u64 = 8;
const INPUTS_PER_SEED: usize = 100_000;
/// How often a decoding is measured again that seems to take too much.
const TRIES: usize = 5;
/// What a column of a table is in memory, against what it is in a message; and its name.
const FACTOR: usize = 6;
const KINDS: &[u8] = b"ABCDEIMORSTUYcm";

/// One of each kind that can be decoded.
fn valid() -> Vec<(Vec<u8>, bool)> {
    let tuple = b"\0\x05t\0\0\0\x05helloub\0\0\0\x02\x01\x02nx\x7f\0\0\0";
    let relation = b"\0\0\x40\0public\0outbox\0d\0\x02\x01id\0\0\0\x0b\x86\xff\xff\xff\xff\0\
                     payload\0\0\0\x0e\xda\xff\xff\xff\xff";
    let plain: Vec<Vec<u8>> = vec![
        [b"B", &[7; 20][..]].concat(),
        [b"C\0", &[7; 24][..]].concat(),
        b"O\0\0\0\0\0\0\0\x09origin\0".to_vec(),
        b"S\0\0\0\x05\x01".to_vec(),
        b"E".to_vec(),
        [b"c\0\0\0\x05\0", &[7; 24][..]].concat(),
        b"A\0\0\0\x05\0\0\0\x06".to_vec(),
    ];
    let with_xid: Vec<(u8, Vec<u8>)> = vec![
        (b'R', relation.to_vec()),
        (b'Y', b"\0\0\x40\x01public\0mood\0".to_vec()),
        (b'I', [b"\0\0\x40\0N", &tuple[..]].concat()),
        (b'U', [b"\0\0\x40\0N", &tuple[..]].concat()),
        (b'U', [b"\0\0\x40\0O", &tuple[..], b"N", &tuple[..]].concat()),
        (b'U', [b"\0\0\x40\0K", &tuple[..], b"N", &tuple[..]].concat()),
        (b'D', [b"\0\0\x40\0K", &tuple[..]].concat()),
        (b'D', [b"\0\0\x40\0O", &tuple[..]].concat()),
        (b'T', b"\0\0\0\x02\x03\0\0\x40\0\0\0\x40\x01".to_vec()),
        (b'M', [b"\x01", &[7; 8][..], b"postrider\0\0\0\0\x04\x01\x02\x03\x04"].concat()),
        (b'm', [b"\x01", &[7; 8][..], b"postrider\0\x7f\0\0\x04\x01\x02"].concat()),
    ];
    let mut all: Vec<_> = plain.into_iter().map(|message| (message, false)).collect();
    for (kind, rest) in with_xid {
        all.push(([&[kind][..], &rest].concat(), false));
        all.push(([&[kind, 0, 0, 0, 5][..], &rest].concat(), true));
    }
    all
}

/// Reads every column there is.
fn walk(message: &Message) -> usize {
    let tuple = |tuple: &Tuple| {
        let count = tuple.values().count();
        assert_eq!(count, tuple.len());
        count
    };
    match message {
        Message::Insert { new, .. } => tuple(new),
        Message::Update { old, new, .. } => {
            tuple(new)
                + old.as_ref().map_or(0, |old| match old {
                    Old::Key(old) | Old::Row(old) => tuple(old),
                })
        }
        Message::Delete { old: Old::Key(old) | Old::Row(old), .. } => tuple(old),
        _ => 0,
    }
}

/// Decodes it and answers whether it is a message.
fn try_out(input: Vec<u8>, in_stream: bool) -> bool {
    let length = input.len();
    // Made shared, as it is in a stream: the first clone would allocate otherwise.
    let shared = Bytes::from(input);
    let _other = shared.clone();
    let measure = || {
        let input = shared.clone();
        let region = Region::new(ALLOCATOR);
        let decoded = decode(input, in_stream);
        let walked = decoded.as_ref().map_or(0, walk);
        (decoded, walked, region.change().bytes_allocated)
    };
    let (decoded, walked, mut allocated) = measure();
    // The harness allocates now and then in another thread; what the decoder takes, it takes each
    // time.
    for _ in 0..TRIES {
        if allocated > FACTOR * length {
            allocated = allocated.min(measure().2);
        }
    }
    assert!(walked <= length, "{walked} columns in {shared:?}");
    assert!(allocated <= FACTOR * length, "{allocated} bytes for {length}: {shared:?}");
    decoded.is_ok()
}

/// Changes, removes, repeats or adds a few bytes.
fn mutated(random: &mut fastrand::Rng, mut input: Vec<u8>) -> Vec<u8> {
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(0..=input.len());
        match random.u8(0..6) {
            0 => input.truncate(at),
            1 => input.insert(at, random.u8(..)),
            // The numbers that lengths and counts go wrong with.
            2 => input
                .splice(at..at, random.choice([[0xFF; 4], [0; 4], [0x7F; 4]]).unwrap())
                .for_each(drop),
            3 => input.extend_from_within(at..),
            4 if at < input.len() => input[at] = random.u8(..),
            _ if at < input.len() => input[at] = random.choice([0, 1, 0xFF]).unwrap(),
            _ => {}
        }
    }
    input
}

fn noise(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = random.usize(0..200);
    let mut input: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
    if let Some(first) = input.first_mut() {
        *first = random.choice(KINDS.iter().copied()).unwrap();
    }
    input
}

/// It is one test, because it counts what the whole process allocates.
#[test]
fn no_input_makes_it_panic_or_take_more_memory_than_it_is_worth() {
    let valid = valid();
    for (message, in_stream) in &valid {
        assert!(try_out(message.clone(), *in_stream), "{message:?}");
    }
    let mut understood = 0;
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..INPUTS_PER_SEED {
            let (input, in_stream) = match random.u8(0..5) {
                0 => (noise(&mut random), random.bool()),
                _ => {
                    let (message, in_stream) = random.choice(&valid).unwrap();
                    (mutated(&mut random, message.clone()), *in_stream ^ (random.u8(0..20) == 0))
                }
            };
            understood += usize::from(try_out(input, in_stream));
        }
    }
    // Not all of it is refused at the first byte.
    assert!(understood > INPUTS_PER_SEED / 2, "{understood}");
}
