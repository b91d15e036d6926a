//! Whether a request comes from somebody who knows the secret, by Standard Webhooks 1.0.
//!
//! What is signed is `id.timestamp.body`: the body, the header `webhook-id` and the time of
//! sending. All other headers are not. Whoever sees a request can send it again with other ones,
//! within the tolerance, but not under another id, so it stays a duplicate.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// How far the time of sending may be from the time of arrival.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);
/// The largest body that is read.
pub const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The least rate at which a body has to come, in bytes a second.
pub const BODY_RATE_MIN: u32 = 16 * 1024;

const SECRET_PREFIX: &str = "whsec_";
/// Shortest secret that Standard Webhooks allows, decoded.
const SECRET_BYTES_MIN: usize = 24;
/// Most signatures of a request that are looked at.
const SIGNATURES_MAX: usize = 32;
/// Length of a signature of the version `v1`, decoded.
const SIGNATURE_BYTES: usize = 32;

const WEBHOOK_ID: &str = "webhook-id";
const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
const WEBHOOK_SIGNATURE: &str = "webhook-signature";

/// Verifies requests by one or more secrets. Cheap to clone.
#[derive(Clone)]
pub struct Verifier {
    keys: Arc<[Hmac<Sha256>]>,
    tolerance: Duration,
    pub(super) body_bytes_max: usize,
    pub(super) body_rate_min: u32,
}

/// What a request says of itself, before anybody has looked at its body.
pub(super) struct Signed<'h> {
    pub(super) id: &'h str,
    pub(super) sent_at: SystemTime,
    timestamp: &'h str,
    /// Those that could be right, by their form.
    signatures: Vec<[u8; SIGNATURE_BYTES]>,
}

impl Verifier {
    /// Takes secrets of the form `whsec_<base64>`, at least one. A request is genuine by any of
    /// them, so that secrets can be exchanged: add the new one here, then change the sender, then
    /// remove the old one.
    ///
    /// ```
    /// # fn main() -> Result<(), postrider_consumer::webhooks::BadSecret> {
    /// use postrider_consumer::webhooks::Verifier;
    ///
    /// let verifier = Verifier::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the first bad secret; it is not shown.
    pub fn new<T: AsRef<str>>(secrets: impl IntoIterator<Item = T>) -> Result<Self, BadSecret> {
        let keys = secrets.into_iter().map(|secret| key(secret.as_ref()));
        let keys: Arc<[_]> = keys.collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(BadSecret::None);
        }
        Ok(Self {
            keys,
            tolerance: TOLERANCE,
            body_bytes_max: BODY_BYTES_MAX,
            body_rate_min: BODY_RATE_MIN,
        })
    }

    /// How far the time of sending may be from the time of arrival, in both directions. Defaults
    /// to 5 minutes.
    #[must_use]
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The largest body that is read. Defaults to 2 MiB, which has room for each event in each of
    /// the relay's formats.
    #[must_use]
    pub fn body_bytes_max(mut self, bytes: usize) -> Self {
        self.body_bytes_max = bytes;
        self
    }

    /// The least rate at which a body has to come, in bytes a second, once it has had two seconds;
    /// or a tenth of a second, while others wait for its slot. Whatever the rate, a body has ten
    /// seconds. Defaults to 16 KiB; 0 is no rate.
    #[must_use]
    pub fn body_rate_min(mut self, bytes_per_second: u32) -> Self {
        self.body_rate_min = bytes_per_second;
        self
    }

    /// Verifies a request that somebody else has read. The body is as it came.
    ///
    /// # Errors
    ///
    /// Why it is not genuine, without secrets.
    pub fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), NotGenuine> {
        self.verify_body(&self.verify_head(headers, now)?, body)
    }

    /// What can be found out before the body is read.
    pub(super) fn verify_head<'h>(
        &self,
        headers: &'h HeaderMap,
        now: SystemTime,
    ) -> Result<Signed<'h>, NotGenuine> {
        let text = |header| {
            let value = headers.get(header).and_then(|value| value.to_str().ok());
            value.filter(|text| !text.is_empty()).ok_or(NotGenuine::NoHeader { header })
        };
        let id = text(WEBHOOK_ID)?;
        let timestamp = text(WEBHOOK_TIMESTAMP)?;
        let signatures = text(WEBHOOK_SIGNATURE)?;
        let seconds: u64 = timestamp.parse().map_err(|_| NotGenuine::BadTimestamp)?;
        let since_1970 = Duration::from_secs(seconds);
        let sent_at = SystemTime::UNIX_EPOCH.checked_add(since_1970);
        let sent_at = sent_at.ok_or(NotGenuine::BadTimestamp)?;
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // The timestamp has no fractions, so the clock may not have them either.
        let now = Duration::from_secs(now.as_secs());
        if now.saturating_sub(since_1970) > self.tolerance {
            return Err(NotGenuine::Old);
        }
        if since_1970.saturating_sub(now) > self.tolerance {
            return Err(NotGenuine::Early);
        }
        let signatures = signatures.split(' ').filter_map(|one| one.strip_prefix("v1,"));
        let signatures = signatures.take(SIGNATURES_MAX).filter_map(signature).collect();
        let signed = Signed { id, sent_at, timestamp, signatures };
        if signed.signatures.is_empty() { Err(NotGenuine::BadSignature) } else { Ok(signed) }
    }

    /// Whether one of the signatures is made by one of the secrets.
    pub(super) fn verify_body(&self, signed: &Signed<'_>, body: &[u8]) -> Result<(), NotGenuine> {
        let is_by = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            for part in [signed.id.as_bytes(), b".", signed.timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            // It takes the same time, wherever the first difference is.
            signed.signatures.iter().any(|one| mac.clone().verify_slice(one).is_ok())
        };
        if self.keys.iter().any(is_by) { Ok(()) } else { Err(NotGenuine::BadSignature) }
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("secrets", &self.keys.len())
            .field("tolerance", &self.tolerance)
            .field("body_bytes_max", &self.body_bytes_max)
            .field("body_rate_min", &self.body_rate_min)
            .finish()
    }
}

