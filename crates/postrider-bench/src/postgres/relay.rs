//! Postrider's relay, with everything as it is by default.

use postrider_relay::pipeline::{Options, Ordering, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::Sink;
use postrider_relay::sources::{Progress, SourceSpec};
use tokio::task::JoinSet;

use crate::Outcome;

/// Publishes until nothing is pending; answers how many events were delivered.
pub(super) async fn drain(url: String, progress: Progress, sink: Box<dyn Sink>) -> Outcome<u64> {
    drain_as(SourceSpec { progress, ..SourceSpec::new(url) }, sink).await
}

/// The same with several relays side by side and nothing kept in order.
pub(super) async fn drain_side_by_side(url: &str, sinks: Vec<Box<dyn Sink>>) -> Outcome<u64> {
    let mut relays = JoinSet::new();
    for (index, sink) in sinks.into_iter().enumerate() {
        let relay = format!("relay-{index}");
        let spec = SourceSpec { ordering: Ordering::None, relay, ..SourceSpec::new(url) };
        relays.spawn(drain_as(spec, sink));
    }
    relays.join_all().await.into_iter().sum::<Outcome<u64>>()
}

async fn drain_as(spec: SourceSpec, sink: Box<dyn Sink>) -> Outcome<u64> {
    let source = spec.connect().await?;
    let options = Options { drain: true, ordering: spec.ordering, ..Options::default() };
    let (_stop, shutdown) = shutdown();
    let totals = Pipeline::new("bench", source, sink, options).run(shutdown).await?;
    Ok(totals.delivered)
}
