//! The spans of calls of a sink, by OpenTelemetry's conventions for messaging.
//!
//! Each call is one `send` span. It is the root of a trace of its own, because its events come
//! from many traces, and has a link to the context in which each of them was created: the stored
//! `traceparent`, which goes on to the consumer as it is. Whoever calls a sink makes the span; a
//! sink never does.
//!
//! What is recorded, and where it goes, is up to the tracer that the process has set. Without one,
//! or for a call that is not sampled, nothing of the events is looked at.

#[cfg(feature = "opentelemetry")]
mod recorded;
#[cfg(not(feature = "opentelemetry"))]
mod unrecorded;

#[cfg(feature = "opentelemetry")]
pub(crate) use self::recorded::{SendSpan, Spans};
#[cfg(not(feature = "opentelemetry"))]
pub(crate) use self::unrecorded::{SendSpan, Spans};
