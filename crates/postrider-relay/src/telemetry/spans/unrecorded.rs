//! Without the feature `opentelemetry`: no spans, and no cost.

use crate::failure::SinkError;
use crate::routing::Template;
use crate::sink::{Message, SinkCapabilities};

/// Makes no spans.
#[derive(Debug)]
pub(crate) struct Spans;

impl Spans {
    pub(crate) fn new(_: &str, _: &SinkCapabilities, _: &Template, _: Option<&str>) -> Self {
        Self
    }

    /// Begins nothing.
    pub(crate) fn send(&self, _: &[Message]) -> SendSpan {
        SendSpan
    }
}

/// No span.
#[derive(Debug)]
pub(crate) struct SendSpan;

impl SendSpan {
    /// The span of a call that was not made.
    pub(crate) fn none() -> Self {
        Self
    }

    /// Makes a call.
    pub(crate) async fn around<T>(&self, call: impl Future<Output = T>) -> T {
        call.await
    }

    /// Notes nothing.
    pub(crate) fn answered(&mut self, _: &[Result<(), SinkError>]) -> Option<()> {
        None
    }
}
