//! Traces and logs by OTLP: the real binary, and a collector that takes what it sends.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use support::http::{accept_all, serve};
use support::otlp::{Collector, attribute, hex, shown};
use support::{Fixture, Ran, Running};

const TRACES: [&str; 2] = ["0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319d"];
const SPAN: &str = "b7ad6b7169203331";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Everything goes out at once, for tests that wait for it.
const AT_ONCE: [(&str, &str); 2] =
    [("OTEL_BSP_SCHEDULE_DELAY", "20"), ("OTEL_BLRP_SCHEDULE_DELAY", "20")];
/// What an export that does not work may cost at the end, and some time for the drain itself.
const IN_TIME: Duration = Duration::from_secs(8);

/// `relay --drain` from `app.db` to `out.jsonl`.
fn drain(fixture: &Fixture) -> Command {
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    fixture.command(&["relay", "--from", "sqlite://app.db", "--to", &to, "--drain"])
}

fn run(command: &mut Command) -> Ran {
    Ran::new(&["relay"], command.output().unwrap())
}

/// Headers of an event that was written in a trace.
fn written_in(trace: &str) -> String {
    format!(r#"{{"traceparent": "00-{trace}-{SPAN}-01", "tracestate": "vendor=x"}}"#)
}

#[test]
fn spans_are_linked_to_the_producers_and_the_log_goes_with_them() {
    let (fixture, collector) = (Fixture::migrated(), Collector::start());
    let ids = TRACES.map(|trace| fixture.insert(trace, "OrderPlaced", &written_in(trace)));
    fixture.insert("alone", "OrderPlaced", "{}");
    let ran = run(drain(&fixture)
        .env(ENDPOINT, collector.endpoint())
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=from%20the%20vault")
        .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        .env("OTEL_SERVICE_NAME", "shop-relay"));
    let stderr = ran.assert_code(0).stderr;

    let taken = collector.taken();
    assert!(taken.heads.contains("api-key: from the vault"), "{}", taken.heads);
    for resource in &taken.resources {
        assert_eq!(attribute(resource, "service.name"), "shop-relay");
        assert_eq!(attribute(resource, "deployment.environment.name"), "test");
        assert_eq!(attribute(resource, "service.version"), env!("CARGO_PKG_VERSION"));
        assert!(!attribute(resource, "host.name").is_empty(), "{resource:?}");
    }
    let [span] = &taken.spans[..] else { panic!("one call is one span: {:#?}", taken.spans) };
    assert_eq!(span.name, "send outbox.event.Order");
    assert_eq!(span.kind(), SpanKind::Client);
    assert!(span.parent_span_id.is_empty(), "it is the root of its trace: {span:?}");
    for (key, value) in [
        ("messaging.system", "file"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "outbox.event.Order"),
        ("messaging.batch.message_count", "3"),
        ("postrider.pipeline", "default"),
        ("error.type", ""),
    ] {
        assert_eq!(attribute(&span.attributes, key), value, "{key}");
    }
    let links = span.links.iter().map(|link| {
        assert_eq!((hex(&link.span_id).as_str(), link.trace_state.as_str()), (SPAN, "vendor=x"));
        (hex(&link.trace_id), attribute(&link.attributes, "messaging.message.id"))
    });
    let written = TRACES.map(str::to_owned).into_iter().zip(ids);
    assert_eq!(links.collect::<Vec<_>>(), written.collect::<Vec<_>>());
    // What was stored went on as it was.
    assert!(fixture.lines("out.jsonl")[0].contains(&format!("00-{}-{SPAN}-01", TRACES[0])));

    let starting = taken.log("starting");
    assert_eq!(starting.severity_text, "INFO");
    assert_eq!(attribute(&starting.attributes, "pipeline"), "default");
    for record in &taken.logs {
        let text = shown(record.body.as_ref());
        assert!(stderr.contains(&text), "{text:?} is not in\n{stderr}");
    }
    let logged = |line: &&str| line.contains(" INFO ") || line.contains(" WARN ");
    assert_eq!(taken.logs.len(), stderr.lines().filter(logged).count(), "{stderr}");
}

#[test]
fn a_replay_has_spans_of_its_own() {
    let (fixture, collector) = (Fixture::migrated(), Collector::start());
    fixture.insert("1", "OrderPlaced", &written_in(TRACES[0]));
    let args = ["replay", "--from", "sqlite://app.db", "--to", "stdout:", "--yes"];
    run(fixture.command(&args).env(ENDPOINT, collector.endpoint())).assert_code(0);
    let taken = collector.taken();
    let [span] = &taken.spans[..] else { panic!("one call is one span: {:#?}", taken.spans) };
    assert_eq!(attribute(&span.attributes, "postrider.pipeline"), "replay");
    assert_eq!(hex(&span.links[0].trace_id), TRACES[0]);
}

#[test]
fn a_failure_is_seen_in_the_span_and_the_log_leads_to_it() {
    let (fixture, collector) = (Fixture::migrated(), Collector::start());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap();
    serve(listener, |_| (422, Vec::new()));
    let id = fixture.insert("1", "OrderPlaced", &written_in(TRACES[0]));
    let to = format!("http://{endpoint}/hook");
    let args = ["relay", "--from", "sqlite://app.db", "--to", &to, "--allow-private"];
    let mut command = fixture.command(&args);
    command.env(ENDPOINT, collector.endpoint()).envs(AT_ONCE);
    let relay = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut relay = Running::new(relay);
    let taken = collector.wait_for("the failure", |taken| {
        let said =
            |text: &str| taken.logs.iter().any(|record| shown(record.body.as_ref()).contains(text));
        !taken.spans.is_empty() && said("an event was not published")
    });
    relay.signal("TERM");
    assert_eq!(relay.wait().code(), Some(0), "{}", relay.stderr());

    let span = &taken.spans[0];
    let status = span.status.as_ref().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert_eq!(status.message, "1 of 1 events were not published");
    for (key, value) in [
        ("messaging.system", "http"),
        ("messaging.message.id", id.as_str()),
        ("messaging.batch.message_count", ""),
        ("server.address", "127.0.0.1"),
        ("server.port", &endpoint.port().to_string()),
        ("error.type", "rejected"),
    ] {
        assert_eq!(attribute(&span.attributes, key), value, "{key}");
    }
    let failure = taken.log("an event was not published");
    assert_eq!(failure.severity_text, "WARN");
    assert_eq!((&failure.trace_id, &failure.span_id), (&span.trace_id, &span.span_id));
    assert!(taken.log("starting").trace_id.is_empty(), "it belongs to no call");
}

#[test]
fn what_ends_the_relay_is_told_to_the_collector() {
    let (fixture, collector) = (Fixture::migrated(), Collector::start());
    let args = ["relay", "--from", "sqlite://app.db", "--to", "file:///no/such/folder/out"];
    let ran = run(fixture.command(&args).env(ENDPOINT, collector.endpoint()));
    let code = ran.code;
    assert_ne!(code, 0, "{}", ran.stderr);
    let taken = collector.taken();
    let end = taken.log("/no/such/folder");
    assert_eq!(end.severity_text, "ERROR");
    assert_eq!(attribute(&end.attributes, "exit_code"), code.to_string());
}

/// As many calls as the queue of spans has room for, and more: what does not fit is dropped.
#[test]
fn a_collector_that_is_away_is_in_nobodys_way() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for collector in [silent.local_addr().unwrap(), gone] {
        let fixture = Fixture::migrated();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}/hook", listener.local_addr().unwrap());
        accept_all(listener);
        let events = 2_500;
        let rows = format!(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {events})
             INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT printf('01900000-0000-7000-8000-%012d', n), 'Order', n, 'OrderPlaced', '{{}}'
             FROM n"
        );
        fixture.database().execute_batch(&rows).unwrap();
        let args = ["relay", "--from", "sqlite://app.db", "--to", &to, "--allow-private"];
        let drain = |fixture: &Fixture| fixture.command(&[&args[..], &["--drain"]].concat());
        let ran = run(drain(&fixture).env(ENDPOINT, format!("http://{collector}")));
        let talk = [&*format!("delivered {events} events")];
        let stderr = ran.assert_code(0).assert_talk(&talk).stderr;
        let warnings = stderr.matches("not exported; everything else goes on").count();
        assert!(warnings <= 2, "once for traces and once for logs at most: {stderr}");
        if collector == gone {
            assert!(stderr.contains("what=\"traces\" error=\"Connection refused"), "{stderr}");
        }

        // Nothing is left to do, and so what it takes is the end.
        let started = Instant::now();
        run(drain(&fixture).env(ENDPOINT, format!("http://{collector}"))).assert_code(0);
        assert!(started.elapsed() < IN_TIME, "{:?}", started.elapsed());
    }
}

