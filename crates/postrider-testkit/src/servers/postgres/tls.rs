//! What PostgreSQL is told about TLS.

use crate::servers::certificates::Certificates;

/// How clients prove themselves. Connections without TLS are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// By a certificate of the authority, for the user's name.
    Certificate,
    /// By the password.
    Password,
}

impl Tls {
    /// What `pg_hba.conf` is.
    pub(super) fn rules(self) -> &'static str {
        match self {
            Self::Certificate => "hostssl all all 127.0.0.1/32 cert\n",
            Self::Password => "hostssl all all 127.0.0.1/32 scram-sha-256\n",
        }
    }
}

/// Lines of `postgresql.conf`.
pub(super) fn settings(certificates: &Certificates) -> String {
    let files = [
        ("ssl_ca_file", &certificates.authority),
        ("ssl_cert_file", &certificates.server),
        ("ssl_key_file", &certificates.server_key),
    ];
    let lines = files.map(|(name, path)| format!("{name} = '{}'\n", path.display()));
    format!("ssl = on\n{}", lines.concat())
}
