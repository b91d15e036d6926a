//! Requests that are turned away, and the answers that they get.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::verifier::NotGenuine;
use crate::decoding::Undecodable;
use crate::processor::told;

/// Why a request is turned away. As a response it says so, in a line of text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It is not from whom it should be from: 401.
    #[error(transparent)]
    NotGenuine(#[from] NotGenuine),
    /// Its body is too large: 413.
    #[error("the body has more than {bytes_max} bytes")]
    TooLarge {
        /// The largest that is read.
        bytes_max: usize,
    },
    /// Its body takes too long: 408.
    #[error("the body did not arrive within {timeout:?}")]
    TooSlow {
        /// The longest time for it.
        timeout: Duration,
    },
    /// Its body comes too slowly: 408.
    #[error("the body comes with less than {bytes_per_second} bytes a second")]
    Dripping {
        /// The least rate.
        bytes_per_second: u32,
    },
    /// Its body does not come to an end: 400.
    #[error("the body broke off")]
    BrokenOff,
    /// A fact about the event is no text: 400.
    #[error("the header {name} is no text in UTF-8, percent-encoded or not")]
    BadHeader {
        /// Which one.
        name: String,
    },
    /// It carries no event: 400.
    #[error("the request carries no event")]
    NoEvent(#[from] Undecodable),
}

impl Refusal {
    /// The status that it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotGenuine(_) => StatusCode::UNAUTHORIZED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Dripping { .. } | Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff | Self::BadHeader { .. } | Self::NoEvent(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status(), told(&self) + "\n").into_response()
    }
}
