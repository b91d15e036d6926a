//! Several claims at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};

use postrider::Claim;
use postrider::Claim::{Duplicate, First};
use uuid::Uuid;

use super::{Connector, claim_count, in_transaction, on_thread};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::within;
use crate::suites::writer::{Capabilities, End, Subject};

const WORKERS: usize = 4;
const BATCHES: usize = 12;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_batch_answers_in_order),
        case!(an_empty_batch_claims_nothing),
        case!(a_large_batch_is_claimed),
        case!(batches_that_overlap_claim_each_event_once),
    ]
}

fn new_ids(count: usize) -> Vec<Uuid> {
    (0..count).map(|_| Uuid::now_v7()).collect()
}

/// G-08.
async fn a_batch_answers_in_order(database: Subject) {
    let mut client = database.client().await;
    let ids = new_ids(3);
    let (a, b, c) = (ids[0], ids[1], ids[2]);
    let batches = [
        (End::Rollback, vec![c, a, c], vec![First, First, Duplicate]),
        (End::Commit, vec![c, a, c, c], vec![First, First, Duplicate, Duplicate]),
        (End::Commit, vec![b, a, c, b], vec![First, Duplicate, Duplicate, Duplicate]),
        (End::Commit, vec![a, b, c], vec![Duplicate; 3]),
    ];
    for (end, batch, expected) in batches {
        assert_eq!(in_transaction!(client, end, once_all("billing", &batch)), expected);
    }
    assert_eq!(in_transaction!(client, End::Commit, once("billing", b)), Duplicate);
    let others = in_transaction!(client, End::Commit, once_all("shipping", &ids));
    assert_eq!(others, [First; 3]);
    assert_eq!(claim_count(&database).await, 6);
}

async fn an_empty_batch_claims_nothing(database: Subject) {
    let mut client = database.client().await;
    assert_eq!(in_transaction!(client, End::Commit, once_all("billing", &[])), []);
    assert_eq!(claim_count(&database).await, 0);
}

async fn a_large_batch_is_claimed(database: Subject) {
    let mut client = database.client().await;
    let ids = new_ids(5_000);
    for expected in [First, Duplicate] {
        let claims = in_transaction!(client, End::Commit, once_all("billing", &ids));
        assert_eq!(claims, vec![expected; ids.len()]);
    }
}

/// G-08: however they overlap and in whatever order they name the events, nobody waits in a
/// circle.
async fn batches_that_overlap_claim_each_event_once(database: Subject) {
    let (ids, start) = (Arc::new(new_ids(60)), Arc::new(Barrier::new(WORKERS)));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (ids, start) = (Arc::clone(&ids), Arc::clone(&start));
            on_thread(&database, async move |connect| {
                start.wait();
                claim_batches(&connect, &ids, worker as u64).await
            })
        })
        .collect();
    let mut firsts: BTreeMap<Uuid, u32> = ids.iter().map(|id| (*id, 0)).collect();
    for worker in workers {
        let claims = within("a worker is done", worker).await.expect("no worker has failed");
        for (id, claim) in claims {
            *firsts.entry(id).or_default() += u32::from(claim == First);
        }
    }
    assert!(firsts.values().all(|count| *count == 1), "{firsts:?}");
    assert_eq!(claim_count(&database).await, 60);
}

/// Claims batches in an order of its own, and gives back what was committed.
async fn claim_batches(connect: &Connector, ids: &[Uuid], seed: u64) -> Vec<(Uuid, Claim)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut client = connect().await;
    let mut committed = Vec::new();
    for batch in 0..BATCHES {
        let mut batch: Vec<Uuid> = match batch {
            // All of them in the end, so that none is left out.
            _ if batch == BATCHES - 1 => ids.to_vec(),
            _ => random.choose_multiple(ids.iter().copied(), 30),
        };
        random.shuffle(&mut batch);
        let end = if random.u8(..4) == 0 { End::Rollback } else { End::Commit };
        let end = if batch.len() == ids.len() { End::Commit } else { end };
        let claims = in_transaction!(client, end, once_all("billing", &batch));
        if end == End::Commit {
            committed.extend(batch.into_iter().zip(claims));
        }
    }
    committed
}
