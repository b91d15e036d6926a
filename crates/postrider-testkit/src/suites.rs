//! Conformance suites: what every backend of a kind must do, each case written once.
//!
//! A suite is a list of [`Case`]s over a contract. A backend joins it with a
//! [harness](crate::harnesses), which makes it ready for a case and declares, as data, what it
//! can do. A case that needs more than that is listed as *not run*, with the reason: nothing is
//! green by silence. Each case has a database, file or endpoint of its own, so that all of them
//! run at the same time.

pub mod broker;
#[cfg(feature = "postgres")]
pub mod consumer;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod inbox;
pub mod numbered;
pub mod pipeline;
pub mod process;
pub mod sink;
pub mod source;
mod waiting;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod writer;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use self::waiting::{CASE_DEADLINE, within_time};

/// Cases wait more than they compute, so there may be more of them than processors.
const CASES_AT_ONCE: usize = 8;

/// What a case or a harness is doing, as a future.
pub type Doing<T> = Pin<Box<dyn Future<Output = T>>>;

/// One thing that every backend must do, where `S` is what it is tried on and `C` what the
/// backend can do.
pub struct Case<S, C> {
    name: &'static str,
    run: fn(S) -> Doing<()>,
    needs: Vec<Need<C>>,
    longest: Duration,
    is_alone: bool,
}

struct Need<C> {
    is_met: fn(&C) -> bool,
    otherwise: &'static str,
}

impl<S: 'static, C> Case<S, C> {
    /// A case that every backend runs. Usually made by [`case!`](crate::case!).
    pub fn new(path: &'static str, run: fn(S) -> Doing<()>) -> Self {
        let name = path.rsplit("::").next().unwrap_or(path).trim();
        Self { name, run, needs: Vec::new(), longest: CASE_DEADLINE, is_alone: false }
    }

    /// Says what a backend must be able to do, and why the case is not run if it is not.
    #[must_use]
    pub fn needing(mut self, is_met: fn(&C) -> bool, otherwise: &'static str) -> Self {
        self.needs.push(Need { is_met, otherwise });
        self
    }

    /// Gives the case more time than others have, because it has many steps. Each of them needs
    /// a limit of its own.
    #[must_use]
    pub fn lasting(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Runs the case in a process of its own, because it measures the process.
    #[must_use]
    pub fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    /// The case on one backend, as the test runner lists it.
    fn on(self, backend: &Backend<S, C>) -> Trial {
        let name = format!("{}::{}", backend.name, self.name);
        let unmet = self.needs.iter().find(|need| !(need.is_met)(&backend.capabilities));
        if let Some(need) = unmet {
            let reason = need.otherwise;
            let refused = move || Err(Failed::from(format!("not run: {reason}")));
            return Trial::test(format!("{name} (not run: {reason})"), refused)
                .with_ignored_flag(true);
        }
        let (run, make, clock) = (self.run, Arc::clone(&backend.make), backend.clock);
        let longest = self.longest;
        let in_child = self.is_alone.then(|| name.clone());
        Trial::test(name, move || {
            if let Some(name) = in_child.filter(|_| !process::is_alone()) {
                return process::run_alone(&name).map_err(Failed::from);
            }
            let whole = async { run(make().await).await };
            clock.runtime().block_on(within_time(longest, "the end of the case", whole));
            Ok(())
        })
    }
}

/// Names a case by the path of its function.
#[macro_export]
macro_rules! case {
    ($case:path) => {
        $crate::suites::Case::new(stringify!($case), |subject| Box::pin($case(subject)))
    };
}

/// A backend that a suite is run over.
pub struct Backend<S, C> {
    name: String,
    capabilities: C,
    clock: Clock,
    make: Make<S>,
}

impl<S, C: Clone> Clone for Backend<S, C> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            capabilities: self.capabilities.clone(),
            clock: self.clock,
            make: Arc::clone(&self.make),
        }
    }
}

/// Makes a fresh backend for a case.
type Make<S> = Arc<dyn Fn() -> Doing<S> + Send + Sync>;

impl<S, C> Backend<S, C> {
    /// A backend of that name, in the list of tests, which `make` makes anew for each case.
    pub fn new<D: Future<Output = S> + 'static>(
        name: impl Into<String>,
        capabilities: C,
        clock: Clock,
        make: impl Fn() -> D + Send + Sync + 'static,
    ) -> Self {
        let make: Make<S> = Arc::new(move || Box::pin(make()));
        Self { name: name.into(), capabilities, clock, make }
    }

    /// A fresh one.
    fn fresh(&self) -> Doing<S> {
        (self.make)()
    }
}

/// Which time a case runs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The real one.
    Real,
    /// One that jumps ahead when nothing is left to do; only where nothing real is waited for.
    Virtual,
}

impl Clock {
    pub(crate) fn runtime(self) -> Runtime {
        Builder::new_current_thread()
            .enable_all()
            .start_paused(self == Self::Virtual)
            .build()
            .expect("a test can have a runtime")
    }
}

/// All cases on one backend.
pub fn trials<S: 'static, C>(cases: Vec<Case<S, C>>, backend: Backend<S, C>) -> Vec<Trial> {
    cases.into_iter().map(|case| case.on(&backend)).collect()
}

/// A backend that this build does not have, so that its absence is seen.
pub fn not_built(backend: &str, feature: &str) -> Trial {
    let name = format!("{backend} (not run: built without the feature {feature})");
    Trial::test(name, || Err(Failed::from("not built"))).with_ignored_flag(true)
}

/// Runs trials as the test runner does, by the arguments of the process.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    run_at_once(CASES_AT_ONCE, trials)
}

/// Runs trials, so many at a time.
pub fn run_at_once(count: usize, trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(count);
    libtest_mimic::run(&arguments, trials).exit_code()
}
