//! Traces and logs for a collector of OpenTelemetry, as far as this build has it.

#[cfg(not(feature = "otlp"))]
mod none;
#[cfg(feature = "otlp")]
mod otlp;

#[cfg(not(feature = "otlp"))]
pub(crate) use self::none::Export;
#[cfg(feature = "otlp")]
pub(crate) use self::otlp::Export;