#[test]
fn commands_that_only_look_wait_for_no_collector() {
    let fixture = Fixture::migrated();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let mut status = fixture.command(&["status", "--from", "sqlite://app.db"]);
    let ran = run(status.env(ENDPOINT, endpoint).env("POSTRIDER_LOG", "trace"));
    ran.assert_code(0);
    assert!(silent.accept().is_err(), "nobody came");
}

#[test]
fn nothing_is_sent_that_is_not_wanted() {
    for (variables, spans, logs) in [
        (&[("OTEL_SDK_DISABLED", "true")][..], false, false),
        (&[("OTEL_TRACES_EXPORTER", "none")], false, true),
        (&[("OTEL_LOGS_EXPORTER", "none")], true, false),
        (&[("OTEL_TRACES_SAMPLER", "parentbased_always_off")], false, true),
        (
            &[
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0"),
            ],
            false,
            true,
        ),
        (
            &[
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "1"),
            ],
            true,
            true,
        ),
        (&[("POSTRIDER_LOG", "off")], true, false),
    ] {
        let (fixture, collector) = (Fixture::migrated(), Collector::start());
        fixture.insert("1", "OrderPlaced", "{}");
        let mut drain = drain(&fixture);
        drain.env(ENDPOINT, collector.endpoint()).envs(variables.iter().copied());
        run(&mut drain).assert_code(0);
        let taken = collector.taken();
        let arrived = (!taken.spans.is_empty(), !taken.logs.is_empty());
        assert_eq!(arrived, (spans, logs), "{variables:?}");
    }
}

#[test]
fn what_is_not_there_is_a_clear_error() {
    let fixture = Fixture::migrated();
    let said = |name: &str, value: &str| {
        let endpoint = (ENDPOINT, "http://127.0.0.1:9");
        run(drain(&fixture).envs([endpoint, (name, value)])).assert_code(3).stderr
    };
    assert_eq!(
        said("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        "error: OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\", and postrider has only http/protobuf\n  \
         fix: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, and let the endpoint be where the \
         collector takes HTTP: port 4318 if nothing else was chosen\n  \
         more: postrider explain configuration\n"
    );
    assert_eq!(
        said(ENDPOINT, "u:c4n4ry@collector:4318"),
        "error: OTEL_EXPORTER_OTLP_ENDPOINT is \"***@collector:4318\", no URL of HTTP\n  \
         fix: write, for example, OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318\n  \
         more: postrider explain configuration\n"
    );
}
