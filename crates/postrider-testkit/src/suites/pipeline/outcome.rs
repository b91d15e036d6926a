//! What has come of the events of a route.

use std::collections::BTreeMap;

use postrider_relay::admin::{DeadLetter, PipelineStatus, Selection};

use super::Route;
use crate::history::{History, Place};
use crate::suites::numbered::number;

impl Route {
    /// What arrived, by number, in order.
    pub(super) async fn arrived(&self) -> Vec<u32> {
        let arrivals = self.target.arrivals().await;
        arrivals.iter().map(|arrival| number(arrival.id)).collect()
    }

    /// Checks that the events of [`spread`](crate::suites::numbered::spread) arrived, in order
    /// per key, that duplicates are the same and not too many; except those that an operator
    /// has.
    pub(super) async fn check(
        &self,
        keys: u32,
        committed: impl IntoIterator<Item = u32>,
        with_operator: &[u32],
        duplicates_allowed: usize,
    ) {
        let mut history = History::default();
        history.duplicates_allowed = duplicates_allowed;
        for number in committed {
            let place = Place { key: u64::from(number % keys), number: Some(number.into()) };
            history.committed(number.into(), place);
        }
        for number in with_operator {
            history.left_with_operator((*number).into());
        }
        let mut seen = BTreeMap::new();
        for arrival in self.target.arrivals().await {
            history.arrived(number(arrival.id).into());
            let contents = (arrival.event_type, arrival.key, arrival.topic, arrival.body);
            let first = seen.entry(arrival.id).or_insert_with(|| contents.clone());
            assert_eq!(*first, contents, "a duplicate has other contents");
        }
        let wrong: Vec<_> = history.check().iter().map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// How many events may arrive twice when so many were under way at kills.
    pub(super) fn repeated(&self, under_way: usize) -> usize {
        if self.target.capabilities().exactly_once { 0 } else { under_way }
    }

    pub(super) async fn letters(&self) -> Vec<DeadLetter> {
        let admin = self.outbox.admin().await;
        let letters = admin.dead_letters(&Selection::default(), None, 1000).await;
        letters.expect("dead letters can be listed")
    }

    /// The numbers of the dead letters.
    pub(super) async fn parked(&self) -> Vec<u32> {
        let letters = self.letters().await;
        let number_of =
            |letter: &DeadLetter| number(letter.event_id.parse().expect("an id is a UUID"));
        letters.iter().map(number_of).collect()
    }

    pub(super) async fn status(&self) -> PipelineStatus {
        let status = self.outbox.admin().await.status().await;
        status.expect("the status can be read").pipelines.remove(0)
    }

    /// Gives every dead letter another chance.
    pub(super) async fn retry(&self) -> u64 {
        let admin = self.outbox.admin().await;
        let retried = admin.retry(&Selection::default()).await;
        retried.expect("dead letters can be retried")
    }
}
