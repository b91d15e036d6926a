//! Old claims go.

use std::time::Duration;

use postrider::Claim;
use uuid::Uuid;

use super::{claim_count, in_transaction};
use crate::case;
use crate::suites::Case;
use crate::suites::writer::{Capabilities, End, Subject};

const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR: Duration = HOUR.saturating_mul(365 * 24);

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(only_older_claims_are_pruned),
        case!(pruning_rolls_back_with_its_transaction),
        case!(the_clock_of_the_server_says_how_old_a_claim_is)
            .needing(|can| can.has_clock, "the database has no clock but that of the host"),
    ]
}

/// Claims so many events, as if it had been long ago.
async fn claim_long_ago(database: &Subject, count: usize) -> Vec<Uuid> {
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let mut client = database.client().await;
    let _ = in_transaction!(client, End::Commit, once_all("billing", &ids));
    database.run("UPDATE inbox SET processed_at = '2001-02-03T04:05:06.000000Z'").await;
    ids
}

/// At most so many at a time, so that nobody waits long for whoever prunes.
async fn only_older_claims_are_pruned(database: Subject) {
    let old = claim_long_ago(&database, 7).await;
    let recent: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    let mut client = database.client().await;
    let _ = in_transaction!(client, End::Commit, once_all("shipping", &recent));
    for (older_than, limit, expected) in [
        (Duration::MAX, 100, 0),
        (100 * YEAR, 100, 0),
        (HOUR, 0, 0),
        (HOUR, 3, 3),
        (HOUR, 100, 4),
        (HOUR, 100, 0),
    ] {
        assert_eq!(
            in_transaction!(client, End::Commit, prune("billing", older_than, limit)),
            expected
        );
    }
    assert_eq!(claim_count(&database).await, 5);
    let again = in_transaction!(client, End::Commit, once_all("shipping", &recent));
    assert_eq!(again, [Claim::Duplicate; 5]);
    let forgotten = in_transaction!(client, End::Commit, once_all("billing", &old));
    assert_eq!(forgotten, [Claim::First; 7]);
    // Whoever keeps nothing prunes what is there, and nothing of others.
    assert_eq!(in_transaction!(client, End::Commit, prune("billing", Duration::ZERO, u32::MAX)), 7);
    assert_eq!(claim_count(&database).await, 5);
    let pruned = in_transaction!(client, End::Commit, prune("shipping", Duration::ZERO, u32::MAX));
    assert_eq!(pruned, 5);
}

async fn pruning_rolls_back_with_its_transaction(database: Subject) {
    let old = claim_long_ago(&database, 2).await;
    let mut client = database.client().await;
    assert_eq!(in_transaction!(client, End::Rollback, prune("billing", HOUR, 10)), 2);
    let again = in_transaction!(client, End::Commit, once_all("billing", &old));
    assert_eq!(again, [Claim::Duplicate; 2]);
}

/// G-08: a host whose clock is ahead must not forget what was claimed a moment ago.
async fn the_clock_of_the_server_says_how_old_a_claim_is(database: Subject) {
    let mut client = database.client().await;
    let ids = [Uuid::now_v7()];
    let _ = in_transaction!(client, End::Commit, once_all("billing", &ids));
    // A server whose clock is two hours behind that of this host.
    database
        .run(
            "CREATE FUNCTION statement_timestamp() RETURNS timestamptz LANGUAGE sql AS \
             'SELECT pg_catalog.statement_timestamp() - make_interval(hours => 2)'",
        )
        .await;
    database.run("UPDATE inbox SET processed_at = processed_at - interval '2 hours'").await;
    for (older_than, expected) in [(HOUR, 0), (Duration::ZERO, 1)] {
        let mut inbox = client.begin().await;
        let own_first = "SELECT set_config('search_path', \
                         quote_ident(current_schema()) || ', pg_catalog', true)";
        inbox.execute(own_first).await;
        let pruned = inbox.prune("billing", older_than, 10).await;
        inbox.end(End::Commit).await;
        assert_eq!(pruned.expect("claims can be pruned"), expected, "{older_than:?}");
    }
}
