use super::support::postgres::{Postgres, Session};
use super::{Found, doctor};

/// Checks that look at the whole server are not to be told apart from those of other tests.
fn examine(postgres: &Postgres, args: &[&str]) -> Found {
    doctor(&postgres.fixture, &[args, &["--from", &postgres.url]].concat())
}

fn migrated() -> Postgres {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    postgres
}

/// A role of the test, that may log in and has no other right; and the URL to do so.
fn login(postgres: &Postgres) -> (String, String) {
    let role = format!("{}_login", postgres.schema);
    postgres.execute(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'pass'; GRANT USAGE ON SCHEMA {} TO {role}",
        postgres.schema
    ));
    let (_, host) = postgres.url.split_once('@').unwrap();
    let url = format!("postgres://{role}:pass@{host}");
    (role, url)
}

/// A configuration whose pipeline is named as the schema, and reads the log.
fn write_config(postgres: &Postgres) {
    let Postgres { fixture, schema, url } = postgres;
    fixture.write(
        "p.toml",
        format!(
            "[source]\nurl = \"{url}\"\n[[pipeline]]\nname = \"{schema}\"\nmode = \"cdc\"\n\
             progress = \"cursor\"\nsink = {{ url = \"file:out.jsonl\" }}\n"
        ),
    );
}

#[test]
fn a_fresh_outbox_is_well() {
    let postgres = migrated();
    let found = examine(&postgres, &[]);
    for check in [
        "connection",
        "primary",
        "fsync",
        "synchronous-commit",
        "timeouts",
        "connections",
        "encryption",
        "clock",
        "pooler",
        "schema",
        "schema-drift",
        "table",
        "rights",
        "replicated",
        "indexes",
        "plans",
        "autovacuum",
        "dead-rows",
        "table-size",
        "sequence",
        "wraparound",
        "log",
        "pipeline",
    ] {
        found.is(check, "ok");
    }
    assert!(found.is("superuser", "warn").contains("is a superuser"));
    assert!(found.checks.len() >= 28, "{}", found.ran.stdout);
    assert!(!found.ran.stdout.contains("postrider:postrider"), "{}", found.ran.stdout);
}

#[test]
fn what_is_not_migrated_is_migrated() {
    let postgres = Postgres::new();
    let found = examine(&postgres, &[]);
    assert_eq!(found.is("schema", "fail"), "outbox has no tables: 5 to apply");
    found.is("table", "fail");
    found.is("rights", "skip");
    found.is("fsync", "ok");
    let mended = examine(&postgres, &["--fix"]);
    mended.is("schema", "ok");
    mended.is("pipeline", "ok");
}

#[test]
fn nobody_there_is_one_finding() {
    let postgres = Postgres::new();
    let found = doctor(&postgres.fixture, &["--from", "postgres://nobody@127.0.0.1:1/shop"]);
    assert!(found.is("connection", "fail").contains("127.0.0.1"));
    found.is("database", "skip");
    assert_eq!(found.checks.len(), 2);
}

#[test]
fn indexes_are_made_again() {
    let postgres = migrated();
    postgres.execute("DROP INDEX outbox_unpublished, outbox_xid");
    let found = examine(&postgres, &[]);
    let missing = found.all("indexes");
    assert_eq!(missing.len(), 2, "{}", found.ran.stdout);
    assert!(found.is("plans", "fail").contains("Seq Scan on outbox"));
    assert!(found.is("schema-drift", "warn").contains("outbox_unpublished is missing"));
    postgres.execute(missing[0]["fix"].as_str().unwrap());
    assert_eq!(examine(&postgres, &[]).all("indexes")[0]["level"], "fail", "one is left");
    let mended = examine(&postgres, &["--fix"]);
    for check in ["indexes", "plans", "schema-drift"] {
        mended.is(check, "ok");
    }

    postgres.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_xid'::regclass",
    );
    let found = examine(&postgres, &[]);
    assert!(found.is("indexes", "fail").contains("outbox_xid is not valid"));
    postgres.execute(found.sql("indexes"));
    examine(&postgres, &[]).is("indexes", "ok");
}

