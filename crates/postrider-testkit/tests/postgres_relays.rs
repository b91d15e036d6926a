//! Several relays over one outbox in PostgreSQL: who reads what, who takes over, and that a relay
//! which lost its lease changes nothing any more.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod postgres_relays {
    mod behind_a_pooler;
    mod changes;
    mod chaos;
    mod deposed;
    mod pipelines;
    mod sharing;
    mod side_by_side;
}
