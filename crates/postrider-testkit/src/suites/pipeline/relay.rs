//! Runs a pipeline over a route: to its end, until it is stopped, or until it is killed.

use std::cell::RefCell;
use std::time::Duration;

use postrider_relay::pipeline::{Options, Pipeline, PipelineError, Retry, Status, Totals, Window};
use postrider_relay::shutdown::{ShutdownHandle, shutdown};
use postrider_relay::source::SourceErrorKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Route;
use super::faults::Faults;
use crate::suites::source::PIPELINE;
use crate::suites::waiting::{until, within};

/// Options that make a case short: quick retries, a small window.
pub(super) fn options() -> Options {
    Options {
        retry: Retry {
            attempts: 3,
            initial: Duration::from_millis(4),
            max: Duration::from_millis(20),
        },
        window: Window { events_max: 16, ..Window::default() },
        ..Options::default()
    }
}

/// How a relay ended.
#[derive(Debug)]
pub(super) enum Ended {
    Killed,
    Drained(Totals),
}

/// A pipeline that runs.
pub(super) struct Running {
    pub(super) stop: ShutdownHandle,
    pub(super) status: watch::Receiver<Status>,
    task: JoinHandle<Result<Totals, PipelineError>>,
}

impl Route {
    pub(super) async fn pipeline(&self, faults: &Faults, options: Options) -> Pipeline {
        // A relay that was killed while it wrote may hold either end a moment longer.
        let connecting = async {
            let (source, sink) = (RefCell::new(None), RefCell::new(None));
            until("the source is connected", || async {
                match self.outbox.connect(Default::default()).await {
                    Ok(connected) => source.replace(Some(connected)).is_none(),
                    Err(error) if error.kind == SourceErrorKind::Held => false,
                    Err(error) => panic!("the outbox cannot be read: {}", error.details()),
                }
            })
            .await;
            until("the sink is connected", || async {
                sink.replace(self.target.connect().await.ok());
                sink.borrow().is_some()
            })
            .await;
            let (source, sink) = (source.into_inner(), sink.into_inner());
            (source.expect("it is connected"), sink.expect("it is connected"))
        };
        let (source, sink) = within("connecting", connecting).await;
        let (source, sink) = (faults.over_source(source), faults.over_sink(sink));
        let options = Options { encoding: self.target.encoding(), ..options };
        Pipeline::new(PIPELINE, source, sink, options)
    }

    /// Starts a relay that runs until it is stopped.
    pub(super) async fn start(&self, faults: &Faults, options: Options) -> Running {
        let pipeline = self.pipeline(faults, options).await;
        let (stop, stopped) = shutdown();
        Running { stop, status: pipeline.status(), task: tokio::spawn(pipeline.run(stopped)) }
    }

    /// Runs a relay until nothing is pending, or until its fuse is burnt.
    pub(super) async fn run(&self, faults: &Faults, options: Options) -> Ended {
        let options = Options { drain: true, ..options };
        let pipeline = self.pipeline(faults, options).await;
        let (_stop, stopped) = shutdown();
        let running = async {
            tokio::select! {
                biased;
                () = faults.burnt() => Ended::Killed,
                result = pipeline.run(stopped) => match result {
                    Ok(totals) => Ended::Drained(totals),
                    Err(error) => panic!("the pipeline failed: {error}"),
                },
            }
        };
        within("a relay that drains", running).await
    }

    /// Runs a relay until nothing is pending.
    pub(super) async fn drain(&self, faults: &Faults) -> Totals {
        match self.run(faults, options()).await {
            Ended::Drained(totals) => totals,
            Ended::Killed => panic!("the relay was killed"),
        }
    }

    /// Waits until so many messages have arrived.
    pub(super) async fn until_arrived(&self, count: usize) {
        let what = format!("{count} messages arrive");
        until(&what, || async { self.target.arrivals().await.len() >= count }).await;
    }
}

impl Running {
    /// A pipeline that was started.
    pub(super) fn of(
        stop: ShutdownHandle,
        status: watch::Receiver<Status>,
        task: JoinHandle<Result<Totals, PipelineError>>,
    ) -> Self {
        Self { stop, status, task }
    }

    /// Waits for a status.
    pub(super) async fn until(&mut self, what: &str, is: impl FnMut(&Status) -> bool) {
        let seen = within(what, self.status.wait_for(is)).await;
        drop(seen.expect("the pipeline runs"));
    }

    /// Whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// How it ends after a stop, or by itself.
    pub(super) async fn end(self) -> Result<Totals, PipelineError> {
        let ended = within("the pipeline ends", self.task).await;
        ended.expect("the pipeline does not panic")
    }

    /// Stops it in an orderly way.
    pub(super) async fn stopped(self) -> Totals {
        self.stop.stop();
        self.end().await.expect("the pipeline ends well")
    }

    /// Kills it wherever it is.
    pub(super) async fn killed(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