#[test]
fn rights_are_granted_by_what_it_prints() {
    let postgres = migrated();
    let (role, url) = login(&postgres);
    let schema = &postgres.schema;
    let by_role = |args: &[&str]| doctor(&postgres.fixture, &[args, &["--from", &url]].concat());
    // Without a look at the table nothing can be said of it.
    by_role(&[]).is("table", "fail");
    let denied = postgres.fixture.run(&["status", "--from", &url]).assert_code(5);
    denied.assert_talk(&["may not read outbox", "more: postrider explain not_permitted"]);
    postgres.execute(&format!("GRANT SELECT ON outbox TO {role}"));
    let found = by_role(&[]);
    found.is("superuser", "ok");
    let lacking = found.all("rights");
    assert!(lacking.len() >= 5, "{}", found.ran.stdout);
    let sql: Vec<&str> = lacking.iter().map(|found| found["fix"].as_str().unwrap()).collect();
    let of_outbox = format!("GRANT UPDATE (published_at) ON {schema}.outbox TO {role}");
    assert!(sql.contains(&of_outbox.as_str()), "{sql:?}");
    // What needs more rights says which ones.
    assert!(found.sql("schema-drift").starts_with("GRANT CREATE ON DATABASE "));
    found.is("schema-drift", "skip");
    assert_eq!(found.sql("transactions"), format!("GRANT pg_monitor TO {role}"));
    found.is("transactions", "skip");
    found.is("pipeline", "fail");
    postgres.execute(&sql.join(";"));
    let found = by_role(&[]);
    found.is("rights", "ok");
    found.is("least-privilege", "ok");
    found.is("pipeline", "ok");
    postgres.execute(&format!("GRANT pg_monitor TO {role}"));
    assert_ne!(by_role(&[]).all("transactions")[0]["level"], "skip");

    postgres.execute(&format!("REVOKE UPDATE, DELETE ON outbox_leases FROM {role}"));
    let found = by_role(&[]);
    assert_eq!(
        found.sql("rights"),
        format!("GRANT UPDATE, DELETE ON {schema}.outbox_leases TO {role}")
    );
}

#[test]
fn a_relay_that_may_do_more_than_it_needs_is_named() {
    let postgres = migrated();
    let (role, url) = login(&postgres);
    let schema = &postgres.schema;
    postgres.execute(&format!(
        "CREATE TABLE orders (id int); CREATE TABLE customers (id int);
         GRANT SELECT ON outbox, customers TO {role}"
    ));
    let by_role = || doctor(&postgres.fixture, &["--from", &url]);
    by_role().is("least-privilege", "ok");
    postgres.execute(&format!("GRANT UPDATE ON orders TO {role}"));
    let found = by_role();
    let expected =
        format!("may change 1 table that a relay never touches, such as {schema}.orders");
    assert!(found.is("least-privilege", "warn").contains(&expected), "{}", found.ran.stdout);
    postgres.execute(&format!(
        "REVOKE UPDATE ON orders FROM {role}; ALTER TABLE outbox OWNER TO {role}"
    ));
    let found = by_role();
    assert!(found.is("least-privilege", "warn").contains("owns outbox"), "{}", found.ran.stdout);
    let fix = found.one("least-privilege")["fix"].as_str().unwrap();
    assert!(fix.starts_with("postrider migrate roles --from "), "{fix}");
    postgres.execute("ALTER TABLE outbox OWNER TO current_user");
}

#[test]
fn the_writer_has_its_rights() {
    let postgres = migrated();
    let writer = format!("{}_app", postgres.schema);
    let args = ["--writer", writer.as_str()];
    assert!(examine(&postgres, &args).is("writer-rights", "fail").contains("there is no role"));
    postgres.execute(&format!("CREATE ROLE {writer}"));
    let found = examine(&postgres, &args);
    let sql = found.all("writer-rights").into_iter().map(|found| found["fix"].as_str().unwrap());
    let sql: Vec<&str> = sql.collect();
    assert!(sql[0].starts_with("GRANT USAGE ON SCHEMA "), "{sql:?}");
    postgres.execute(&sql.join(";"));
    examine(&postgres, &args).is("writer-rights", "ok");
    postgres.execute(&format!(
        "SET ROLE {writer}; SELECT outbox_publish('Order', '1', 'OrderPaid', '{{}}'::jsonb);
         RESET ROLE"
    ));
    // More than it needs: to keep events of others from taking effect.
    let schema = &postgres.schema;
    postgres.execute(&format!("GRANT INSERT (consumer, event_id) ON inbox TO {writer}"));
    let found = examine(&postgres, &args);
    let said = found.is("writer-rights", "warn");
    assert!(said.contains(&format!("may write {schema}.inbox: it can claim events")), "{said}");
    assert_eq!(found.sql("writer-rights"), format!("REVOKE ALL ON {schema}.inbox FROM {writer}"));
    postgres.execute(found.sql("writer-rights"));
    postgres.execute(&format!("GRANT SELECT (id) ON outbox TO {writer}"));
    let found = examine(&postgres, &args);
    assert!(found.is("writer-rights", "warn").contains("may read outbox"), "{}", found.ran.stdout);
    postgres.execute(found.sql("writer-rights"));
    examine(&postgres, &args).is("writer-rights", "ok");
}