/// The bytes of a signature, if it has the form of one.
fn signature(encoded: &str) -> Option<[u8; SIGNATURE_BYTES]> {
    BASE64.decode(encoded).ok()?.try_into().ok()
}

fn key(secret: &str) -> Result<Hmac<Sha256>, BadSecret> {
    let encoded = secret.strip_prefix(SECRET_PREFIX).ok_or(BadSecret::Prefix)?;
    let bytes = BASE64.decode(encoded).map_err(|_| BadSecret::Base64)?;
    if bytes.len() < SECRET_BYTES_MIN {
        return Err(BadSecret::Short);
    }
    Ok(Hmac::new_from_slice(&bytes).expect("HMAC takes keys of any length"))
}

/// Why a secret cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSecret {
    /// There is none.
    #[error("there is no secret; give the one that the sender signs with")]
    None,
    /// It has another form.
    #[error("a secret must start with whsec_")]
    Prefix,
    /// It is not encoded.
    #[error("a secret must be base64 after whsec_")]
    Base64,
    /// It could be guessed.
    #[error("a secret must hold at least {SECRET_BYTES_MIN} bytes")]
    Short,
}

/// Why a request is not from whom it should be from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGenuine {
    /// A header is missing.
    #[error("the header {header} is missing; the sender must sign its requests")]
    NoHeader {
        /// Its name.
        header: &'static str,
    },
    /// The time of sending is none.
    #[error("webhook-timestamp is no number of seconds since 1970")]
    BadTimestamp,
    /// It was sent too long ago.
    #[error("webhook-timestamp is too old; send it anew, and compare the clocks")]
    Old,
    /// It will be sent some day.
    #[error("webhook-timestamp is in the future; compare the clocks")]
    Early,
    /// It was signed by somebody else, or changed on its way.
    #[error(
        "no signature of webhook-signature fits; sender and receiver need the same secret, and \
         the body must arrive as it was sent"
    )]
    BadSignature,
    /// The event has an id that nobody has signed.
    #[error("the event has another id than webhook-id, which is the one that is signed")]
    OtherId,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks reference libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    const SENT: u64 = 1_614_265_330;
    const BODY: &[u8] = b"{\"test\": 2432232314}";

    fn verify(
        secrets: &[&str],
        timestamp: &str,
        signature: &str,
        now: u64,
    ) -> Result<(), NotGenuine> {
        let headers = [
            (WEBHOOK_ID, "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            (WEBHOOK_TIMESTAMP, timestamp),
            (WEBHOOK_SIGNATURE, signature),
        ];
        let headers = headers.into_iter().filter(|(_, value)| !value.is_empty());
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        Verifier::new(secrets).unwrap().verify(&HeaderMap::from_iter(headers), BODY, now)
    }

    #[test]
    fn the_signature_of_the_reference_libraries_is_genuine_by_any_secret() {
        let sent = &SENT.to_string();
        for secrets in [&[SECRET][..], &[OTHER, SECRET], &[SECRET, OTHER]] {
            assert_eq!(verify(secrets, sent, SIGNATURE, SENT), Ok(()));
        }
        assert_eq!(verify(&[OTHER], sent, SIGNATURE, SENT), Err(NotGenuine::BadSignature));
    }

    #[test]
    fn one_of_several_signatures_is_enough() {
        let sent = &SENT.to_string();
        let several = format!("v1a,{} v1,AAAA v1,*** v1 {SIGNATURE}", &SIGNATURE[3..]);
        assert_eq!(verify(&[SECRET], sent, &several, SENT), Ok(()));
        for signature in ["v1,", "v1,AAAA", &SIGNATURE[3..], &several[..30], "v1a,AAAA"] {
            let verified = verify(&[SECRET], sent, signature, SENT);
            assert_eq!(verified, Err(NotGenuine::BadSignature), "{signature}");
        }
        let many = format!("{} {SIGNATURE}", "v1,AAAA ".repeat(SIGNATURES_MAX).trim_end());
        assert_eq!(verify(&[SECRET], sent, &many, SENT), Err(NotGenuine::BadSignature));
    }

    #[test]
    fn the_time_has_a_tolerance_in_both_directions() {
        let sent = &SENT.to_string();
        for now in [SENT - 300, SENT + 300] {
            assert_eq!(verify(&[SECRET], sent, SIGNATURE, now), Ok(()));
        }
        for (now, expected) in
            [(SENT + 301, NotGenuine::Old), (SENT - 301, NotGenuine::Early), (0, NotGenuine::Early)]
        {
            assert_eq!(verify(&[SECRET], sent, SIGNATURE, now), Err(expected));
        }
        // The time is signed as well.
        let later = &(SENT + 1).to_string();
        assert_eq!(verify(&[SECRET], later, SIGNATURE, SENT), Err(NotGenuine::BadSignature));
        for bad in ["yesterday", "-1", "1e9", "99999999999999999999", "18446744073709551615"] {
            assert!(verify(&[SECRET], bad, SIGNATURE, SENT).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |header| Err(NotGenuine::NoHeader { header });
        assert_eq!(verify(&[SECRET], "", SIGNATURE, SENT), missing(WEBHOOK_TIMESTAMP));
        assert_eq!(verify(&[SECRET], "1614265330", "", SENT), missing(WEBHOOK_SIGNATURE));
    }

    #[test]
    fn a_bad_secret_is_explained_and_a_good_one_not_shown() {
        let problem = |secrets: &[&str]| Verifier::new(secrets).unwrap_err();
        assert_eq!(problem(&[]), BadSecret::None);
        assert_eq!(problem(&[SECRET, "abc"]), BadSecret::Prefix);
        assert_eq!(problem(&["whsec_***"]), BadSecret::Base64);
        assert_eq!(problem(&["whsec_AAAA"]).to_string(), "a secret must hold at least 24 bytes");
        let shown = format!("{:?}", Verifier::new([SECRET]).unwrap());
        assert!(!shown.contains("MfKQ"), "{shown}");
        assert!(shown.starts_with("Verifier { secrets: 1, tolerance: 300s, "), "{shown}");
    }
}
