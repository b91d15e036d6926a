//! What can be written in a URL, and that a password never shows.

use std::time::Duration;

use tokio_postgres::config::{Config, Host, SslMode, SslNegotiation};

use super::*;
use crate::sources::postgres::tls::Roots;

fn parse(url: &str) -> Location {
    Location::parse(url).unwrap_or_else(|err| panic!("{url}: {err}"))
}

fn configs(url: &str) -> Vec<Config> {
    parse(url).configs("postrider test").unwrap()
}

fn config(url: &str) -> Config {
    configs(url).remove(0)
}

#[test]
fn a_url_names_servers_a_database_and_a_user() {
    let config = config("postgres://us%65r:p%40ss%2Fw:rd%25@db.example:5433/my%2Fapp");
    assert_eq!(config.get_hosts(), [Host::Tcp("db.example".to_owned())]);
    assert_eq!(config.get_ports(), [5433]);
    assert_eq!(config.get_user(), Some("user"));
    assert_eq!(config.get_password(), Some(&b"p@ss/w:rd%"[..]));
    assert_eq!(config.get_dbname(), Some("my/app"));
    assert_eq!(config.get_application_name(), Some("postrider test"));
    assert_eq!(config.get_ssl_mode(), SslMode::Require);
    assert_eq!(parse("postgresql://host/app").database(), "app");
}

#[test]
fn each_form_is_shown_without_secrets_and_parameters() {
    let cases = [
        ("postgres://user:canary@host/app", "postgres://user@host/app"),
        ("postgresql://host:5432/app?sslmode=disable", "postgres://host/app"),
        ("postgres://host/app?password=canary&user=me", "postgres://me@host/app"),
        ("postgres://user:can%40ary@host:6432/a%20b", "postgres://user@host:6432/a%20b"),
        ("postgres://u@[::1]:5433/app", "postgres://u@[::1]:5433/app"),
        ("postgres://u@one:1,two,[::2]/app", "postgres://u@one:1,two,[::2]/app"),
        ("postgres://u@/app?host=/run/postgresql", "postgres://u@%2Frun%2Fpostgresql/app"),
        ("postgres://%2Frun%2Fpostgresql:6/app", "postgres://%2Frun%2Fpostgresql:6/app"),
        ("postgres:///app?hostaddr=10.0.0.1", "postgres://10.0.0.1/app"),
        ("postgres://u@wrong/wrong?host=a,b&port=1,2&dbname=app", "postgres://u@a:1,b:2/app"),
        ("postgres://a,b/app?port=7", "postgres://a:7,b:7/app"),
    ];
    for (url, shown) in cases {
        let location = parse(url);
        assert_eq!(location.to_string(), shown, "{url}");
        assert_eq!(format!("{location:?}"), format!("Location({shown})"));
        assert_eq!(parse(shown).to_string(), shown);
    }
}

