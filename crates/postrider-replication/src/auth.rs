//! By which methods a server may be told who we are, as `require_auth` of libpq has it, and what a
//! server may ask for before it is believed.

use std::ops::{BitAnd, BitOr, Not};

use crate::reader::{Malformed, Reader};

/// The most rounds of hashing that a server may ask for. A role has 4096 unless `scram_iterations`
/// says otherwise; a million take about a second.
const SCRAM_ITERATIONS_MAX: u64 = 1_000_000;

/// Methods by which a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthMethods(u8);

impl AuthMethods {
    /// Kerberos, which is not supported.
    pub const GSS: Self = Self(1);
    /// A hash of the password, with which one can log in as well as with the password itself.
    pub const MD5: Self = Self(1 << 1);
    /// The server does not ask; it knows the client by its certificate or its address.
    pub const NONE: Self = Self(1 << 2);
    /// A token, which is not supported.
    pub const OAUTH: Self = Self(1 << 3);
    /// The password in clear text.
    pub const PASSWORD: Self = Self(1 << 4);
    /// A proof that one knows the password, which the server has to give as well.
    pub const SCRAM_SHA_256: Self = Self(1 << 5);
    /// Kerberos of Windows, which is not supported.
    pub const SSPI: Self = Self(1 << 6);
    /// All of them.
    pub const ALL: Self = Self((1 << 7) - 1);

    /// Their names in `require_auth`.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("gss", Self::GSS),
        ("md5", Self::MD5),
        ("none", Self::NONE),
        ("oauth", Self::OAUTH),
        ("password", Self::PASSWORD),
        ("scram-sha-256", Self::SCRAM_SHA_256),
        ("sspi", Self::SSPI),
    ];

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
    }

    /// Whether one of these is among them.
    pub fn has(self, methods: Self) -> bool {
        self.0 & methods.0 != 0
    }
}

impl BitAnd for AuthMethods {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for AuthMethods {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for AuthMethods {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0) & Self::ALL
    }
}

/// What a server may ask for, given what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthPolicy {
    /// If the connection is encrypted.
    pub encrypted: AuthMethods,
    /// If it is not.
    pub plain: AuthMethods,
}

impl AuthPolicy {
    /// Whatever the server asks for.
    pub const ANY: Self = Self { encrypted: AuthMethods::ALL, plain: AuthMethods::ALL };

    pub(crate) fn methods(self, is_encrypted: bool) -> AuthMethods {
        if is_encrypted { self.encrypted } else { self.plain }
    }
}

/// Why a server is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedAuth {
    /// It lets the client in without a proof, and so proves nothing itself.
    #[error("the server asked for no proof of who connects, which is not permitted")]
    Unasked,
    /// It asks for the password in clear text.
    #[error("the server asked for the password in clear text, which is not permitted")]
    Password,
    /// It asks for the MD5 hash of the password.
    #[error("the server asked for the password as an MD5 hash, which is not permitted")]
    Md5,
    /// It asks for another proof.
    #[error("the server asked for a proof by a method that is not permitted")]
    Other,
    /// It asks for so much hashing that nothing else could be done meanwhile.
    #[error("the server asked for {asked} rounds of SCRAM, the limit is {SCRAM_ITERATIONS_MAX}")]
    Iterations {
        /// For how many rounds.
        asked: u64,
    },
    /// What it asks for cannot be read.
    #[error("the server sent a malformed request for authentication")]
    Malformed,
}

impl From<Malformed> for RefusedAuth {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Follows what a server asks for during the login.
#[derive(Debug)]
pub(crate) struct AuthCheck {
    permitted: AuthMethods,
    has_asked: bool,
}

impl AuthCheck {
    pub(crate) fn new(permitted: AuthMethods) -> Self {
        Self { permitted, has_asked: false }
    }

    /// Takes the body of a request for authentication, before it is answered.
    pub(crate) fn check(&mut self, mut body: Reader) -> Result<(), RefusedAuth> {
        let (method, refused) = match body.u32()? {
            0 if self.has_asked => return Ok(()),
            0 => (AuthMethods::NONE, RefusedAuth::Unasked),
            3 => (AuthMethods::PASSWORD, RefusedAuth::Password),
            5 => (AuthMethods::MD5, RefusedAuth::Md5),
            7 => (AuthMethods::GSS, RefusedAuth::Other),
            9 => (AuthMethods::SSPI, RefusedAuth::Other),
            10 => (AuthMethods::SCRAM_SHA_256, RefusedAuth::Other),
            11 => return iterations(body.left()),
            // The last step of SCRAM; and what no client answers.
            _ => return Ok(()),
        };
        self.has_asked = true;
        self.permitted.has(method).then_some(()).ok_or(refused)
    }
}

/// Looks at how many rounds a server asks for: `r=<nonce>,s=<salt>,i=<rounds>`.
fn iterations(message: &[u8]) -> Result<(), RefusedAuth> {
    let text = std::str::from_utf8(message).map_err(|_| RefusedAuth::Malformed)?;
    for asked in text.split(',').filter_map(|attribute| attribute.strip_prefix("i=")) {
        let asked = asked.parse().unwrap_or(u64::MAX);
        if asked > SCRAM_ITERATIONS_MAX {
            return Err(RefusedAuth::Iterations { asked });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn request(code: u32, rest: &[u8]) -> Reader {
        Reader::new(Bytes::from([&code.to_be_bytes()[..], rest].concat()))
    }

    #[test]
    fn only_what_is_permitted_is_answered() {
        use RefusedAuth::{Md5, Other, Password, Unasked};
        let codes = [(0, "none", Unasked), (3, "password", Password), (5, "md5", Md5)];
        let codes = codes.into_iter().chain([(7, "gss", Other), (9, "sspi", Other)]);
        for (code, name, refused) in codes.chain([(10, "scram-sha-256", Other)]) {
            let method = AuthMethods::from_name(name).unwrap();
            assert_eq!(AuthCheck::new(method).check(request(code, b"")), Ok(()), "{name}");
            assert_eq!(AuthCheck::new(!method).check(request(code, b"")), Err(refused), "{name}");
        }
        let mut check = AuthCheck::new(AuthMethods::SCRAM_SHA_256);
        for code in [10, 11, 12, 0] {
            assert_eq!(check.check(request(code, b"")), Ok(()), "the end of a login");
        }
        assert_eq!(check.check(Reader::new(Bytes::new())), Err(RefusedAuth::Malformed));
        assert_eq!(AuthMethods::from_name("scram"), None);
    }

    #[test]
    fn a_server_cannot_ask_for_hashing_without_an_end() {
        let check = |text: &[u8]| AuthCheck::new(AuthMethods::ALL).check(request(11, text));
        assert_eq!(check(b"r=x,s=y,i=4096"), Ok(()));
        assert_eq!(check(b"r=x,s=y,i=1000000"), Ok(()));
        for (text, asked) in [
            (&b"r=x,s=y,i=1000001"[..], 1_000_001),
            (b"r=x,s=y,i=4294967295", 4_294_967_295),
            (b"r=x,s=y,i=4096,i=99999999999999999999", u64::MAX),
        ] {
            assert_eq!(check(text), Err(RefusedAuth::Iterations { asked }));
        }
        assert_eq!(check(b"\xFF"), Err(RefusedAuth::Malformed));
    }
}
