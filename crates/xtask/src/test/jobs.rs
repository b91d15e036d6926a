//! Runs commands side by side. What one prints is shown when it has ended, in one piece.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::commands::Failed;

/// Test binaries that run at the same time. Each runs its cases on all cores, but waits for much of the
/// time. With more of them at once, cases with deadlines fail on two cores.
const AT_ONCE: usize = 2;

/// A command that has to succeed.
pub(super) struct Job {
    title: String,
    command: Command,
}

impl Job {
    pub(super) fn new(title: String, command: Command) -> Self {
        Self { title, command }
    }

    /// Runs it to its end.
    fn run(mut self) -> Finished {
        let began = Instant::now();
        self.command.stdin(Stdio::null());
        let (succeeded, output) = match self.command.output() {
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let stdout = String::from_utf8_lossy(&output.stdout);
                (output.status.success(), format!("{stderr}{stdout}"))
            }
            Err(error) => (false, format!("cannot be run: {error}")),
        };
        Finished { title: self.title, succeeded, elapsed: began.elapsed(), output }
    }
}

/// A job that has ended.
pub(super) struct Finished {
    title: String,
    succeeded: bool,
    elapsed: Duration,
    output: String,
}

/// Runs some jobs side by side, in their order as places come free, and beside them others one after
/// another.
pub(super) fn run_all(side_by_side: Vec<Job>, one_by_one: Vec<Job>) -> Vec<Finished> {
    let waiting = Mutex::new(side_by_side.into_iter());
    let next = || waiting.lock().expect("no job panics").next();
    let finished = Mutex::new(Vec::new());
    let finish = |job: Job| {
        let done = job.run();
        let mut finished = finished.lock().expect("no job panics");
        let verdict = if done.succeeded { "ok" } else { "FAILED" };
        println!(
            "\n==> {}: {verdict}, {} s\n{}",
            done.title,
            done.elapsed.as_secs(),
            done.output.trim_end()
        );
        finished.push(done);
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(job) = next() {
                    finish(job);
                }
            });
        }
        scope.spawn(|| one_by_one.into_iter().for_each(finish));
    });
    finished.into_inner().expect("no job panics")
}

/// Says where the time went, and once more what failed: thousands of lines may stand in between.
pub(super) fn print_summary(spent: &[(String, Duration)], finished: &[Finished]) {
    println!("\nwhere the time went, in seconds:");
    for (name, elapsed) in spent {
        println!("{:>6} {name}", elapsed.as_secs());
    }
    println!("of which, side by side, the longest twenty:");
    let mut longest: Vec<&Finished> = finished.iter().collect();
    longest.sort_by_key(|job| std::cmp::Reverse(job.elapsed));
    for job in longest.iter().take(20) {
        println!("{:>6} {}", job.elapsed.as_secs(), job.title);
    }
    for job in finished.iter().filter(|job| !job.succeeded) {
        println!("\n{} FAILED:\n{}", job.title, failures(&job.output));
    }
}

/// An error that names what failed, if anything did.
pub(super) fn first_failure(finished: &[Finished]) -> Result<(), Failed> {
    let failed: Vec<&str> =
        finished.iter().filter(|job| !job.succeeded).map(|job| job.title.as_str()).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failed(format!("failed: {}", failed.join("; ")))) }
}

/// What a test binary said of the tests that failed, or the end of what else was said.
fn failures(output: &str) -> String {
    const LINES_OF_OTHERS: usize = 40;
    let mut kept = Vec::new();
    let mut is_telling = false;
    for line in output.lines() {
        is_telling |= line == "failures:";
        if is_telling {
            kept.push(line);
            is_telling = !line.starts_with("test result:");
        }
    }
    if kept.is_empty() {
        let lines: Vec<&str> = output.lines().collect();
        kept.extend(&lines[lines.len().saturating_sub(LINES_OF_OTHERS)..]);
    }
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_kept_and_nothing_else() {
        let printed = "running 2 tests\ntest one ... ok\ntest two ... FAILED\n\nfailures:\n\n\
                       ---- two ----\ntwo is not one\n\nfailures:\n    two\n\n\
                       test result: FAILED. 1 passed; 1 failed\n\nrunning 1 test\ntest three ... ok\n\n\
                       test result: ok. 1 passed";
        let kept = failures(printed);
        assert!(kept.starts_with("failures:\n"), "{kept}");
        assert!(kept.contains("two is not one"), "{kept}");
        assert!(kept.ends_with("test result: FAILED. 1 passed; 1 failed"), "{kept}");
        assert_eq!(failures("error: no such file"), "error: no such file");
    }

    #[test]
    fn every_job_is_run_and_a_failure_is_named() {
        let job = |title: &str, program: &str| Job::new(title.to_owned(), Command::new(program));
        let tests = (0..5).map(|_| job("well", "true")).collect();
        let finished =
            run_all(tests, vec![job("one bad", "false"), job("none", "/nowhere/at/all")]);
        assert_eq!(finished.len(), 7);
        let Err(Failed(message)) = first_failure(&finished) else { panic!("two have failed") };
        assert_eq!(message, "failed: one bad; none");
    }
}
