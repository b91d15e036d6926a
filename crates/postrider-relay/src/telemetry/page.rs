//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write as _;

use super::histogram::Snapshot;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A name and its value.
pub(super) type Label<'a> = (&'a str, &'a str);

/// A page of metrics that is being written.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
    /// The metric whose samples follow.
    name: &'static str,
}

impl Page {
    /// Begins a metric.
    pub(super) fn metric(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A value of the metric.
    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: f64) {
        self.line("", labels, value);
    }

    /// The values of a histogram.
    pub(super) fn histogram(&mut self, labels: &[Label<'_>], histogram: &Snapshot) {
        let bounds = histogram.bounds.iter().map(|micros| seconds(*micros).to_string());
        let mut count = 0;
        for (bound, more) in bounds.chain(["+Inf".to_owned()]).zip(histogram.counts) {
            count += more;
            self.line("_bucket", &[labels, &[("le", &bound)]].concat(), count as f64);
        }
        self.line("_sum", labels, seconds(histogram.sum_micros));
        self.line("_count", labels, count as f64);
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            let begin = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{begin}{name}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = match value.is_infinite() {
            true => writeln!(self.text, " +Inf"),
            false => writeln!(self.text, " {value}"),
        };
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::histogram::{CALL_BOUNDS, Histogram};

    #[test]
    fn a_page_is_what_prometheus_reads() {
        let histogram = Histogram::new(&CALL_BOUNDS);
        histogram.observe([1, 700, 70_000_000].map(Duration::from_micros));
        let mut page = Page::default();
        page.metric("a_total", "counter", "Things.");
        page.sample(&[], 3.0);
        page.sample(&[("pipeline", "a\"b\\c\nd"), ("shard", "0")], f64::INFINITY);
        page.metric("b_seconds", "histogram", "Times.");
        page.histogram(&[("pipeline", "a")], &histogram.snapshot());
        let text = page.into_text();
        let expected = [
            "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n",
            "a_total{pipeline=\"a\\\"b\\\\c\\nd\",shard=\"0\"} +Inf\n",
            "b_seconds_bucket{pipeline=\"a\",le=\"0.0005\"} 1\n",
            "b_seconds_bucket{pipeline=\"a\",le=\"0.001\"} 2\n",
            "b_seconds_bucket{pipeline=\"a\",le=\"60\"} 2\n",
            "b_seconds_bucket{pipeline=\"a\",le=\"+Inf\"} 3\n",
            "b_seconds_sum{pipeline=\"a\"} 70.000701\nb_seconds_count{pipeline=\"a\"} 3\n",
        ];
        for part in expected {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
