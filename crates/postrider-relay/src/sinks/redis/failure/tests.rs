use super::*;

fn server() -> Server {
    Server { host: "h".to_owned(), port: 6379 }
}

#[test]
fn each_code_has_its_kind() {
    use FailureKind::{Misconfigured, Throttled, Unavailable};
    for (said, kind, advice) in [
        ("OOM command not allowed when used memory > 'maxmemory'.", Throttled, "raise maxmemory"),
        ("LOADING Redis is loading the dataset in memory", Unavailable, "loading"),
        ("BUSY Redis is busy running a script.", Unavailable, "SCRIPT KILL"),
        ("READONLY You can't write against a read only replica.", Unavailable, "new primary"),
        ("MASTERDOWN Link with MASTER is down", Unavailable, "new primary"),
        ("MISCONF Redis is configured to save RDB snapshots", Unavailable, "its log says why"),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable, "min-replicas-to-write"),
        ("CLUSTERDOWN Hash slot not served", Unavailable, "not served"),
        ("MOVED 1 127.0.0.1:7001", Misconfigured, "which is not supported"),
        ("CROSSSLOT Keys in request don't hash", Misconfigured, "which is not supported"),
        ("NOAUTH Authentication required.", Misconfigured, "set username and password"),
        ("WRONGPASS invalid username-password pair", Misconfigured, "check username"),
        ("NOPERM User x has no permissions", Misconfigured, "ACL SETUSER"),
        ("ERR The user executing the script can't run this command", Misconfigured, "ACL SETUSER"),
        ("DENIED Redis is running in protected mode", Misconfigured, "protected mode"),
        ("WRONGTYPE Operation against a key", Misconfigured, "`redis-cli TYPE s` says what"),
        ("NOSTREAM", Misconfigured, "`redis-cli XGROUP CREATE s GROUP 0 MKSTREAM`"),
        ("ERR max number of clients reached", Unavailable, "raise maxclients"),
        ("ERR The stream has exhausted the last possible ID", Misconfigured, "exhausted"),
        ("ERR DB index is out of range", Misconfigured, "DB index is out of range"),
        ("ERR unknown command 'EVAL', with args beginning with: 'canary'", Misconfigured, "6.2"),
        ("ERR Protocol error: invalid bulk length", Misconfigured, "event_bytes_max"),
        ("WHATEVER it is", Unavailable, "answered WHATEVER; it is"),
    ] {
        let error = unusable(&server(), "s", said);
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains(advice), "{error}");
        assert!(error.message.contains("h:6379"), "{error}");
        assert!(!error.message.contains("canary"), "{error}");
        let of_stream = ["NOPERM", "ERR DB", "ERR The ", "WRONGTYPE", "NOSTREAM"];
        let is_of_stream = of_stream.iter().any(|code| said.starts_with(code));
        assert_eq!(error.about_topic, is_of_stream, "{error}");
    }
}

#[test]
fn a_command_can_be_pasted_whatever_the_name_is() {
    let error = missing(&server(), "it's $HOME");
    assert!(error.message.contains(r"XGROUP CREATE 'it'\''s $HOME' GROUP"), "{error}");
}

#[test]
fn a_connection_that_fails_names_the_first_cause() {
    let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
    let error = unreachable(&server(), &refused);
    assert_eq!(error.kind, FailureKind::Unavailable);
    assert_eq!(error.message, "no connection to h:6379: connection refused");
    let bad = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    let error = unreachable(&server(), &std::io::Error::other(bad));
    assert_eq!(error.kind, FailureKind::Misconfigured);
    assert!(error.message.contains("ca_file"), "{error}");
}