#[test]
fn transactions_that_stay_open_are_named() {
    let postgres = migrated();
    let writer = postgres.session();
    writer.execute("SET application_name = 'forgetful'; BEGIN; SELECT pg_current_xact_id()");
    let named = |found: &Found| {
        let of_writer =
            |found: &&serde_json::Value| found["found"].as_str().unwrap().contains("\"forgetful\"");
        found.all("transactions").into_iter().find(of_writer).cloned()
    };
    let found = examine(&postgres, &["--open-for", "0s"]);
    let transaction = named(&found).expect("it is named");
    assert_eq!(transaction["level"], "warn");
    assert!(transaction["found"].as_str().unwrap().contains("idle in transaction"));
    let shown = found.ran.stdout.as_str();
    assert!(!shown.contains("pg_current_xact_id"), "no statement is shown: {shown}");
    assert!(named(&examine(&postgres, &["--open-for", "1h"])).is_none());
    postgres.execute(transaction["fix"].as_str().unwrap());
    assert!(named(&examine(&postgres, &["--open-for", "0s"])).is_none());
}

#[test]
fn prepared_transactions_are_named() {
    let postgres = migrated();
    let name = format!("{} it's", postgres.schema);
    let quoted = name.replace('\'', "''");
    postgres
        .execute(&format!("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '{quoted}'"));
    let found = examine(&postgres, &["--open-for", "0s"]);
    let named = |found: &Found| {
        let subject = format!("'{quoted}'");
        found.all("prepared-transactions").into_iter().any(|it| it["subject"] == subject.as_str())
    };
    let was_named = named(&found);
    postgres.execute(&format!("ROLLBACK PREPARED '{quoted}'"));
    assert!(was_named, "{}", found.ran.stdout);
    assert!(!named(&examine(&postgres, &["--open-for", "0s"])));
}

#[test]
fn tables_that_are_not_looked_after_are_named() {
    let postgres = migrated();
    postgres.execute(
        "ALTER TABLE outbox SET (autovacuum_enabled = off);
         ALTER SEQUENCE outbox_seq_seq CACHE 20;
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
           SELECT 'Order', n::text, 'OrderPaid', '{}', now() FROM generate_series(1, 20000) AS n;
         DELETE FROM outbox WHERE seq > 10;
         ANALYZE outbox",
    );
    let found = examine(&postgres, &[]);
    assert!(found.is("autovacuum", "warn").contains(".outbox"));
    assert!(found.is("sequence", "warn").contains("20 numbers at once"));
    postgres.execute(found.sql("sequence"));
    postgres.execute(found.sql("autovacuum"));
    // Statistics come a moment later, and autovacuum may have been there meanwhile.
    postgres.execute(&format!("VACUUM {}.outbox", postgres.schema));
    let found = examine(&postgres, &[]);
    for check in ["autovacuum", "sequence", "dead-rows"] {
        found.is(check, "ok");
    }
}

#[test]
fn settings_of_the_role_are_looked_at() {
    let postgres = migrated();
    let (role, url) = login(&postgres);
    postgres.execute(&format!(
        "ALTER ROLE {role} SET statement_timeout = '2s'; ALTER ROLE {role} SET synchronous_commit = off;
         ALTER ROLE {role} CONNECTION LIMIT 6"
    ));
    let others = [(); 3].map(|()| Session::new(&url));
    let by_role = || doctor(&postgres.fixture, &["--from", &url]);
    let found = by_role();
    assert!(found.is("timeouts", "warn").contains("statement_timeout of this role is 2000 ms"));
    assert!(found.is("synchronous-commit", "warn").contains("can lose commits"));
    assert!(found.is("connections", "warn").contains("connections of the role are free"));
    for check in ["timeouts", "synchronous-commit", "connections"] {
        postgres.execute(found.sql(check));
    }
    drop(others);
    let found = by_role();
    for check in ["timeouts", "synchronous-commit", "connections"] {
        found.is(check, "ok");
    }
}

