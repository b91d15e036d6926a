//! What the configuration accepts, and everything it says about mistakes.

use std::time::Duration;

use super::*;
use crate::pipeline::{OnDead, Ordering};

const MINIMAL: &str = r#"
[source]
url = "sqlite://app.db"

[[pipeline]]
name = "orders"
sink = { url = "stdout:" }
"#;

fn parse_with(text: &str, env: &[(&str, &str)]) -> Result<Config, Problems> {
    Config::parse(text, "p.toml", &env.iter().copied().collect())
}

fn parse(text: &str) -> Config {
    parse_with(text, &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Every problem as two lines: `place: what` and `  fix: …`.
#[track_caller]
fn assert_problems(text: &str, env: &[(&str, &str)], expected: &[&str]) {
    let problems = parse_with(text, env).expect_err("this should not be accepted").to_string();
    let lines: Vec<&str> = problems.lines().collect();
    assert_eq!(lines, expected, "\n{problems}");
}

#[test]
fn little_is_needed() {
    let config = parse(MINIMAL);
    assert_eq!(config.source.url.expose(), "sqlite://app.db");
    assert_eq!(config.source.table.as_str(), "outbox");
    let pipeline = &config.pipelines[0];
    assert_eq!((pipeline.name.as_str(), pipeline.mode), ("orders", Mode::Poll));
    assert_eq!((pipeline.progress, pipeline.shards), (Progress::Mark, 1));
    assert!(pipeline.aggregate_types.is_empty());
    assert!(config.source.columns.is_empty() && config.source.hint.is_none());
    assert_eq!(config.prune, None);
    let minutes = Duration::from_secs(300);
    let reconcile = ReconcileConfig { every: minutes, older_than: minutes, publish: true };
    assert_eq!(config.reconcile, Some(reconcile), "it is on");
    let alarms = AlarmConfig { lag: minutes, dead_letters: 0, retained_wal: 5 << 30 };
    assert_eq!(config.alarms, Some(alarms), "they are on");
    assert_eq!(pipeline.options.retry, Default::default());
    assert_eq!(pipeline.options.window, Default::default());
}

#[test]
fn everything_can_be_said() {
    let config = parse(
        r#"
        [source]
        url = "sqlite://app.db"
        table = "events"
        hint = "127.0.0.1:8788"

        [prune]
        keep = "7d"
        every = "30s"
        archive = "/var/lib/app/archive"
        unmatched = true

        [reconcile]
        enabled = true
        every = "1m"
        older_than = "1h"
        publish = false

        [alarms]
        enabled = true
        lag = "30s"
        dead_letters = 10
        retained_wal = "1GiB"

        [[pipeline]]
        name = "orders"
        mode = "poll"
        progress = "cursor"
        start = "unpublished"
        ordering = "none"
        shards = 1
        on_dead = "skip"
        match = { aggregate_type = ["Order", "Invoice"] }
        window = { events = 100, bytes = "1MiB" }
        grace = "5s"
        stall_after = "2m"

        [pipeline.sink]
        url = "http://127.0.0.1:1/hook"
        topic = "shop.{event_type}"
        key = "{aggregate_type}-{aggregate_id}"
        format = "cloudevents"
        timeout = "500ms"
        headers = { tenant = "{header.tenant}" }
        allow_private = true

        [pipeline.retry]
        attempts = 3
        initial = "10ms"
        max = "1h"

        [[pipeline]]
        name = "audit"
        progress = "cursor"
        sink = { url = "file:///tmp/audit.jsonl" }
        "#,
    );
    assert_eq!(config.source.table.as_str(), "events");
    assert_eq!(config.source.hint, Some("127.0.0.1:8788".parse().unwrap()));
    let prune = config.prune.unwrap();
    assert_eq!(prune.keep, Duration::from_secs(7 * 24 * 3600));
    assert_eq!(prune.every, Duration::from_secs(30));
    assert_eq!(prune.archive.as_deref(), Some("/var/lib/app/archive".as_ref()));
    assert!(prune.unmatched);
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
    let reconcile = ReconcileConfig { every: minute, older_than: hour, publish: false };
    assert_eq!(config.reconcile, Some(reconcile));
    let alarms =
        AlarmConfig { lag: Duration::from_secs(30), dead_letters: 10, retained_wal: 1 << 30 };
    assert_eq!(config.alarms, Some(alarms));
    let orders = &config.pipelines[0];
    assert_eq!((orders.progress, orders.start), (Progress::Cursor, StartAt::Unpublished));
    assert_eq!(config.pipelines[1].start, StartAt::Oldest);
    assert_eq!(orders.aggregate_types, ["Order", "Invoice"]);
    let options = &orders.options;
    assert_eq!((options.ordering, options.on_dead), (Ordering::None, OnDead::Skip));
    assert_eq!((options.window.events_max, options.window.bytes_max), (100, 1 << 20));
    assert_eq!(options.grace, Duration::from_secs(5));
    assert_eq!(options.stall_after, Duration::from_secs(120));
    // The sink gives up first, so that the answer is its own.
    assert_eq!(options.publish_timeout, Duration::from_millis(5_500));
    assert_eq!(orders.sink.options["timeout"].as_str(), Some("500ms"));
    assert_eq!(options.retry.attempts, 3);
    assert_eq!(options.retry.initial, Duration::from_millis(10));
    assert_eq!(options.retry.max, Duration::from_secs(3600));
    assert_eq!(options.encoding.format.as_str(), "cloudevents");
    assert_eq!(options.encoding.route.headers.len(), 1);
    assert_eq!(config.pipelines[1].name, "audit");
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = r#"
[source]
urk = "sqlite://app.db"
table = 5
hint = "localhost"

[source.columns]
seq = ""
aggregate_typ = "aggregatetype"
colour = "red"

[[pipeline]]
name = "orders"
mode = "pol"
progres = "mark"
ordering = "random"
shards = 257
colour = "red"
match = { aggregate_type = [] }
window = { events = 0, bytes = "1TB" }
grace = "soon"
stall_after = 30

[pipeline.sink]
url = ""
topic = "{aggregate_typ}"

[pipeline.retry]
attempts = 0
initial = "1h"
max = "1s"

[prune]
keep = "30s"
every = "0s"
archive = ""
partitions = 3

[http]
listen = "localhost"
port = 8787
"#;
    assert_problems(
        text,
        &[],
        &[
            "p.toml:2:1: `url` is missing in [source]",
            "  fix: add url = \"sqlite:///var/lib/app/app.db\"",
            "p.toml:3:1: unknown key `urk` in [source]",
            "  fix: did you mean `url`?",
            "p.toml:4:9: `table` has to be a string, and is an integer",
            "  fix: write table = \"…\"",
            "p.toml:5:8: `hint` cannot be \"localhost\"",
            "  fix: write an IP address of this host and a port: hint = \"127.0.0.1:8788\"",
            "p.toml:8:7: `seq` is not the name of a column",
            "  fix: write the name in your table, of 1 to 63 bytes",
            "p.toml:9:1: unknown key `aggregate_typ` in [source.columns]",
            "  fix: did you mean `aggregate_type`?",
            "p.toml:10:1: unknown key `colour` in [source.columns]",
            "  fix: remove it; [source.columns] has aggregate_id, aggregate_type, content_type, \
             created_at, deliver_after, event_type, event_version, headers, id, occurred_at, \
             payload, published_at, seq, topic, xid",
            "p.toml:14:8: `mode` cannot be \"pol\"",
            "  fix: did you mean \"poll\"?",
            "p.toml:15:1: unknown key `progres` in [[pipeline]]",
            "  fix: did you mean `progress`?",
            "p.toml:16:12: `ordering` cannot be \"random\"",
            "  fix: use one of \"key\", \"none\"",
            "p.toml:17:10: `shards` cannot be 257",
            "  fix: use 1 to 256",
            "p.toml:18:1: unknown key `colour` in [[pipeline]]",
            "  fix: remove it; [[pipeline]] has grace, lease, match, max_retained_wal, mode, name, \
             on_dead, ordering, progress, retry, shards, sink, stall_after, start, window",
            "p.toml:19:28: `aggregate_type` is empty",
            "  fix: name at least one, or remove the key",
            "p.toml:20:21: `events` cannot be 0",
            "  fix: use 1 to 1000000",
            "p.toml:20:32: `bytes` cannot be \"1TB\"",
            "  fix: use 1KiB to 4GiB",
            "p.toml:21:9: `grace` cannot be \"soon\"",
            "  fix: write a number and ms, s, m, h or d: \"5s\"",
            "p.toml:22:15: `stall_after` has to be a duration, and is an integer",
            "  fix: write stall_after = \"5s\"",
            "p.toml:25:7: `url` in [pipeline.sink] of orders is empty",
            "  fix: write, for example, url = \"stdout:\"",
            "p.toml:26:9: `topic` is not a template: unknown field `aggregate_typ` at byte 1, did \
             you mean `aggregate_type`?; the fields are id, aggregate_type, aggregate_id, \
             event_type, event_version, topic, header.NAME",
            "  fix: correct `topic` = \"{aggregate_typ}\"",
            "p.toml:29:12: `attempts` cannot be 0",
            "  fix: use 1 to 1000000",
            "p.toml:31:7: `max` is shorter than `initial`",
            "  fix: make `max` at least as long as `initial`",
            "p.toml:34:8: `keep` cannot be \"30s\"",
            "  fix: use 1m to 3650d",
            "p.toml:35:9: `every` cannot be \"0s\"",
            "  fix: use 1s to 1d",
            "p.toml:36:11: `archive` in [prune] is empty",
            "  fix: name a folder, or remove the key",
            "p.toml:37:1: unknown key `partitions` in [prune]",
            "  fix: remove it; [prune] has archive, every, keep, unmatched",
            "p.toml:40:10: `listen` cannot be \"localhost\"",
            "  fix: write an IP address of this host and a port: \"127.0.0.1:8787\"",
            "p.toml:41:1: unknown key `port` in [http]",
            "  fix: remove it; [http] has hosts, listen, token",
        ],
    );
}

#[test]
fn what_a_relay_does_by_itself_can_be_switched_off() {
    let off = format!("{MINIMAL}\n[reconcile]\nenabled = false\n[alarms]\nenabled = false\n");
    let config = parse(&off);
    assert_eq!((config.reconcile, config.alarms), (None, None));
    let env = [("POSTRIDER_RECONCILE__ENABLED", "false"), ("POSTRIDER_ALARMS__LAG", "1m")];
    let config = parse_with(MINIMAL, &env).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.reconcile, None);
    assert_eq!(config.alarms.unwrap().lag, Duration::from_secs(60));
    assert_problems(
        &format!("{MINIMAL}[reconcile]\nevery = \"0s\"\npublish = \"no\"\n[alarms]\nlaq = 1\n"),
        &[],
        &[
            "p.toml:9:9: `every` cannot be \"0s\"",
            "  fix: use 1s to 1d",
            "p.toml:10:11: `publish` has to be true or false, and is a string",
            "  fix: write publish = true",
            "p.toml:12:1: unknown key `laq` in [alarms]",
            "  fix: did you mean `lag`?",
        ],
    );
}

#[cfg(feature = "nats")]
#[test]
fn a_sink_is_checked_with_what_it_knows_of_its_pipeline() {
    let with = |sink: &str| {
        format!(
            "[source]\nurl = \"sqlite:app.db\"\n\n[[pipeline]]\nname = \"orders\"\n\n\
             [pipeline.sink]\nurl = \"nats://a,b\"\n{sink}\n\n[pipeline.retry]\n\
             attempts = 3\ninitial = \"2s\"\n"
        )
    };
    let config = parse(&with("create_missing = true\nstream = \"ORDERS\"\ntopic = \"orders\""));
    let sink = &config.pipelines[0].sink;
    assert_eq!(sink.problems(), []);
    assert_eq!((sink.pipeline.name.as_str(), sink.pipeline.window_events), ("orders", 4096));
    assert_eq!(sink.pipeline.topic.as_deref(), Some("orders"));
    assert_eq!(sink.pipeline.retry_horizon, Duration::from_secs(2 + 4));
    assert_eq!(sink.pipeline.call_timeout, Some(Duration::from_secs(30)));
    assert_problems(
        &with("topic = \"orders.*\""),
        &[],
        &[
            "p.toml:9:9: `topic`: is no subject: it has a wildcard (* or >)",
            "  fix: correct `topic`",
        ],
    );
    let dynamic = with("create_missing = true\nstream = \"ORDERS\"");
    let problems = parse_with(&dynamic, &[]).unwrap_err().to_string();
    assert!(problems.contains("needs to know what the stream takes"), "{problems}");
}

/// G-06: an outage that lasts longer than a call would count as a failure of its events.
#[cfg(all(feature = "nats", feature = "rabbitmq", feature = "redis"))]
#[test]
fn a_broker_must_be_missed_before_a_call_is_over() {
    let with = |sink: &str| {
        format!(
            "[source]\nurl = \"sqlite:app.db\"\n\n[[pipeline]]\nname = \"orders\"\n\n\
             [pipeline.sink]\n{sink}\n"
        )
    };
    for url in ["amqp://a,b,c,d", "nats://a,b,c,d", "redis://a"] {
        parse(&with(&format!("url = \"{url}\"")));
        parse(&with(&format!("url = \"{url}\"\ntimeout = \"2s\"")));
    }
    for (url, option) in [
        ("amqp://a", "confirm_timeout"),
        ("nats://a", "ack_timeout"),
        ("redis://a", "response_timeout"),
    ] {
        let sink = format!("url = \"{url}\"\n{option} = \"20s\"");
        parse(&with(&sink));
        let column = option.len() + 4;
        let what = format!(
            "p.toml:9:{column}: `{option}`: leaves a call no time to notice an outage: connect_timeout \
             (5s) and {option} (20s) together are 25s, and timeout is 20s"
        );
        let fix = "  fix: make them shorter, or set timeout = \"26s\" or more";
        assert_problems(&with(&format!("{sink}\ntimeout = \"20s\"")), &[], &[&what, fix]);
        let variable = ("POSTRIDER_PIPELINE__ORDERS__SINK__TIMEOUT", "20s");
        assert_problems(&with(&sink), &[variable], &[&what, fix]);
    }
}

#[test]
fn an_empty_file_lacks_everything() {
    assert_problems(
        "",
        &[],
        &[
            "p.toml:1:1: there is no [[pipeline]]",
            "  fix: add [[pipeline]] with a name and [pipeline.sink] with a url",
            "p.toml:1:1: there is no [source]",
            "  fix: add [source] with url = \"sqlite:///var/lib/app/app.db\"",
        ],
    );
}

#[test]
fn one_bracket_is_not_a_list() {
    let text = MINIMAL.replace("[[pipeline]]", "[pipeline]");
    assert_problems(
        &text,
        &[],
        &[
            "p.toml:5:1: `pipeline` has to be a list of sections, and is a table",
            "  fix: write [[pipeline]] with two brackets",
        ],
    );
}

#[test]
fn a_mistake_in_the_syntax_is_shown() {
    let problems = parse_with("[source]\nurl = outbox\n", &[]).unwrap_err();
    let problem = problems.iter().next().unwrap();
    assert_eq!(problem.at.to_string(), "p.toml:2:7");
    assert_eq!(problem.excerpt.as_deref(), Some("  2 | url = ***\n    |       ^"));
    assert!(problem.what.starts_with("this is not valid TOML: "), "{}", problem.what);
}

#[test]
fn a_mistake_in_the_syntax_does_not_show_a_password() {
    for mistake in [
        "url = \"http://u:canary@host",
        "url = canary",
        "signing_secrets = [\"canary\", canary]",
        "signing_secrets = [\n\"canary\",\n canary\n]",
        "secret_headers = { authorization = \"canary }",
        "\"canary\" \"canary\"",
        "canary",
    ] {
        let problems = parse_with(&format!("[source]\n{mistake}\n"), &[]).unwrap_err();
        let text = format!("{problems} {problems:?}");
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn names_are_unique_and_plain() {
    let text = r#"
[source]
url = "sqlite://app.db"
[[pipeline]]
name = "a"
progress = "cursor"
sink = { url = "stdout:" }
[[pipeline]]
name = "a"
progress = "cursor"
sink = { url = "stdout:" }
[[pipeline]]
name = "a b"
progress = "cursor"
"#;
    assert_problems(
        text,
        &[],
        &[
            "p.toml:9:8: there is another pipeline named \"a\"",
            "  fix: give each pipeline a name of its own",
            "p.toml:12:1: pipeline ? has no sink",
            "  fix: add [pipeline.sink] with url = \"stdout:\", \"file:///…\" or \"http://…\"",
            "p.toml:13:8: `name` is not a pipeline name",
            "  fix: use up to 64 letters, digits, `-`, `_` and `.`: the name stays in the database",
        ],
    );
}

#[test]
fn several_pipelines_need_a_cursor() {
    let text = r#"
[source]
url = "sqlite://app.db"
[[pipeline]]
name = "a"
sink = { url = "stdout:" }
[[pipeline]]
name = "b"
progress = "delete"
sink = { url = "stdout:" }
"#;
    assert_problems(
        text,
        &[],
        &[
            "p.toml:4:1: progress \"mark\" belongs to one pipeline, and this outbox has 2",
            "  fix: write progress = \"cursor\" in each of them",
            "p.toml:9:12: progress \"delete\" belongs to one pipeline, and this outbox has 2",
            "  fix: write progress = \"cursor\" in each of them",
        ],
    );
}

#[cfg(feature = "postgres")]
#[test]
fn the_log_is_read_by_a_cursor() {
    let text = MINIMAL.replace("sqlite://app.db", "postgres://h/db");
    let cdc = |more: &str| text.replace("sink =", &format!("mode = \"cdc\"\n{more}sink ="));
    let pipeline = parse(&cdc("")).pipelines.remove(0);
    assert_eq!((pipeline.mode, pipeline.progress), (Mode::Cdc, Progress::Cursor));
    assert_eq!(pipeline.max_retained_wal, 10 << 30);
    let pipeline = parse(&cdc("max_retained_wal = \"1GiB\"\n")).pipelines.remove(0);
    assert_eq!(pipeline.max_retained_wal, 1 << 30);
    assert_problems(
        &cdc("progress = \"mark\"\nshards = 2\n"),
        &[],
        &[
            "p.toml:8:12: mode \"cdc\" keeps its progress by cursor, not by mark",
            "  fix: write progress = \"cursor\", or remove it",
            "p.toml:9:10: shards are for polling: with mode \"cdc\" one relay reads the whole log",
            "  fix: write shards = 1, or remove it",
        ],
    );
    assert_problems(
        &text.replace("sink =", "max_retained_wal = \"1GiB\"\nsink ="),
        &[],
        &[
            "p.toml:7:20: `max_retained_wal` is for mode \"cdc\": polling keeps nothing of the log",
            "  fix: remove it",
        ],
    );
    // Whoever misspells the mode is not told to remove what goes with it.
    let misspelt = text.replace("sink =", "mode = \"cdx\"\nmax_retained_wal = \"1GiB\"\nsink =");
    let problems = Config::parse(&misspelt, "p.toml", &Environment::default()).unwrap_err();
    assert!(!format!("{problems:?}").contains("max_retained_wal"), "{problems:?}");
}

#[test]
fn what_the_database_cannot_do_is_refused() {
    let text = MINIMAL.replace("sink =", "mode = \"cdc\"\nsink =");
    assert_problems(
        &text,
        &[],
        &[
            "p.toml:7:8: mode \"cdc\" is not available for sqlite",
            "  fix: write mode = \"poll\", or remove it",
        ],
    );
    let text = MINIMAL
        .replace("sink =", "shards = 4\nsink =")
        .replace("[[pipeline]]", "[source.columns]\nid = \"event_id\"\n\n[[pipeline]]");
    assert_problems(
        &text,
        &[],
        &[
            "p.toml:5:1: [source.columns] is not available for sqlite: the table has to be our own",
            "  fix: remove the section",
            "p.toml:10:10: more than one shard is not available for sqlite: one relay has the \
             whole file",
            "  fix: write shards = 1, or remove it",
        ],
    );
}

/// What is wrong with a pipeline on PostgreSQL, whether or not this build can read it.
fn postgres_problems(pipeline: &str) -> Vec<String> {
    let text = format!(
        "[source]\nurl = \"postgres://app@localhost/app\"\n[[pipeline]]\nname = \"orders\"\n{pipeline}"
    );
    let problems = parse_with(&text, &[]).err();
    let problems = problems.iter().flat_map(Problems::iter);
    let is_about_the_build = |what: &str| what.contains("not supported by this build");
    let problems = problems.filter(|problem| !is_about_the_build(&problem.what));
    problems.map(|problem| format!("{}; {}", problem.what, problem.fix)).collect()
}

#[test]
fn shards_need_an_order_to_keep_and_a_sink_that_takes_several() {
    let sink = "sink = { url = \"stdout:\" }\n";
    assert!(postgres_problems(&format!("shards = 256\n{sink}")).is_empty());
    assert!(postgres_problems(&format!("shards = 1\nordering = \"none\"\n{sink}")).is_empty());
    let none = format!("shards = 2\nordering = \"none\"\n{sink}");
    let problems = postgres_problems(&none);
    assert!(problems[0].contains("relays read side by side without them"), "{problems:?}");
    let problems = postgres_problems(&format!("progress = \"cursor\"\n{none}"));
    assert!(problems[0].contains("write ordering = \"key\""), "{problems:?}");
    let problems = postgres_problems("shards = 2\nsink = { url = \"file:///tmp/events\" }\n");
    assert!(problems[0].contains("a file has one writer"), "{problems:?}");
}

#[test]
fn columns_are_read() {
    let text = r#"
[source]
url = "postgres://app@localhost/app"
columns = { aggregate_type = "aggregatetype", id = "event id" }
"#;
    let report = Report::default();
    let root = tree::parse(text, "p.toml", &Environment::default(), &report);
    let start = Origin::Flag("--from");
    let root = Section::new("the configuration".into(), start, root, &report);
    let columns = source::read(&root).unwrap().columns;
    let columns: Vec<_> = columns.iter().map(|(ours, it)| (ours.as_str(), it.as_str())).collect();
    assert_eq!(columns, [("aggregate_type", "aggregatetype"), ("id", "event id")]);
}

#[test]
fn pruning_needs_to_know_how_long_to_keep() {
    assert_problems(
        &format!("{MINIMAL}\n[prune]\nevery = \"1m\"\n"),
        &[],
        &[
            "p.toml:9:1: `keep` is missing in [prune]",
            "  fix: add keep = \"7d\", the time that published events stay",
        ],
    );
    let config = parse(&format!("{MINIMAL}\n[prune]\nkeep = \"1m\"\n"));
    let prune = config.prune.unwrap();
    assert_eq!((prune.every, prune.archive), (Duration::from_secs(60), None));
}

#[test]
fn references_are_resolved_and_missing_ones_named() {
    let text = MINIMAL.replace("sqlite://app.db", "sqlite://${env:DIR}/app.db");
    let config = parse_with(&text, &[("DIR", "/data")]).unwrap();
    assert_eq!(config.source.url.expose(), "sqlite:///data/app.db");
    assert_eq!(config.source.url.to_string(), "sqlite://${env:DIR}/app.db");
    assert_problems(
        &text,
        &[],
        &["p.toml:3:7: the environment variable `DIR` is not set", "  fix: set it: export DIR=…"],
    );
}

#[test]
fn a_missing_secret_is_one_problem() {
    let text = MINIMAL.replace(
        "{ url = \"stdout:\" }",
        "{ url = \"http://example.com/\", signing_secrets = [\"${env:NONE}\"] }",
    );
    assert_problems(
        &text,
        &[],
        &[
            "p.toml:7:58: the environment variable `NONE` is not set",
            "  fix: set it: export NONE=…",
        ],
    );
}

#[test]
fn variables_override_the_file() {
    let env = [
        ("POSTRIDER_SOURCE__URL", "sqlite://other.db"),
        ("POSTRIDER_SOURCE__TABLE", "events"),
        ("POSTRIDER_SOURCE__HINT", "[::1]:8788"),
        ("POSTRIDER_PRUNE__KEEP", "1h"),
        ("POSTRIDER_HTTP__LISTEN", "[::1]:8787"),
        ("POSTRIDER_PIPELINE__ORDERS__PROGRESS", "delete"),
        ("POSTRIDER_PIPELINE__ORDERS__SINK__URL", "http://127.0.0.1:1/"),
        ("POSTRIDER_PIPELINE__ORDERS__SINK__ALLOW_PRIVATE", "true"),
        ("POSTRIDER_PIPELINE__ORDERS__RETRY__ATTEMPTS", "7"),
        ("POSTRIDER_PIPELINE__ORDERS__WINDOW__BYTES", "2MiB"),
        ("POSTRIDER_PIPELINE__ORDERS__MATCH__AGGREGATE_TYPE", "Order, Invoice"),
        ("POSTRIDER_LOG", "debug"),
        ("POSTRIDER_SERVICE_HOST", "10.0.0.1"),
    ];
    let config = parse_with(MINIMAL, &env).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.source.url.expose(), "sqlite://other.db");
    assert_eq!(config.source.table.as_str(), "events");
    assert_eq!(config.source.hint, Some("[::1]:8788".parse().unwrap()));
    assert_eq!(config.prune.unwrap().keep, Duration::from_secs(3600));
    assert_eq!(config.http.unwrap().listen, "[::1]:8787".parse().unwrap());
    let pipeline = &config.pipelines[0];
    assert_eq!(pipeline.progress, Progress::Delete);
    assert_eq!(pipeline.sink_url.expose(), "http://127.0.0.1:1/");
    assert_eq!(pipeline.options.retry.attempts, 7);
    assert_eq!(pipeline.options.window.bytes_max, 2 << 20);
    assert_eq!(pipeline.aggregate_types, ["Order", "Invoice"]);
}

#[test]
fn variables_that_override_nothing_are_told() {
    let env = [
        ("POSTRIDER_PIPELINE__INVOICES__MODE", "poll"),
        ("POSTRIDER_PIPELINE__ORDERS__RETRY__ATEMPTS", "3"),
        ("POSTRIDER_PIPELINE__ORDERS__RETRY__MAX", "long"),
        ("POSTRIDER_SOURCE_URL", "sqlite://other.db"),
    ];
    let problems = parse_with(MINIMAL, &env).unwrap_err();
    let lines: Vec<String> = problems.to_string().lines().map(str::to_owned).collect();
    assert_eq!(
        lines[0],
        "POSTRIDER_PIPELINE__INVOICES__MODE: this environment variable overrides nothing"
    );
    assert!(lines[1].starts_with("  fix: unset it, or use one of POSTRIDER_SOURCE__HINT, "));
    assert_eq!(
        lines[2..],
        [
            "POSTRIDER_PIPELINE__ORDERS__RETRY__ATEMPTS: this environment variable overrides nothing",
            "  fix: did you mean `POSTRIDER_PIPELINE__ORDERS__RETRY__ATTEMPTS`? otherwise unset it",
            "POSTRIDER_PIPELINE__ORDERS__RETRY__MAX: `max` cannot be \"long\"",
            "  fix: write a number and ms, s, m, h or d: \"5s\"",
            "POSTRIDER_SOURCE_URL: this environment variable overrides nothing",
            "  fix: did you mean `POSTRIDER_SOURCE__URL`? otherwise unset it",
        ]
    );
}

#[test]
fn every_known_variable_reaches_a_key() {
    // No key takes this value but those that take any text.
    for key in environment::PIPELINE_KEYS {
        let name = format!("POSTRIDER_PIPELINE__ORDERS__{key}");
        if let Err(problems) = parse_with(MINIMAL, &[(name.as_str(), "{wrong")]) {
            let text = problems.to_string();
            assert!(!text.contains("unknown key"), "{text}");
            assert!(!text.contains("overrides nothing"), "{text}");
        }
    }
}

#[test]
fn flags_make_one_pipeline_and_win_over_variables() {
    let flags = Flags {
        from: Some("sqlite://app.db".into()),
        to: Some("http://127.0.0.1:1/".into()),
        progress: Some("delete".into()),
        allow_private: true,
        listen: Some("127.0.0.1:0".into()),
        ..Flags::default()
    };
    let env = [
        ("POSTRIDER_SOURCE__URL", "sqlite://other.db"),
        ("POSTRIDER_SOURCE__TABLE", "events"),
        ("POSTRIDER_PIPELINE__DEFAULT__PROGRESS", "cursor"),
        ("POSTRIDER_PIPELINE__DEFAULT__ON_DEAD", "skip"),
        ("POSTRIDER_HTTP__LISTEN", "127.0.0.1:8787"),
    ];
    let env: Environment = env.into_iter().collect();
    let config = Config::from_flags(&flags, &env).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.source.url.expose(), "sqlite://app.db");
    assert_eq!(config.source.table.as_str(), "events");
    assert_eq!(config.pipelines.len(), 1);
    assert_eq!(config.pipelines[0].name, PIPELINE_DEFAULT);
    assert_eq!(config.pipelines[0].progress, Progress::Delete);
    assert_eq!(config.pipelines[0].options.on_dead, OnDead::Skip);
    assert_eq!(config.http.unwrap().listen.to_string(), "127.0.0.1:0");

    let wrong = Flags { mode: Some("cdx".into()), to: Some("foo://x".into()), ..flags };
    let problems = Config::from_flags(&wrong, &Environment::default()).unwrap_err();
    let places: Vec<String> = problems.iter().map(|problem| problem.at.to_string()).collect();
    assert_eq!(places, ["--mode", "--to"], "{problems}");
}

#[test]
fn secrets_are_never_shown() {
    let text = r#"
[source]
url = "sqlite://${env:CANARY}.db"
[[pipeline]]
name = "orders"
[pipeline.sink]
url = "http://127.0.0.1:1/${env:CANARY}?${env:CANARY}"
headers = { tenant = "${env:CANARY}" }
secret_headers = { authorization = "Bearer ${env:CANARY}" }
allow_private = true
"#;
    let env = [("CANARY", "c4n4ry")];
    let config = parse_with(text, &env).unwrap_or_else(|problems| panic!("{problems}"));
    let shown = format!("{config:?} {config:#?} {}", config.source.url);
    assert!(!shown.contains("c4n4ry"), "{shown}");

    let wrong = r#"
[source]
url = "${env:CANARY}"
table = "${env:CANARY}.${env:CANARY}"
[[pipeline]]
name = "${env:CANARY} x"
mode = "${env:CANARY}"
grace = "${env:CANARY}"
window = { bytes = "${env:CANARY}" }
[pipeline.sink]
url = "${env:CANARY}://x"
topic = "{${env:CANARY}}"
timeout = "${env:CANARY}"
secret = "${env:CANARY}"

[[pipeline]]
name = "other"
[pipeline.sink]
url = "http://user:${env:CANARY}@127.0.0.1:1/"
signing_secrets = "${env:CANARY}"
"#;
    let problems = parse_with(wrong, &env).unwrap_err();
    let shown = format!("{problems} {problems:?} {problems:#?}");
    assert!(problems.iter().count() >= 8, "{problems}");
    assert!(!shown.contains("c4n4ry"), "{shown}");
}

#[test]
fn a_start_is_for_a_cursor() {
    let text = |progress: &str, start: &str| {
        format!(
            "[source]\nurl = \"sqlite://app.db\"\n[[pipeline]]\nname = \"orders\"\n\
             progress = \"{progress}\"\nstart = \"{start}\"\nsink = {{ url = \"stdout:\" }}\n"
        )
    };
    for start in StartAt::ALL {
        let config = parse(&text("cursor", start.as_str()));
        assert_eq!(config.pipelines[0].start, start);
        for progress in ["mark", "delete"] {
            let text = text(progress, start.as_str());
            let error = Config::parse(&text, "p.toml", &Environment::default()).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("`start` is for progress \"cursor\""), "{error}");
        }
    }
}

