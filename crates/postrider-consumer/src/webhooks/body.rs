//! Reads a body that anybody may have sent: no larger than it may be, and not slowly.
//!
//! A body has `GRACE` to get going. Afterwards it must have come at the least rate, on average.
//! While others wait for the slot of a body that is behind, it has `GRACE_WHEN_WANTED` alone: a
//! genuine sender has its body ready, and does not notice.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::refusal::Refusal;
use super::verifier::Verifier;

/// Longest time in which a body has to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// So long the rate does not matter.
const GRACE: Duration = Duration::from_secs(2);
/// So long it does not matter if others wait.
const GRACE_WHEN_WANTED: Duration = Duration::from_millis(100);
/// A body that is announced with so many bytes or fewer needs no slot: the connection has a buffer
/// of this size anyway.
const SMALL_BYTES: u64 = 16 * 1024;

/// Most bytes of a body that is too large which are read, so that its sender gets to read the
/// answer: one that cannot be sent to its end takes the connection for broken.
const DISCARD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Whether the body is known to be small.
pub(super) fn is_small(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|bytes| bytes <= SMALL_BYTES)
}

/// Refuses a body that is announced as too large.
pub(super) fn check_size(verifier: &Verifier, body: &Body) -> Result<(), Refusal> {
    let bytes_max = verifier.body_bytes_max;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max { Err(Refusal::TooLarge { bytes_max }) } else { Ok(()) }
}

/// Reads what nobody needs, a while.
pub(super) async fn discard(mut body: Body) {
    if body.size_hint().lower() <= DISCARD_BYTES_MAX {
        let read = async { while let Some(Ok(_)) = body.frame().await {} };
        // The answer does not depend on it.
        let _ = timeout(GRACE, read).await;
    }
}

/// Reads a body to its end. `is_wanted` says whether others wait until it is done.
pub(super) async fn read(
    verifier: &Verifier,
    mut body: Body,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Bytes, Refusal> {
    check_size(verifier, &body)?;
    let bytes_max = verifier.body_bytes_max;
    let began = Instant::now();
    let mut check_at = began + GRACE_WHEN_WANTED;
    // What was announced may never come: memory is taken as it comes.
    let mut read = BytesMut::new();
    loop {
        tokio::select! {
            frame = body.frame() => match frame {
                None => return Ok(read.freeze()),
                Some(Err(_)) => return Err(Refusal::BrokenOff),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if read.len() + data.len() > bytes_max {
                        return Err(Refusal::TooLarge { bytes_max });
                    }
                    read.extend_from_slice(&data);
                }
            },
            () = sleep_until(check_at) => {
                let age = began.elapsed();
                if age >= BODY_TIMEOUT {
                    return Err(Refusal::TooSlow { timeout: BODY_TIMEOUT });
                }
                if is_behind(age, read.len(), verifier.body_rate_min, is_wanted()) {
                    return Err(Refusal::Dripping { bytes_per_second: verifier.body_rate_min });
                }
                check_at = Instant::now() + GRACE_WHEN_WANTED;
            }
        }
    }
}

/// Whether a body of this age has come too slowly so far.
fn is_behind(age: Duration, bytes: usize, rate_min: u32, is_wanted: bool) -> bool {
    let grace = if is_wanted { GRACE_WHEN_WANTED } else { GRACE };
    let expected = u128::from(rate_min) * age.as_millis() / 1000;
    age >= grace && (bytes as u128) < expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_behind_after_its_grace_below_the_rate() {
        let behind = |millis, bytes, is_wanted| {
            is_behind(Duration::from_millis(millis), bytes, 1000, is_wanted)
        };
        for (millis, bytes, alone, wanted) in [
            (99, 0, false, false),
            (100, 0, false, true),
            (100, 99, false, true),
            (100, 100, false, false),
            (1999, 0, false, true),
            (2000, 1999, true, true),
            (2000, 2000, false, false),
            (9000, 8999, true, true),
        ] {
            assert_eq!(
                (behind(millis, bytes, false), behind(millis, bytes, true)),
                (alone, wanted),
                "{bytes} bytes after {millis} ms"
            );
        }
        assert!(!is_behind(Duration::from_secs(9), 0, 0, true), "a rate of 0 is none");
    }
}