#[test]
fn what_the_log_needs_is_looked_at() {
    let postgres = migrated();
    write_config(&postgres);
    let examine =
        |args: &[&str]| doctor(&postgres.fixture, &[args, &["--config", "p.toml"]].concat());
    let found = examine(&[]);
    for check in ["wal-level", "replication-slots", "wal-senders", "replication-right", "log"] {
        found.is(check, "ok");
    }
    assert!(found.is("publication", "ok").contains("made by the first relay"));
    found.is("slot-wal-limit", "warn");

    let run = |args: &[&str]| postgres.fixture.run(&[args, &["--config", "p.toml"]].concat());
    run(&["slot", "create"]).assert_code(0);
    assert!(examine(&[]).is("publication", "ok").contains("has the table"));
    let publication = format!("postrider_{}_outbox_", postgres.schema);
    postgres.execute(&format!(
        "DO $$ BEGIN EXECUTE (SELECT format('ALTER PUBLICATION %I DROP TABLE outbox', pubname)
           FROM pg_publication WHERE starts_with(pubname, '{publication}')); END $$"
    ));
    let found = examine(&[]);
    assert!(found.is("publication", "fail").contains("does not have the table"));
    assert!(found.sql("publication").contains(" ADD TABLE "));
    let pipeline = found.all("pipeline");
    assert!(pipeline.iter().any(|it| it["found"].as_str().unwrap().contains("slot is of no use")));
    examine(&["--fix"]).is("publication", "ok");

    // Of another pipeline it is one that nobody reads.
    let config = postgres.fixture.read("p.toml").replace("name = \"", "name = \"other_");
    postgres.fixture.write("p.toml", config);
    let found = examine(&[]);
    let slot = format!("postrider_{}_", postgres.schema);
    let is_ours = |found: &&&serde_json::Value| {
        found["subject"].as_str().is_some_and(|it| it.starts_with(&slot))
    };
    let others = found.all("other-slots");
    let other = others.iter().find(is_ours).expect("it is named");
    let (condition, drop) = other["fix"].as_str().unwrap().split_once(", run ").unwrap();
    assert_eq!(condition, "if no other outbox of this database has it");
    postgres.execute(drop);
    assert!(!examine(&[]).all("other-slots").iter().any(|it| is_ours(&it)));
}

#[test]
fn a_role_that_may_not_read_the_log_is_named() {
    let postgres = migrated();
    let (role, url) = login(&postgres);
    postgres
        .execute(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {role}", postgres.schema));
    write_config(&postgres);
    let config = postgres.fixture.read("p.toml").replace(&postgres.url, &url);
    postgres.fixture.write("p.toml", config);
    let found = doctor(&postgres.fixture, &["--config", "p.toml"]);
    assert_eq!(found.sql("replication-right"), format!("ALTER ROLE {role} REPLICATION"));
    found.is("log", "fail");
    assert!(found.is("publication", "fail").contains("only postrider can make it"));
    postgres.execute(found.sql("replication-right"));
    postgres.execute(found.sql("publication"));
    let found = doctor(&postgres.fixture, &["--config", "p.toml"]);
    for check in ["replication-right", "log", "publication"] {
        found.is(check, "ok");
    }
}

#[test]
fn a_pooler_is_recognized() {
    let postgres = Postgres::new();
    let pooled = std::env::var("POSTRIDER_TEST_PGBOUNCER").expect("tests are run with cargo");
    let found = doctor(&postgres.fixture, &["--from", &pooled]);
    assert!(found.is("pooler", "ok").contains("fine for polling"));
}

#[test]
fn an_expired_lease_is_left_to_the_relays() {
    let postgres = migrated();
    let drain = ["relay", "--from", &postgres.url, "--to", "file:out.jsonl", "--drain"];
    postgres.fixture.run(&drain).assert_code(0);
    postgres.execute(
        "UPDATE outbox_leases SET owner = 'gone', expires_at = now() - interval '1 hour';
         INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
           VALUES ('Order', '1', 'OrderPaid', '{}', now() - interval '1 hour')",
    );
    let found = examine(&postgres, &["--fix"]);
    let pipeline = found.all("pipeline");
    let codes: Vec<&str> = pipeline.iter().map(|it| it["level"].as_str().unwrap()).collect();
    assert_eq!(codes, ["fail", "fail", "fail"], "{}", found.ran.stdout);
    assert!(pipeline[0]["found"].as_str().unwrap().contains("gone let it expire"));
    assert!(found.ran.stdout.contains("\"mended\":[]"), "{}", found.ran.stdout);
    assert_eq!(examine(&postgres, &[]).all("pipeline").len(), 3);
    postgres.fixture.run(&drain).assert_code(0);
    examine(&postgres, &[]).is("pipeline", "ok");
}
