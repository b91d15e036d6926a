//! What a pipeline must do with real parts at both ends, while everything goes wrong.
//!
//! A [`Route`] is an outbox joined to a target. Between the pipeline and these stand
//! [faults](faults): a sink that fails as told, and a fuse that stops everything at the n-th
//! call, after which the relay is dropped as if it had been killed.

mod faults;
mod flow;
mod hang_ups;
mod kills;
mod outcome;
mod pauses;
mod poison;
mod refusals;
mod relay;
mod stops;
mod trouble;

use super::{Backend, Case, Clock, sink, source};

/// Where events come from and where they go, made for one case.
pub struct Route {
    /// Where they come from.
    pub outbox: source::Subject,
    /// Where they go.
    pub target: sink::Subject,
}

/// Makes routes: some cases need many.
pub struct Routes {
    outboxes: Backend<source::Subject, source::OutboxCapabilities>,
    targets: Backend<sink::Subject, sink::TargetCapabilities>,
}

impl Routes {
    async fn fresh(&self) -> Route {
        Route { outbox: self.outboxes.fresh().await, target: self.targets.fresh().await }
    }
}

/// What both ends can do.
#[derive(Clone, Copy, Debug)]
pub struct RouteCapabilities {
    /// What the outbox can do.
    pub outbox: source::OutboxCapabilities,
    /// What the target can do.
    pub target: sink::TargetCapabilities,
}

/// What a case is tried on.
pub type Subject = Routes;

/// Joins an outbox to a target.
pub fn backend(
    outboxes: Backend<source::Subject, source::OutboxCapabilities>,
    targets: Backend<sink::Subject, sink::TargetCapabilities>,
) -> Backend<Subject, RouteCapabilities> {
    let name = format!("{}_to_{}", outboxes.name, targets.name);
    let capabilities =
        RouteCapabilities { outbox: outboxes.capabilities, target: targets.capabilities };
    let clock = match (outboxes.clock, targets.clock) {
        (Clock::Virtual, Clock::Virtual) => Clock::Virtual,
        _ => Clock::Real,
    };
    Backend::new(name, capabilities, clock, move || {
        let routes = Routes { outboxes: outboxes.clone(), targets: targets.clone() };
        async { routes }
    })
}

/// Every case.
pub fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    let mut cases = flow::cases();
    cases.extend(kills::cases());
    cases.extend(trouble::cases());
    cases.extend(poison::cases());
    cases.extend(refusals::cases());
    cases.extend(stops::cases());
    cases
}

/// Cases about connections that are closed, which no outbox has a part in.
pub fn hang_up_cases() -> Vec<Case<Subject, RouteCapabilities>> {
    hang_ups::cases()
}

/// Cases about what an operator stops, which no sink has a part in.
pub fn pause_cases() -> Vec<Case<Subject, RouteCapabilities>> {
    pauses::cases()
}
