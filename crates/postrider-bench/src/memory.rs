//! Memory to memory: what the pipeline itself costs.
//!
//! Each measurement is a process of its own, so that its largest resident memory is its own, and
//! is held on one core with `taskset`. Its peer is a bare loop over the same source and sink,
//! without lanes, window, retries or ordering: what would be left if the pipeline cost nothing.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use postrider_relay::formats::Encoding;
use postrider_relay::pipeline::{Options, Pipeline, Window};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::{Message, Sink as _};
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::source::{BatchLimit, Settlement, Source as _, Verdict};
use postrider_relay::sources::memory::{Generated, MemoryOutbox};

use crate::Outcome;
use crate::report::{Measured, Report, Section, Target, number};

/// The argument that tells this program that it is a measurement.
pub(crate) const CHILD: &str = "memory-child";

const EVENTS: u64 = 10_000_000;
const EVENTS_FEW: u64 = EVENTS / 10;
/// The machine has other work too: the best of so many runs says most about the program.
const RUNS: usize = 3;
const EVENTS_PER_SECOND_MIN: f64 = 1_000_000.0;
const RESIDENT_MIB_MAX: f64 = 64.0;

/// Runs the measurements. True if every target was reached.
pub(crate) fn run() -> Outcome<bool> {
    let Generated { payload_bytes, keys, .. } = Generated::new(EVENTS);
    let one_core = taskset_works();
    let held_by = if one_core { "taskset" } else { "one thread; there is no taskset" };
    let mut report = Report::new(Section::Memory);
    report.title(&format!(
        "memory to memory: {payload_bytes}-byte payloads, {} keys, ordered by key, on one core ({held_by}), best of {RUNS}",
        number(keys as f64)
    ));
    let few = measure("pipeline", EVENTS_FEW, one_core)?;
    let mut bare = measure("loop", EVENTS, one_core)?;
    let mut many = measure("pipeline", EVENTS, one_core)?;
    // In turn, so that a busy moment of the machine hits both.
    for _ in 1..RUNS {
        bare = bare.better(measure("loop", EVENTS, one_core)?);
        many = many.better(measure("pipeline", EVENTS, one_core)?);
    }
    report.rate("the bare loop", bare.wall);
    report.rate("postrider's pipeline", many.wall);
    report.ratio("the pipeline, of the bare loop's rate", many.wall.rate(), bare.wall.rate());
    if let Some(cpu) = many.cpu {
        report.rate("the same by the core's own time", cpu);
    }
    let rate = Target::AtLeast(EVENTS_PER_SECOND_MIN);
    report.judge("events a second", many.wall.rate(), "events/s", rate);
    for measurement in [few, many] {
        let Some(resident) = measurement.resident_mib else { continue };
        let what = format!("resident at most, {} events", number(measurement.wall.events as f64));
        report.judge(&what, resident, "MiB", Target::Below(RESIDENT_MIB_MAX));
    }
    report.keep(None)
}

/// What a child tells.
#[derive(Clone, Copy)]
struct Measurement {
    wall: Measured,
    /// By the time that the core spent on it: what a machine without other work would show.
    cpu: Option<Measured>,
    resident_mib: Option<f64>,
}

impl Measurement {
    /// The faster of two, with the memory of the larger.
    fn better(self, other: Self) -> Self {
        let resident_mib = self.resident_mib.zip(other.resident_mib);
        let resident_mib = resident_mib.map(|(one, other)| one.max(other));
        let faster = if self.wall.time <= other.wall.time { self } else { other };
        Self { resident_mib, ..faster }
    }
}

fn taskset_works() -> bool {
    let tried = Command::new("taskset").args(["-c", "0", "true"]).output();
    tried.is_ok_and(|output| output.status.success())
}

fn measure(what: &str, events: u64, one_core: bool) -> Outcome<Measurement> {
    let program = std::env::current_exe()?;
    let mut command = if one_core {
        let mut taskset = Command::new("taskset");
        taskset.args(["-c", "0"]).arg(program);
        taskset
    } else {
        Command::new(program)
    };
    let output = command.args([CHILD, what, &events.to_string()]).output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the measurement failed: {}", stderr.trim()).into());
    }
    let stdout = String::from_utf8(output.stdout)?;
    let numbers: Vec<u64> = stdout.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let &[wall_ns, cpu_ns, resident_kib] = numbers.as_slice() else {
        return Err(format!("the measurement printed {stdout:?}").into());
    };
    let measured = |ns| Measured { events, time: Duration::from_nanos(ns) };
    Ok(Measurement {
        wall: measured(wall_ns),
        cpu: (cpu_ns > 0).then(|| measured(cpu_ns)),
        resident_mib: (resident_kib > 0).then(|| resident_kib as f64 / 1024.0),
    })
}

/// One measurement. Prints nanoseconds by the clock, nanoseconds by the core, and the most KiB
/// that were resident; 0 is what this system does not tell.
pub(crate) fn run_child(what: &str, events: &str) -> Outcome<()> {
    let events: u64 = events.parse()?;
    // On this very thread, so that one core is enough and its time can be told.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, cpu_before) = (Instant::now(), cpu_ns());
    let delivered = match what {
        "loop" => runtime.block_on(bare_loop(events))?,
        _ => runtime.block_on(pipeline(events))?,
    };
    let (wall, cpu_after) = (started.elapsed(), cpu_ns());
    if delivered != events {
        return Err(format!("{delivered} of {events} events were delivered").into());
    }
    println!("{} {} {}", wall.as_nanos(), cpu_after - cpu_before, resident_kib_max());
    Ok(())
}

async fn pipeline(events: u64) -> Outcome<u64> {
    let source = MemoryOutbox::generated(Generated::new(events)).connect();
    let sink = MemorySink::keeping(0);
    let options = Options { drain: true, ..Options::default() };
    let pipeline = Pipeline::new("bench", Box::new(source), Box::new(sink.clone()), options);
    let (_stop, shutdown) = shutdown();
    let totals = pipeline.run(shutdown).await?;
    Ok(totals.delivered.min(sink.count()))
}

/// Read, encode, publish, settle, one batch after the other.
async fn bare_loop(events: u64) -> Outcome<u64> {
    let source = MemoryOutbox::generated(Generated::new(events)).connect();
    let sink = MemorySink::keeping(0);
    let (encoding, window) = (Encoding::default(), Window::default());
    let batch_events_max = sink.capabilities().batch_events_max;
    let limit =
        BatchLimit { events: batch_events_max, bytes: window.bytes_max, wait: Duration::ZERO };
    source.resume().await?;
    loop {
        let batch = source.next_batch(limit).await?;
        if batch.is_empty() {
            return Ok(sink.count());
        }
        let mut settlements = Vec::with_capacity(batch.len());
        let mut messages: Vec<Message> = Vec::with_capacity(batch.len());
        for record in batch {
            let event = record.event.map_err(|bad| bad.reason)?;
            messages.push(encoding.encode(event)?);
            settlements.push(Settlement { handle: record.handle, verdict: Verdict::Delivered });
        }
        for result in sink.publish(&messages).await {
            result?;
        }
        source.settle(&settlements).await?;
    }
}

/// How long this thread has had a core.
fn cpu_ns() -> u64 {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// The most memory that this process has had resident.
pub(crate) fn resident_kib_max() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let high_water = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = high_water.and_then(|text| text.split_whitespace().next());
    kib.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