#[test]
fn what_could_be_taken_for_something_else_is_refused_and_never_quoted() {
    let cases = [
        ("mysql://u:canary@host/app", "does not begin with postgres://"),
        ("postgres:canary", "does not begin with postgres://"),
        ("host=x password=canary", "does not begin with postgres://"),
        ("postgres://u:canary@x@host/app", "is not escaped"),
        ("postgres://u:12/canary@host/app", "is not escaped"),
        ("postgres://u:canary/x@host/app", "is not escaped"),
        ("postgres://u:12?canary=x@host/app", "is not escaped"),
        ("postgres://u:12?canary@host/app", "is not escaped"),
        ("postgres://u:canary%zz@host/app", "is not escaped"),
        ("postgres://u:canary%0@host/app", "is not escaped"),
        ("postgres://u:canary%00@host/app", "is not escaped"),
        ("postgres://u:canary%ff@host/app", "is not escaped"),
        ("postgres://host:canary/app", "a port in the URL is not a number from 1 to 65535"),
        ("postgres://host:0/app", "a port in the URL is not a number from 1 to 65535"),
        ("postgres://u:canary@/app", "names no host"),
        ("postgres://u:canary@host,/app", "names no host"),
        ("postgres://[::1canary/app", "names no host"),
        ("postgres://[::1]canary/app", "names no host"),
        ("postgres://u:canary@host", "names no database"),
        ("postgres://u:canary@host/?sslmode=require", "names no database"),
        ("postgres://a,b,c/app?port=1,2", "has not as many ports as hosts"),
        ("postgres://a,b/app?hostaddr=10.0.0.1", "has not as many addresses as hosts"),
        ("postgres://h/app?hostaddr=canary", "hostaddr in the URL is not a numeric address"),
        ("postgres://h/app?sslmode=canary", "sslmode in the URL is not disable, prefer"),
        ("postgres://h/app?sslmode=allow", "sslmode in the URL is not disable, prefer"),
        ("postgres://h/app?sslmode", "sslmode in the URL has no value"),
        ("postgres://h/app?sslmode=verify-ca", "needs sslrootcert=<file>"),
        ("postgres://h/app?sslrootcert=system&sslmode=require", "write sslmode=verify-full"),
        ("postgres://h/app?sslcert=canary", "needs sslkey=<file> beside it"),
        ("postgres://h/app?sslkey=canary", "needs sslcert=<file> beside it"),
        ("postgres://[::1]/app?sslnegotiation=direct", "needs sslmode=require or a stronger one"),
        ("postgres://h/app?sslnegotiation=canary", "is not postgres or direct"),
        ("postgres://h/app?target_session_attrs=standby", "a relay needs the primary"),
        ("postgres://h/app?channel_binding=canary", "is not disable, prefer or require"),
        ("postgres://h/app?connect_timeout=0", "is not a number of seconds from 1 to 600"),
        ("postgres://h/app?connect_timeout=601", "is not a number of seconds from 1 to 600"),
        ("postgres://h/app?keepalives=canary", "is not 0 or 1"),
        ("postgres://h/app?keepalives_idle=-1", "is not a whole number"),
        ("postgres://h/app?sslmod=canary", "did you mean sslmode?"),
        ("postgres://h/app?pgbouncer=canary", "these are known: application_name, "),
        ("postgres://h/app?schema=canary", "write options=-csearch_path"),
        ("postgres://h/app?ssl=canary", "write sslmode"),
    ];
    for (url, expected) in cases {
        let err = Location::parse(url).unwrap_err();
        assert!(err.to_string().contains(expected), "{url}: {err}");
        assert!(!format!("{err} {err:?}").contains("canary"), "{url}: {err:?}");
    }
}

