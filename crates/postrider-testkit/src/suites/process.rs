//! A process of its own for a case that measures the process.

use std::fs;
use std::process::Command;

/// Says to a process that it is the one for the case.
const ALONE: &str = "POSTRIDER_TEST_ALONE";

/// Whether this is a process for one case.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs one test of this program in a process of its own.
pub fn run_alone(test: &str) -> Result<(), String> {
    let program = std::env::current_exe().expect("a process knows its program");
    let output = Command::new(program).args(["--exact", test]).env(ALONE, "1").output();
    let output = output.expect("the program can be started once more");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() && said.contains("1 passed") {
        true => Ok(()),
        false => Err(format!("{test} failed in a process of its own:\n{said}\n{errors}")),
    }
}

/// The most memory that this process had at a time since [`forget_peak`], in bytes.
pub fn peak_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("the system tells it");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    let kibibytes: usize =
        kibibytes.and_then(|number| number.parse().ok()).expect("it is a number of kibibytes");
    kibibytes << 10
}

/// From now on the peak is that of what comes.
pub fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
}
