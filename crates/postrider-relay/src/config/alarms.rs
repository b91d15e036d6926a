//! Reads `[alarms]`.

use super::AlarmConfig;
use super::quantity::{DAY, MINUTE, SECOND};
use super::section::Section;

/// Sizes and counts beyond this are mistakes.
const LIMIT_MAX: u64 = 1 << 50;

impl Default for AlarmConfig {
    fn default() -> Self {
        Self { lag: 5 * MINUTE, dead_letters: 0, retained_wal: 5 << 30 }
    }
}

/// Reads the section. Without one, and without a key in it, the defaults hold; `None` if they are
/// switched off. A mistake in it is reported.
pub(super) fn read(root: &Section<'_>) -> Option<AlarmConfig> {
    let defaults = AlarmConfig::default();
    let Some(section) = root.section("alarms", "[alarms]".into()) else {
        return Some(defaults);
    };
    let enabled = section.boolean("enabled").unwrap_or(true);
    let config = AlarmConfig {
        lag: section.duration("lag", SECOND..=30 * DAY).unwrap_or(defaults.lag),
        dead_letters: section
            .integer("dead_letters", 0..=LIMIT_MAX)
            .unwrap_or(defaults.dead_letters),
        retained_wal: section.size("retained_wal", 1..=LIMIT_MAX).unwrap_or(defaults.retained_wal),
    };
    section.finish();
    enabled.then_some(config)
}