/// Whatever a file says, it is read or refused.
#[test]
fn no_text_makes_it_panic() {
    let samples = [
        MINIMAL,
        "[source]\nurl = \"postgres://a:b@h:1/d?sslmode=require\"\ntable = \"s.t\"\n[source.columns]\nid = \"x\"\n\
         [[pipeline]]\nname = \"a\"\nmode = \"cdc\"\nprogress = \"cursor\"\nlease = \"15s\"\nshards = 4\n\
         match = { aggregate_type = [\"Order\"] }\n[pipeline.sink]\nurl = \"kafka://h:9092,i:9093\"\n\
         topic = \"{aggregate_type}.{header.x}\"\nkey = \"{aggregate_id}\"\nformat = \"debezium\"\n\
         [pipeline.retry]\nattempts = 3\ninitial = \"1s\"\nmax = \"1m\"\n[prune]\nkeep = \"7d\"\n\
         [http]\nlisten = \"127.0.0.1:8787\"\n[alarms]\nlag = \"5m\"\n",
        "[[pipeline]]\nname = \"b\"\nsink = { url = \"https://h/p\", secrets = [\"${env:X}\"], timeout = \"9s\" }\n",
    ];
    let samples = samples.map(|text| text.as_bytes().to_vec());
    for input in crate::damaged::damaged(&samples, 16, 3_000) {
        let text = String::from_utf8_lossy(&input);
        if let Err(problems) = parse_with(&text, &[("X", "canary")]) {
            assert!(!problems.to_string().contains("canary"), "{problems}\nof\n{text}");
        }
    }
}