#[test]
fn several_servers_are_tried_each_with_the_whole_of_the_rest() {
    let configs = configs("postgres://u:p@one:1,two:2/app?options=-csearch_path%3Dapp");
    assert_eq!(configs.len(), 2);
    for (config, (host, port)) in configs.iter().zip([("one", 1), ("two", 2)]) {
        assert_eq!(config.get_hosts(), [Host::Tcp(host.to_owned())]);
        assert_eq!(config.get_ports(), [port]);
        assert_eq!(config.get_options(), Some("-csearch_path=app"));
        assert_eq!(config.get_password(), Some(&b"p"[..]));
    }
    let both = config("postgres://name/app?hostaddr=10.0.0.1");
    assert_eq!(both.get_hosts(), [Host::Tcp("name".to_owned())]);
    assert_eq!(both.get_hostaddrs(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn silence_is_noticed_by_default() {
    let seconds = Duration::from_secs;
    let config_of = |parameters: &str| config(&format!("postgres://h/app?{parameters}"));
    let default = config_of("");
    assert!(default.get_keepalives());
    assert_eq!(default.get_keepalives_idle(), seconds(10));
    assert_eq!(default.get_keepalives_interval(), Some(seconds(5)));
    assert_eq!(default.get_keepalives_retries(), Some(3));
    assert_eq!(default.get_tcp_user_timeout(), Some(&seconds(15)));
    assert_eq!(parse("postgres://h/app").connect_timeout(), seconds(10));

    let other = config_of(
        "keepalives_idle=60&keepalives_interval=7&keepalives_count=2&tcp_user_timeout=1500",
    );
    assert_eq!(other.get_keepalives_idle(), seconds(60));
    assert_eq!(other.get_keepalives_interval(), Some(seconds(7)));
    assert_eq!(other.get_keepalives_retries(), Some(2));
    assert_eq!(other.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
    assert_eq!(parse("postgres://h/app?connect_timeout=3").connect_timeout(), seconds(3));

    let system = config_of("keepalives_interval=0&keepalives_count=0&tcp_user_timeout=0");
    assert_eq!(system.get_keepalives_interval(), None);
    assert_eq!(system.get_keepalives_retries(), None);
    assert_eq!(system.get_tcp_user_timeout(), None);
    assert!(!config_of("keepalives=0").get_keepalives());
}

#[test]
fn encryption_is_what_sslmode_says() {
    let modes = [
        ("sslmode=disable", SslMode::Disable, TlsMode::Disable),
        ("sslmode=prefer", SslMode::Prefer, TlsMode::Prefer),
        ("sslmode=require", SslMode::Require, TlsMode::Require),
        ("sslmode=verify-ca&sslrootcert=r", SslMode::Require, TlsMode::VerifyCa),
        ("sslmode=verify-full", SslMode::Require, TlsMode::VerifyFull),
        ("sslrootcert=system", SslMode::Require, TlsMode::VerifyFull),
        ("sslrootcert=r", SslMode::Require, TlsMode::VerifyFull),
        ("", SslMode::Require, TlsMode::VerifyFull),
    ];
    for (parameters, asked, checked) in modes {
        let url = format!("postgres://h/app?{parameters}");
        assert_eq!(config(&url).get_ssl_mode(), asked, "{url}");
        assert_eq!(parse(&url).tls().mode, checked, "{url}");
    }
    // There is no TLS on a socket, and nobody to hide from.
    let socket = config("postgres:///app?host=/run&sslmode=verify-full");
    assert_eq!(socket.get_ssl_mode(), SslMode::Disable);

    let full = parse(
        "postgres://h/app?sslmode=require&sslcert=c&sslkey=k&sslrootcert=r&sslnegotiation=direct",
    );
    assert_eq!(full.tls().identity, Some(("c".into(), "k".into())));
    assert_eq!(full.tls().roots, Some(Roots::File("r".into())));
    assert_eq!(full.configs("x").unwrap()[0].get_ssl_negotiation(), SslNegotiation::Direct);
}

/// Whoever stands in for a server on another machine gets no password, unless the URL allows it.
#[test]
fn a_server_on_another_machine_is_verified_unless_the_url_says_otherwise() {
    for url in [
        "postgres://u@localhost/app",
        "postgres://u@LOCALHOST:1,127.0.0.1:2,127.8.9.10/app",
        "postgres://u@[::1]/app",
        "postgres:///app?host=/run/postgresql",
        "postgres://db.example/app?hostaddr=127.0.0.1",
        "postgres://localhost/app?sslrootcert=r",
    ] {
        assert_eq!(parse(url).tls().mode, TlsMode::Prefer, "{url}");
    }
    for url in [
        "postgres://u@db.example/app",
        "postgres://u@10.0.0.1/app",
        "postgres://u@[::2]/app",
        "postgres://u@localhost.example/app",
        "postgres://u@localhost,db.example/app",
        "postgres://localhost/app?hostaddr=10.0.0.1",
        "postgres:///app?host=/run/postgresql,db.example",
        "postgres://db.example/app?sslrootcert=r",
        "postgres://u@0.0.0.0/app",
    ] {
        assert_eq!(parse(url).tls().mode, TlsMode::VerifyFull, "{url}");
    }
}

/// A server that could be somebody else is not told the password, nor a hash that is as good.
#[test]
fn passwords_go_to_servers_that_are_verified_or_on_this_machine() {
    let auth = |url: &str| parse(url).servers("x").unwrap()[0].auth;
    let (all, safe) = (AuthMethods::ALL, !(AuthMethods::MD5 | AuthMethods::PASSWORD));
    for (url, encrypted, plain) in [
        ("postgres://h/app", all, safe),
        ("postgres://h/app?sslmode=verify-ca&sslrootcert=r", all, safe),
        ("postgres://h/app?sslmode=require&sslrootcert=r", all, safe),
        ("postgres://h/app?sslmode=prefer&sslrootcert=r", all, safe),
        ("postgres://h/app?sslmode=require", safe, safe),
        ("postgres://h/app?sslmode=prefer", safe, safe),
        ("postgres://h/app?sslmode=disable", safe, safe),
        ("postgres://localhost/app?hostaddr=10.0.0.1&sslmode=disable", safe, safe),
        ("postgres://localhost/app", all, all),
        ("postgres://127.0.0.1/app?sslmode=disable", all, all),
        ("postgres:///app?host=/run/postgresql", all, all),
    ] {
        assert_eq!(auth(url), AuthPolicy { encrypted, plain }, "{url}");
    }
    // Of several servers, only those that are on this machine.
    let several = parse("postgres://localhost,h/app?sslmode=disable").servers("x").unwrap();
    assert_eq!((several[0].auth.plain, several[1].auth.plain), (all, safe));

    let (md5, scram) = (AuthMethods::MD5, AuthMethods::SCRAM_SHA_256);
    for (list, remote, local) in [
        ("md5", md5, md5),
        ("scram-sha-256,md5", md5 | scram, md5 | scram),
        ("scram-sha-256", scram, scram),
        ("!none", safe & !AuthMethods::NONE, !AuthMethods::NONE),
        ("!md5,!password", safe, safe),
    ] {
        let plain = |host: &str| {
            auth(&format!("postgres://{host}/app?sslmode=disable&require_auth={list}")).plain
        };
        assert_eq!((plain("h"), plain("localhost")), (remote, local), "{list}");
    }
    for list in ["scram", "md5,!password", "!md5,password", "md5,md5", "md5,", ",", "!"] {
        let refused = Location::parse(&format!("postgres://h/app?require_auth={list}"));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("require_auth in the URL is not a list of"), "{refused}");
    }
}

#[test]
fn a_password_is_read_from_its_file_at_every_connect() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pgpass");
    let url = format!("postgres://me@one:1,two:2,%2Frun/app?passfile={}", file.display());
    let location = parse(&url);
    assert!(location.configs("x").is_err(), "there is no such file");

    for password in ["first", "second"] {
        let text = format!("two:2:app:me:{password}\nlocalhost:*:*:*:socket\n");
        std::fs::write(&file, text).unwrap();
        let passwords: Vec<_> = location
            .configs("x")
            .unwrap()
            .iter()
            .map(|config| config.get_password().map(<[u8]>::to_vec))
            .collect();
        assert_eq!(passwords, [None, Some(password.into()), Some("socket".into())]);
    }
    // One in the URL comes first, and then there need not be a file.
    let both = config("postgres://me:here@one/app?passfile=/does/not/exist");
    assert_eq!(both.get_password(), Some(&b"here"[..]));
}

/// Every parameter has a row, and to write its default is to write nothing.
#[test]
fn the_documentation_knows_every_parameter_and_its_default() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (_, section) = docs.split_once("\n### The URL of PostgreSQL\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<(&str, &str)> =
        rows.map(|row| row.split_once("` |").expect("a row names one parameter")).collect();
    let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, parameters::NAMES);
    let url = "postgres://host/app";
    for (name, row) in rows {
        let default = row.split('|').next().unwrap().trim().trim_matches('`');
        if !default.is_empty() {
            assert_eq!(parse(&format!("{url}?{name}={default}")), parse(url), "{name}");
        }
    }
}

#[test]
fn a_search_path_comes_behind_the_options_of_the_url() {
    let options = |url: &str| {
        let location = Location::parse(url).unwrap().with_search_path("other");
        location.configs("test").unwrap()[0].get_options().map(str::to_owned)
    };
    assert_eq!(options("postgres://h/d").as_deref(), Some("-csearch_path=other"));
    let both = options("postgres://h/d?options=-csearch_path%3Dapp");
    assert_eq!(
        both.as_deref(),
        Some("-csearch_path=app -csearch_path=other"),
        "the last one counts"
    );
}
