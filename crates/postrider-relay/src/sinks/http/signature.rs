//! The signature of Standard Webhooks 1.0, by which a receiver knows who has sent a request.
//!
//! `webhook-signature` holds one `v1,<base64>` for each secret, so that a receiver goes on
//! accepting requests while secrets are exchanged. What is signed is `id.timestamp.body`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::sinks::Secret;

const SECRET_PREFIX: &str = "whsec_";
/// Shortest secret that Standard Webhooks allows, decoded.
const SECRET_BYTES_MIN: usize = 24;

/// Signs requests with one or more secrets.
#[derive(Clone)]
pub(super) struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

impl Signer {
    /// Reads secrets of the form `whsec_<base64>`; says what is wrong with the first bad one.
    pub(super) fn new(secrets: &[Secret]) -> Result<Self, &'static str> {
        let keys = secrets.iter().map(key).collect::<Result<_, _>>()?;
        Ok(Self { keys })
    }

    /// The value of `webhook-signature`; `None` without a secret.
    pub(super) fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> Option<String> {
        let sign = |key: &Hmac<Sha256>| {
            let mut mac = key.clone();
            for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
                mac.update(part);
            }
            format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
        };
        let signatures: Vec<_> = self.keys.iter().map(sign).collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.keys.len())
    }
}

fn key(secret: &Secret) -> Result<Hmac<Sha256>, &'static str> {
    let encoded = secret.expose().strip_prefix(SECRET_PREFIX).ok_or("must start with whsec_")?;
    let bytes = BASE64.decode(encoded).map_err(|_| "must be base64 after whsec_")?;
    if bytes.len() < SECRET_BYTES_MIN {
        return Err("must hold at least 24 bytes");
    }
    Ok(Hmac::new_from_slice(&bytes).expect("HMAC takes keys of any length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks reference libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn sign(secrets: &[&str]) -> Option<String> {
        let secrets: Vec<_> = secrets.iter().copied().map(Secret::new).collect();
        let signer = Signer::new(&secrets).unwrap();
        signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b"{\"test\": 2432232314}")
    }

    #[test]
    fn the_signature_is_that_of_the_reference_libraries() {
        assert_eq!(sign(&[SECRET]).unwrap(), SIGNATURE);
    }

    #[test]
    fn each_secret_signs() {
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let signatures = sign(&[other, SECRET]).unwrap();
        let signatures: Vec<_> = signatures.split(' ').collect();
        assert_eq!(signatures.len(), 2);
        assert!(signatures[0].starts_with("v1,") && signatures[0] != SIGNATURE);
        assert_eq!(signatures[1], SIGNATURE);
        assert_eq!(sign(&[]), None);
    }

    #[test]
    fn a_bad_secret_is_explained_but_not_shown() {
        let problem = |secret: &str| Signer::new(&[Secret::new(secret)]).unwrap_err();
        assert_eq!(problem("abc"), "must start with whsec_");
        assert_eq!(problem("whsec_***"), "must be base64 after whsec_");
        assert_eq!(problem("whsec_AAAA"), "must hold at least 24 bytes");
    }
}
