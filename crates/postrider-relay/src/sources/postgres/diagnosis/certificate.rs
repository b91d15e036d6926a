//! How long the certificate of the server is valid.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use postrider_replication::connect_sql;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use super::super::connection::{application_name, read_files};
use super::super::error::Trouble;
use super::super::tls::Seen;
use super::Exam;
use crate::amounts::age;
use crate::diagnosis::{Finding, Fix};

const CHECK: &str = "certificate";
/// So long before its end there should be another one.
const LEFT_MIN: Duration = Duration::from_secs(21 * 24 * 60 * 60);

impl Exam<'_> {
    /// Looks at the certificate that the server shows, by one more connection.
    pub(super) async fn certificate(&self) -> Result<Vec<Finding>, Trouble> {
        let seen: Seen = Arc::new(OnceLock::new());
        let location = self.location;
        let (servers, _) = read_files(location, &application_name("doctor")).await?;
        let mut tls = location.tls().connector_that_notes(Some(Arc::clone(&seen)))?;
        for server in &servers {
            // Its certificate was seen, whatever became of the connection.
            let connecting = connect_sql(&server.config, &mut tls, server.auth);
            drop(timeout(location.connect_timeout(), connecting).await);
            if seen.get().is_some() {
                break;
            }
        }
        Ok(vec![match seen.get().and_then(end) {
            Some(end) => judge(end, SystemTime::now()),
            None => Finding::skip(CHECK, "the server showed no certificate that can be read"),
        }])
    }
}

/// The end of a certificate.
fn end(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate.validity.not_after.to_system_time())
}

fn judge(end: SystemTime, now: SystemTime) -> Finding {
    let fix = || Fix::advice("renew the server's certificate, then SELECT pg_reload_conf()");
    match end.duration_since(now) {
        Ok(left) if left >= LEFT_MIN => {
            Finding::ok(CHECK, format!("the server's certificate is valid for {}", age(left)))
        }
        Ok(left) => {
            let found = format!("the server's certificate is valid for {} only", age(left));
            Finding::warn(CHECK, found).with(fix())
        }
        Err(past) => {
            let ago = age(past.duration());
            Finding::fail(CHECK, format!("the server's certificate ended {ago} ago")).with(fix())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Level;

    #[test]
    fn a_certificate_near_its_end_is_named() {
        let (now, day) = (SystemTime::UNIX_EPOCH + LEFT_MIN * 9, Duration::from_secs(86_400));
        assert_eq!(judge(now + LEFT_MIN, now).level, Level::Ok);
        assert_eq!(judge(now + day, now).level, Level::Warn);
        let ended = judge(now - day, now);
        assert_eq!(
            (ended.level, ended.found.as_str()),
            (Level::Fail, "the server's certificate ended 1d 0h ago")
        );
    }

    #[test]
    fn what_is_no_certificate_is_not_judged() {
        for bytes in [&b""[..], b"0", b"\x30\x82\xff\xff", &[0x30; 64]] {
            assert_eq!(end(&CertificateDer::from(bytes)), None);
        }
    }
}
