use super::*;

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

fn read(variables: &[(&str, &str)]) -> Result<Settings, CliError> {
    Settings::read(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn endpoints(variables: &[(&str, &str)]) -> (Option<String>, Option<String>) {
    let Settings { traces, logs } = read(variables).unwrap();
    (traces.map(|signal| signal.endpoint), logs.map(|signal| signal.endpoint))
}

#[test]
fn nothing_goes_out_unless_it_is_asked_for() {
    for variables in [
        &[][..],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        &[("OTEL_SERVICE_NAME", "shop"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
        &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_LOGS_EXPORTER", "none")],
        // What does not go out cannot be wrong.
        &[("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "zipkin")],
    ] {
        assert_eq!(endpoints(variables), (None, None), "{variables:?}");
    }
}

#[test]
fn each_goes_to_its_endpoint() {
    let some = |url: &str| Some(url.to_owned());
    let (traces, logs) =
        (some("http://collector:4318/v1/traces"), some("http://collector:4318/v1/logs"));
    assert_eq!(endpoints(&[ENDPOINT]), (traces.clone(), logs));
    assert_eq!(endpoints(&[ENDPOINT, ("OTEL_LOGS_EXPORTER", "none")]), (traces.clone(), None));
    let alone = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "https://logs.example/in?x=1");
    assert_eq!(endpoints(&[alone]), (None, some(alone.1)));
    assert_eq!(endpoints(&[ENDPOINT, alone]), (traces, some(alone.1)));
    let asked = ("OTEL_TRACES_EXPORTER", "otlp");
    assert_eq!(endpoints(&[asked]), (some("http://localhost:4318/v1/traces"), None));
}

#[test]
fn a_time_for_one_comes_before_that_for_all() {
    let settings = read(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1500"),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "20"),
    ]);
    let Settings { traces, logs } = settings.unwrap();
    assert_eq!(traces.unwrap().timeout, Duration::from_millis(1500));
    assert_eq!(logs.unwrap().timeout, Duration::from_millis(20));
}

#[test]
fn what_cannot_be_followed_is_an_error_without_secrets() {
    for (name, value, expected) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "has only http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "has only http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "no URL of HTTP"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "u:canary@collector", "no URL of HTTP"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector/canary?canary", "no URL of HTTP"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:canary@collector/", "has a user"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=canary,canary", "has a header without"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "does not have"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem", "does not have"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "no number of milliseconds"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "does not have"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "does not have"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG is no number"),
    ] {
        let error = read(&[(name, value), ENDPOINT]).unwrap_err();
        assert_eq!(error.code, Code::Configuration);
        assert!(error.what.contains(expected), "{name}={value}: {error:?}");
        assert!(error.fix.is_some() && !format!("{error:?}").contains("canary"), "{error:?}");
    }
}

#[test]
fn all_mistakes_are_found_at_once() {
    let error = read(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_TRACES_SAMPLER", "xray"),
    ]);
    let error = error.unwrap_err();
    assert_eq!(error.what, "3 variables of OpenTelemetry cannot be followed");
    assert_eq!(error.why.len(), 3, "{error:?}");
}
